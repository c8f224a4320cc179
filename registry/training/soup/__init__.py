"""Training of a soup: shared weights, a bank of experts, and the router that combines them (Ablin et al. 2025)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
