"""StableLM: norms with biases, which no native host combines with a plain router."""

from registry.families.family import Family, NormOutput, Shapes, attention_shapes, norm_shapes
from registry.hosts.architecture import Architecture


class StableLM(Family):
    """StableLM 3B, StableLM 2."""

    model_type = "stablelm"
    class_name = "StableLmForCausalLM"
    special_tokens = (0, 0, None)
    defaults = {
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "num_key_value_heads": 32,
        "partial_rotary_factor": 0.25,
        "qk_layernorm": False,
        "use_parallel_residual": False,
        "use_qkv_bias": False,
    }
    options = ("layer_norm_eps", "qk_layernorm", "use_parallel_residual", "use_qkv_bias")
    free_head_dim = False
    attention_norm = NormOutput("input_layernorm", bias=True)
    last_norm = NormOutput("model.norm", bias=True, centred=True)
    refused = "its norms have biases, which no native host has beside a plain router"

    def outer_shapes(self, architecture: Architecture) -> Shapes:
        shapes = super().outer_shapes(architecture)
        bias = shapes.pop("model.norm.bias")  # the last in the files of its compositions
        return shapes | {"model.norm.bias": bias}

    def trunk_layer(self, architecture: Architecture) -> Shapes:
        options = architecture.options
        norms = ["input_layernorm", *([] if options["use_parallel_residual"] else ["post_attention_layernorm"])]
        shapes = attention_shapes(architecture, bias="qkv" if options["use_qkv_bias"] else "")
        shapes |= norm_shapes(architecture, *norms, bias=True)
        if options["qk_layernorm"]:
            heads = {"q": architecture.num_attention_heads, "k": architecture.num_key_value_heads}
            names = [f"self_attn.{letter}_layernorm.norms.{n}" for letter, count in heads.items() for n in range(count)]
            shapes |= norm_shapes(architecture, *names, size=architecture.head_dim)
        return shapes

    def mlp_input(self, architecture: Architecture) -> NormOutput:
        """Return the norm, which has a bias: the layer's only one if attention and MLP are parallel."""
        parallel = architecture.options["use_parallel_residual"]
        return NormOutput("input_layernorm" if parallel else "post_attention_layernorm", bias=True)
