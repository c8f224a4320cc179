"""Training: a composition's routers alone (DUME+), its weights (BTX), its coefficients, or an expert from its base."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
