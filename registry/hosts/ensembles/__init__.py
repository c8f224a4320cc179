"""Modelling files of ensembles."""
