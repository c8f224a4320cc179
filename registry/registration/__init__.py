"""Registering a version: checks, lineage, overlap."""
