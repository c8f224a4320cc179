"""A dense language model whose MLPs are experts behind a linear router. Written by expert-registry; Apache-2.0.

Attention, norms, embeddings, caching and generation are those of the dense class; only each layer's MLP is replaced.
"""

import copy

import torch
from torch import nn
from transformers import LlamaForCausalLM as DenseForCausalLM

LAYERS = "model.layers"


class RoutedMLP(nn.Module):
    """E copies of a layer's MLP and a router: the k largest of its logits choose, their softmax weighs."""

    def __init__(self, mlp, config):
        super().__init__()
        self.top_k = config.num_experts_per_tok
        self.gate = nn.Linear(config.hidden_size, config.num_local_experts, bias=False)
        self.experts = nn.ModuleList([mlp] + [copy.deepcopy(mlp) for _ in range(1, config.num_local_experts)])

    def forward(self, hidden_states):
        tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
        logits, chosen = self.gate(tokens).float().topk(self.top_k, dim=-1)
        weights = logits.softmax(dim=-1).to(tokens.dtype)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if len(token):
                mixed.index_add_(0, token, expert(tokens[token]) * weights[token, place].unsqueeze(-1))
        return mixed.reshape(hidden_states.shape)


class RoutedConfig(DenseForCausalLM.config_class):
    """The dense configuration with `num_local_experts` and `num_experts_per_tok`."""

    model_type = "routed_" + DenseForCausalLM.config_class.model_type


class RoutedForCausalLM(DenseForCausalLM):
    """The dense model with routed MLPs."""

    config_class = RoutedConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.get_submodule(LAYERS):
            layer.mlp = RoutedMLP(layer.mlp, config)
