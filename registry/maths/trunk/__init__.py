"""Mathematics of trunk methods: the members' tensors of one name become one, in rows of float64."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
