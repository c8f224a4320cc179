"""Dense families: one file a family, one line a family in `table.py`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
