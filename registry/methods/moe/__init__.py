"""Sparse mixtures: trunks, routers, context routing and refits."""
