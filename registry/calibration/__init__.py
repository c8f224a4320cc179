"""Calibration: the tokens that statistics are collected on, from text, from chats, or from the expert itself."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
