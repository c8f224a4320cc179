"""The routed model, whose experts keep the softmax over all of them. Written by expert-registry; Apache-2.0."""

from torch import nn

from .modeling_routed import LAYERS, RoutedForCausalLM, RoutedMLP


class SoftmaxTopKMLP(RoutedMLP):
    """A routed MLP whose weights need not add up to 1; its router has a bias (E,) where `router_bias` is true."""

    norm_topk_prob = False

    def __init__(self, mlp, config):
        """Make the router and the experts, without their weights."""
        super().__init__(mlp, config)
        self.gate = nn.Linear(config.hidden_size, config.num_local_experts, bias=config.router_bias)

    def choose(self, logits):
        """Return the weights of each token's experts and their numbers, both (T, k), of router logits (T, E) float32.

        The k largest of the softmax over all logits choose and weigh: what is left out is missing from the sum.
        """
        return logits.softmax(dim=-1).topk(self.top_k, dim=-1)


class SoftmaxTopKForCausalLM(RoutedForCausalLM):
    """The dense model with such MLPs."""

    def __init__(self, config):
        """Make the routed model, and put such an MLP in the place of each routed one."""
        super().__init__(config)
        for layer in self.get_submodule(LAYERS):
            layer.mlp = SoftmaxTopKMLP(layer.mlp.experts[0], config)
