"""Training of a composed mixture: its expert MLPs, or all of its weights."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
