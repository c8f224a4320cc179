"""Storage: content-addressed arrays (zarr) and the catalog of the versions that use them (SQL).

This package handles names, digests, arrays and rows. It knows nothing of Gram matrices, routers or models.
"""
