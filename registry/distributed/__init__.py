"""Work on a Ray cluster: steps of tasks that may run twice, with progress, interrupts and errors as in one process."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
