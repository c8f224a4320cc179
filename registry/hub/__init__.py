"""Publishing composed folders, and experts with their statistics, on the Hugging Face Hub.

An upload becomes one commit or none, and the commit is compared with the files that were sent.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
