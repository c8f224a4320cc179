"""Evaluating: perplexity and normalised score per domain, routing, cost, methods side by side, continual learning."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
