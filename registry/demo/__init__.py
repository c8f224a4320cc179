"""A whole session: text that any machine has, a tiny base model, three experts, and every promise shown."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
