"""Storage: content-addressed arrays (zarr) and the catalog of who they belong to (SQL).

This package holds names, digests, arrays and rows. It knows no Gram, no router and no model.
"""
