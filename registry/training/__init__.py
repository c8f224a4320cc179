"""Training: the routers of a composition alone (DUME+), its weights (BTX), or an expert from its base model."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
