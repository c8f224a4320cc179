"""Composition of experts by a recipe, into a folder that plain transformers loads: what every method shares."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
