"""Publishing on the Hub: composed folders, and experts with their statistics.

What is uploaded appears in one commit or not at all, and is compared with what was to arrive.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
