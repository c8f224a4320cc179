"""Digests: SHA-256 over bytes that are the same on every machine."""

import json
import re
from typing import Any

_DIGEST = re.compile("[0-9a-f]{64}")


def is_digest(value: object) -> bool:
    """Tell whether a value is a SHA-256 in lower-case hexadecimal digits."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def canonical_json(value: Any) -> str:
    """Return the canonical JSON of `value`: sorted keys, no white space, ASCII (ValueError: it has NaN or infinity)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def json_digest(value: Any) -> str:
    """Return the SHA-256 (64 hexadecimal digits) of the canonical JSON of `value`."""
    import hashlib  # loads OpenSSL, which commands that print help do without

    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()
