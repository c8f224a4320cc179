"""The routed model, whose experts keep the softmax over all of them. Written by expert-registry; Apache-2.0."""

import torch
from torch import nn

from .modeling_routed import LAYERS, RoutedForCausalLM, RoutedMLP


class SoftmaxTopKMLP(RoutedMLP):
    """A routed MLP: the k largest of the softmax over all logits choose and weigh, and need not add up to 1."""

    norm_topk_prob = False

    def __init__(self, mlp, config):
        super().__init__(mlp, config)
        self.gate = nn.Linear(config.hidden_size, config.num_local_experts, bias=config.router_bias)

    def forward(self, hidden_states):
        tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
        weights, chosen = self.gate(tokens).float().softmax(dim=-1).topk(self.top_k, dim=-1)
        weights = weights.to(tokens.dtype)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if len(token):
                mixed.index_add_(0, token, expert(tokens[token]) * weights[token, place].unsqueeze(-1))
        return mixed.reshape(hidden_states.shape)


class SoftmaxTopKForCausalLM(RoutedForCausalLM):
    """The dense model with such MLPs, whose routers have a bias where `router_bias` is true."""

    def __init__(self, config):
        super().__init__(config)
        for layer in self.get_submodule(LAYERS):
            layer.mlp = SoftmaxTopKMLP(layer.mlp.experts[0], config)
