"""Sparse interpolated experts: shared weights D, and a mask of their rows for each expert (SIMoE, Chen et al. 2025)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
