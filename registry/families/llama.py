"""Llama → Mixtral, bit for bit: rope of any scaling, tied or not, any head size."""

from typing import Any

from registry.families.family import Family, attention_shapes
from registry.hosts.mixtral import MIXTRAL


def _refusal(config: Any) -> str | None:
    if config.mlp_bias:
        return "its MLPs have biases (mlp_bias), and no native host has expert biases"
    if config.attention_bias:
        return "its attention has biases (attention_bias), which mixtral cannot hold"
    return None


LLAMA = Family("llama", MIXTRAL, attention_shapes, _refusal)
