"""Checkpoints: Hugging Face folders, Hub repositories and adapters as untrusted input, checked from their headers.

torch is loaded only when a weight is read, so that a checkpoint that cannot be registered is refused at once.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
