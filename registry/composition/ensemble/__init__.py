"""Ensembles of whole experts."""
