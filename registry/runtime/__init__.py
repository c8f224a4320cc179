"""Loaded transformers models: whole, layer by layer, and their routers."""
