"""OLMo 2 → FlexOlmo, bit for bit: norms follow attention and MLP, so the MLP input is the residual stream."""

from typing import ClassVar

from registry.families.family import Family, ResidualStream, Shapes, Translation, attention_shapes, norm_shapes
from registry.hosts.architecture import Architecture
from registry.hosts.flex_olmo import FLEX_OLMO


class Olmo2(Family):
    """OLMo 2."""

    model_type = "olmo2"
    class_name = "Olmo2ForCausalLM"
    special_tokens = (None, 50279, 1)
    defaults = {
        "attention_bias": False,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    options: ClassVar[tuple[str, ...]] = ("attention_bias", "rms_norm_eps")

    def trunk_layer(self, architecture: Architecture) -> Shapes:
        """Return the shapes of one layer's trunk tensors, including the norms over all queries and all keys."""
        heads, keys, size = (
            architecture.num_attention_heads,
            architecture.num_key_value_heads,
            architecture.head_dim,
        )
        return {
            **attention_shapes(architecture, bias="qkvo" if architecture.options["attention_bias"] else ""),
            **norm_shapes(architecture, "self_attn.q_norm", size=heads * size),
            **norm_shapes(architecture, "self_attn.k_norm", size=keys * size),
            **norm_shapes(architecture, "post_attention_layernorm", "post_feedforward_layernorm"),
        }

    def attention_input(self, architecture: Architecture) -> ResidualStream:
        """Return the residual stream."""
        return ResidualStream()

    def residual(self, architecture: Architecture) -> None:
        """Return None: attention and MLP are followed by norms."""

    def mlp_input(self, architecture: Architecture) -> ResidualStream:
        """Return the residual stream."""
        return ResidualStream()

    def translations(self, architecture: Architecture) -> list[Translation]:
        """Return FlexOlmo."""
        return [Translation(FLEX_OLMO, architecture, self.unchanged(architecture))]


OLMO2 = Olmo2()
