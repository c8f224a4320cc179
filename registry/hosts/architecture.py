"""The part of a dense model's configuration that determines its function, under Hugging Face's names."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """The sizes and switches of a decoder.

    Attributes:
        rope_parameters: in the form of transformers 5, with `rope_type` and `rope_theta`; by layer type if the family
            has several.
        options: the other keys that determine the function of this family (`Family.options`).
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    hidden_act: str
    rope_parameters: dict[str, Any]
    tie_word_embeddings: bool
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def checked(cls, values: Mapping[str, Any], options: dict[str, Any]) -> "Architecture":
        """Return the architecture whose fields are among untrusted values (ValueError: one that no model can have)."""
        for name in SIZES:
            size = values[name]
            if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size < 2**31:
                raise ValueError(f"{name} is {size!r}, not a positive integer")
        if values["num_attention_heads"] % values["num_key_value_heads"]:
            heads = f"{values['num_attention_heads']} attention heads cannot share"
            raise ValueError(f"{heads} {values['num_key_value_heads']} heads of keys and values")
        for name, kind in (("hidden_act", str), ("rope_parameters", dict), ("tie_word_embeddings", bool)):
            if not isinstance(values[name], kind):
                raise ValueError(f"{name} is {values[name]!r}, not a {kind.__name__}")
        return cls(
            **{name: values[name] for name in cls.__dataclass_fields__ if name in values and name != "options"},
            options=options,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a document; `Architecture(**document)` reads it."""
        return asdict(self)

    def with_options(self, **options: Any) -> "Architecture":
        """Return this architecture with some options added or changed."""
        return replace(self, options=self.options | options)

    def differences(self, other: "Architecture", *, apart_from: Collection[str] = ()) -> list[str]:
        """Return one line for each field in which `other` differs: `hidden_size: 256 against 512`."""
        a, b = ({**architecture.to_dict(), **architecture.options} for architecture in (self, other))
        return [
            f"{name}: {a.get(name)} against {b.get(name)}"
            for name in sorted(a.keys() | b.keys())
            if name != "options" and name not in apart_from and a.get(name) != b.get(name)
        ]


SIZES = tuple(name for name, kind in Architecture.__annotations__.items() if kind is int)
"""The fields that are positive integers."""
