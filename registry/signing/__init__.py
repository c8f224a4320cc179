"""Signatures of composed folders and receipts: `reg sign`, and their verification without a registry."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
