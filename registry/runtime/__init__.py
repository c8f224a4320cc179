"""Loaded transformers models: their layers and gates."""
