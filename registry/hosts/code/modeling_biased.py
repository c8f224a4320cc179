"""The routed model, whose routers have a bias. Written by expert-registry; Apache-2.0."""

from torch import nn

from .modeling_routed import LAYERS, RoutedForCausalLM


class BiasedRoutedForCausalLM(RoutedForCausalLM):
    """The dense model with routed MLPs, whose router logits are those of a linear map (E, H) plus a bias (E,)."""

    def __init__(self, config):
        """Make the routed model, with routers that have a bias."""
        super().__init__(config)
        for layer in self.get_submodule(LAYERS):
            layer.mlp.gate = nn.Linear(config.hidden_size, config.num_local_experts, bias=True)
