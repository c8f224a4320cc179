"""Router methods: one file a method, one line a method in `ROUTERS`."""

from registry.maths.router.ridge import ridge

ROUTERS = {"ridge": ridge}
"""Name in a recipe → the function that makes one layer's gate."""

__all__ = ["ROUTERS"]
