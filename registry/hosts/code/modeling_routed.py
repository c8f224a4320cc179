"""A dense language model whose MLPs are experts behind a linear router. Written by expert-registry; Apache-2.0.

Attention, norms, embeddings, caching and generation are those of the dense class; only each layer's MLP is replaced.

Shapes: B sequences of S tokens, T = B * S tokens row by row, H hidden size, E experts, k experts per token.
"""

import copy

import torch
from torch import nn
from transformers import LlamaForCausalLM as DenseForCausalLM

LAYERS = "model.layers"


class RoutedMLP(nn.Module):
    """E copies of a layer's MLP and a router, a linear map (E, H).

    Args:
        mlp: the dense layer's MLP, which becomes the first expert.
        config: gives H, E and k.
    """

    def __init__(self, mlp, config):
        """Make the router and the experts, without their weights."""
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.gate = nn.Linear(config.hidden_size, config.num_local_experts, bias=False)
        self.experts = nn.ModuleList([mlp] + [copy.deepcopy(mlp) for _ in range(1, config.num_local_experts)])

    def choose(self, logits):
        """Return the weights of each token's experts and their numbers, both (T, k), of router logits (T, E) float32.

        The k largest logits choose, and their softmax weighs, so that the weights of a token add up to 1.
        """
        largest, chosen = logits.topk(self.top_k, dim=-1)
        return largest.softmax(dim=-1), chosen

    def forward(self, hidden_states):
        """Return the weighed sum of the outputs of each token's experts, (B, S, H), of their inputs, (B, S, H)."""
        tokens = hidden_states.reshape(-1, hidden_states.shape[-1])  # (T, H)
        weights, chosen = self.choose(self.gate(tokens).float())
        weights = weights.to(tokens.dtype)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, rank = (chosen == number).nonzero(as_tuple=True)  # its tokens, and how they rank it: (n,) each
            if len(token):
                mixed.index_add_(0, token, expert(tokens[token]) * weights[token, rank].unsqueeze(-1))
        return mixed.reshape(hidden_states.shape)


class RoutedConfig(DenseForCausalLM.config_class):
    """The dense configuration with `num_local_experts` and `num_experts_per_tok`."""

    model_type = "routed_" + DenseForCausalLM.config_class.model_type


class RoutedForCausalLM(DenseForCausalLM):
    """The dense model with routed MLPs."""

    config_class = RoutedConfig

    def __init__(self, config):
        """Make the dense model, and put a `RoutedMLP` in the place of each layer's MLP."""
        super().__init__(config)
        for layer in self.get_submodule(LAYERS):
            layer.mlp = RoutedMLP(layer.mlp, config)
