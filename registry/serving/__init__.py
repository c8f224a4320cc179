"""HTTP servers beside the pages: a Hub of the registry's models, and a gateway that picks the adapter of a prompt."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
