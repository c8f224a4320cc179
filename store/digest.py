"""Digests: SHA-256 over bytes that mean the same thing everywhere."""

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> str:
    """Return the one JSON text of `value`: sorted keys, no white space, ASCII, no NaN.

    Raises:
        ValueError: if `value` holds a number that JSON cannot carry.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def json_digest(value: Any) -> str:
    """Return the SHA-256 (64 hexadecimal digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()
