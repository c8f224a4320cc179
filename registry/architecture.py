"""What of a dense model's configuration decides its function, in Hugging Face's own words."""

from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """The sizes and switches of a decoder. Every field must agree among the members of a composition."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    hidden_act: str
    rms_norm_eps: float
    rope_parameters: dict[str, Any]
    tie_word_embeddings: bool
    attention_bias: bool = False
    sliding_window: int | None = None

    @classmethod
    def from_config(cls, config: Any) -> "Architecture":
        """Read a transformers configuration object; what it does not have keeps the default.

        Raises:
            ValueError: a size is not a positive integer.
        """
        values = {
            field.name: getattr(config, field.name)
            for field in fields(cls)
            if getattr(config, field.name, None) is not None
        }
        architecture = cls(**values)
        for name in _SIZES:
            if not isinstance(size := getattr(architecture, name), int) or size < 1:
                raise ValueError(f"{name} is {size!r}, not a positive integer")
        return architecture

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a document; `Architecture(**document)` is the way back."""
        return asdict(self)

    def differences(self, other: "Architecture") -> list[str]:
        """Return one line for each field in which `other` differs: `hidden_size: 256 against 512`."""
        mine, theirs = self.to_dict(), other.to_dict()
        return [f"{name}: {mine[name]} against {theirs[name]}" for name in mine if mine[name] != theirs[name]]


_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
)
