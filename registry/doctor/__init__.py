"""Diagnosis of any model folder: independent checks of files, weights and behaviour, and the next command to type."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
