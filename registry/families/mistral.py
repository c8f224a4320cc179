"""Mistral → Mixtral, bit for bit, its one sliding window included."""

from typing import Any

from registry.families.family import Family, attention_shapes
from registry.hosts.mixtral import MIXTRAL


def _refusal(config: Any) -> str | None:
    return None


MISTRAL = Family("mistral", MIXTRAL, attention_shapes, _refusal)
