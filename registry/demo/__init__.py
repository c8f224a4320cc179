"""A demonstration on local text: a tiny base model, three experts, and all guarantees checked."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
