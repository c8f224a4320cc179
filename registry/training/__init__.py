"""Training the routers of a composition, and nothing else of it: what DUME calls DUME+."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
