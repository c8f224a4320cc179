"""The mathematics, pure: torch and the standard library, no file, database or model.

Symbols: H hidden size, E experts, T tokens, `lam` the strength λ of damping, `k` experts per token.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
