"""Schemes of few bits."""

SCHEMES = {"w4a16": 4, "w8a16": 8}
"""Scheme → bits of a weight; activations stay as they are."""

GROUPS = (128, 64, 32)
"""Columns that have a scale of their own: the most that divide every matrix."""
