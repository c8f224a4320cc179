"""Statistics of one expert: the forward pass that collects them, their file and their cache."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
