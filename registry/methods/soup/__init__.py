"""Soups: shared weights and a bank of experts that domain weights combine into one dense model (Ablin et al. 2025)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
