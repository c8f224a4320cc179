"""Low-rank experts as they were trained, on a base model that nobody changes: `--to adapters`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
