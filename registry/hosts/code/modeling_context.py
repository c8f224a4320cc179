"""The routed model, routed by the text so far instead of the stream. Written by expert-registry; Apache-2.0.

`evidence` says of each token how much likelier each expert's text is to have it. The logits of a token's routers, the
same in every layer, are `context_sharpness` times the mean evidence of the tokens up to it, the one D tokens back with
weight exp(-D / context_window), or all alike where `context_window` is 0. Where `context_fast` is not 0, a second mean
f with that window notices what has just begun. By how much f[e] exceeds thresholds[e, e] counts `context_alarm` times
for expert e, and by how much f[n] - f[e] exceeds thresholds[e, n], for any other n, as often against it. Nothing of it
is trained.

Where `head_maps` is true, each expert has a linear map in front of the shared head, which brings it near the expert's
own: the last norm gets x + s (M n + v), with n = x / s the stream, s its size, and v zero unless the norm has a bias.
Its experts are those of the token, with the same weights.

Masked tokens are no evidence, and distances leave them out. What a cache holds beside keys and values is one layer more
(`RunningEvidence`), which the cache reorders, crops and repeats as it does the others.

Shapes, besides those of the routed model: W windows, 1 or 2; V tokens of the vocabulary.
"""

import inspect

import torch
from torch import nn
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer
from transformers.modeling_outputs import CausalLMOutputWithPast

from .modeling_routed import LAYERS, RoutedConfig, RoutedForCausalLM, RoutedMLP

# The name of a cache in calls and outputs: transformers 5.24 calls `cache` what was `past_key_values`.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
CHUNK = 256  # tokens that are weighed against one another at once


class ContextConfig(RoutedConfig):
    """The routed configuration with `context_…` (`window`, `fast`, `alarm`, `sharpness`) and `head_maps`."""


class ContextGate(nn.Module):
    """A router whose `logits`, (T, E), are known before the layers run: the model sets them in each call.

    Args:
        experts: E.
    """

    def __init__(self, experts):
        """Make a router without logits yet."""
        super().__init__()
        self.out_features = experts
        self.logits = None

    def forward(self, tokens):
        """Return the logits, (T, E), on the device of the tokens, (T, H), whose values do not matter."""
        return self.logits.to(tokens.device)


class RunningEvidence(DynamicLayer):
    """Weighed sums of the text up to each token, in each window, as if they were keys and values of a layer.

    Keys are sums of evidence, (B, W, S, E), values sums of ones, (B, W, S, 1); a mean is the one over the other.
    """


class ContextRoutedForCausalLM(RoutedForCausalLM):
    """The dense model with MLPs that are routed by the text so far.

    `evidence` is (V, E), `thresholds` (E, E), both float32: those of `thresholds[e]` are for expert e.
    """

    config_class = ContextConfig
    supports_gradient_checkpointing = False  # layers that run again would find the logits of a later text

    def __init__(self, config):
        """Make the routed model, and have it routed before its decoder runs."""
        super().__init__(config)
        self.register_buffer("evidence", torch.zeros(config.vocab_size, config.num_local_experts))
        self.register_buffer("thresholds", torch.zeros(config.num_local_experts, config.num_local_experts))
        self._keep_in_fp32_modules_strict = {"evidence", "thresholds"}
        for layer in self.get_submodule(LAYERS):
            layer.mlp.gate = ContextGate(config.num_local_experts)
        if config.head_maps:
            norm = next(module for name, module in self.base_model.named_children() if "norm" in name)
            biased = getattr(norm, "bias", None) is not None
            self.head_maps = RoutedMLP(nn.Linear(config.hidden_size, config.hidden_size, bias=biased), config)
            self.head_maps.gate = ContextGate(config.num_local_experts)
            norm.register_forward_pre_hook(self._map)
        self.base_model.register_forward_pre_hook(self._route, with_kwargs=True)

    @torch.no_grad()
    def _route(self, decoder, args, kwargs):
        """Give every router its logits, from the ids that the decoder is called with, and the decoder a cache.

        It is a hook of the decoder, since that gets the ids, the mask and the cache in every way of calling the model.

        Args:
            decoder: the decoder.
            args, kwargs: of its call, with `input_ids`, (B, S), and an attention mask of (B, P + S), P tokens in the
                cache.

        Returns:
            The arguments to call it with instead, all by their names.
        """
        kwargs = dict(zip(inspect.signature(decoder.forward).parameters, args, strict=False)) | kwargs
        if CACHE not in kwargs and "past_key_values" in kwargs:
            kwargs[CACHE] = kwargs.pop("past_key_values")
        ids, mask, cache = (kwargs.get(name) for name in ("input_ids", "attention_mask", CACHE))
        if ids is None:
            raise ValueError("this model takes input_ids, not inputs_embeds: it is routed by its tokens")
        if cache is not None and (not isinstance(cache, Cache) or cache.is_compileable):
            raise ValueError("this model takes a cache that grows, such as DynamicCache(), and no static one")
        if mask is not None and getattr(mask, "ndim", None) != 2:
            raise ValueError("this model takes an attention mask of (batch, tokens)")
        use_cache = kwargs.get("use_cache")
        if cache is None and (self.config.use_cache if use_cache is None else use_cache):
            cache = kwargs[CACHE] = DynamicCache(config=self.config)
        real = torch.ones_like(ids) if mask is None else mask[:, -ids.shape[1] :].to(ids.device) != 0
        sums = self._sums(ids, real, None if cache is None else self._state(cache))
        means = sums[..., :-1] / sums[..., -1:].clamp(min=torch.finfo(sums.dtype).tiny)
        scores = means[:, 0]  # of (B, W, S, E), the slow window
        if self.config.context_fast:
            scores = scores + self.config.context_alarm * self._noticed(means[:, 1])
        logits = (scores * self.config.context_sharpness).float().flatten(0, 1)  # (T, E)
        for layer in self.get_submodule(LAYERS):
            layer.mlp.gate.logits = logits
        if self.config.head_maps:
            self.head_maps.gate.logits = logits
        return (), kwargs

    def _noticed(self, fast):
        """Return what speaks for and against each expert beyond the thresholds, (B, S, E).

        Args:
            fast: the means of the fast window, (B, S, E).
        """
        every = []  # for each expert (B, S)
        for e, thresholds in enumerate(self.thresholds.to(fast)):
            behind = (fast - fast[..., e : e + 1] - thresholds).clamp(min=0)  # the others' lead, (B, S, E)
            behind[..., e] = 0
            every.append((fast[..., e] - thresholds[e]).clamp(min=0) - behind.sum(dim=-1))
        return torch.stack(every, dim=-1)

    def _map(self, norm, args):
        """Add the head map of each token's experts to the stream x, (B, S, H), that the last norm gets.

        Args:
            norm: the last norm.
            args: of its call, the stream first; they are returned with the changed stream.
        """
        stream, *others = args
        exact = stream.to(torch.promote_types(stream.dtype, torch.float32))
        # (B, S, 1), as a norm computes it
        variance = exact.var(dim=-1, correction=0, keepdim=True) + getattr(norm, "eps", 1e-6)
        size = variance.sqrt().to(stream.dtype)  # any size would do if v is zero; with n, 16 bits hold what maps add
        return stream + size * self.head_maps(stream / size).to(stream.device), *others

    def _state(self, cache):
        """Return the last layer of a cache, which holds running evidence; a cache that is still empty gets it."""
        state = next((layer for layer in cache.layers if isinstance(layer, RunningEvidence)), None)
        if state is None:
            if cache.get_seq_length():
                raise ValueError("this cache is of another model: start with an empty one")
            while len(cache.layers) < self.config.num_hidden_layers:  # a cache that adds layers when they are used
                cache.layers.append(cache.layer_class_to_replicate())
            state = RunningEvidence()
            cache.layers.append(state)
        return state

    def _sums(self, ids, real, state):
        """Return the weighed sums up to each token, of evidence and then of ones, (B, W, S, E + 1), and keep them.

        With a(t) the tokens up to t over the window, token s counts exp(a(s) - a(t)) at token t, so that the sum is the
        one at the token before times exp(-1 / window), plus what is new. In chunks of tokens that is one product of
        matrices and the sum at the end of the chunk before, which makes its cost grow with the text alone.

        Args:
            ids: the new tokens, (B, S).
            real: which of them are no padding, (B, S) bool.
            state: of `_state`; None without a cache.
        """
        exact = torch.float32 if ids.device.type == "mps" else torch.float64
        real = real.to(exact)
        added = torch.cat(
            [self.evidence[ids.to(self.evidence.device)].to(real) * real[..., None], real[..., None]], dim=-1
        )  # (B, S, E + 1)
        windows = [self.config.context_window, *([self.config.context_fast] if self.config.context_fast else [])]
        pasts = torch.zeros_like(added[:, :1]).expand(-1, len(windows), -1)  # (B, W, E + 1)
        if state is not None and state.get_seq_length():
            pasts = torch.cat([state.keys[:, :, -1], state.values[:, :, -1]], dim=-1)
        every = []
        for number, window in enumerate(windows):
            past, rate, sums = pasts[:, number], 1 / window if window else 0.0, []
            for new, counted in zip(added.split(CHUNK, dim=1), real.split(CHUNK, dim=1), strict=True):
                age = rate * counted.cumsum(dim=1)  # (B, n), n tokens of a chunk
                weights = (
                    (age[:, None, :] - age[:, :, None]).clamp(max=0).exp().tril()
                )  # of token s at token t, (B, n, n)
                sums.append(weights @ new + (-age).exp()[..., None] * past[:, None])
                past = sums[-1][:, -1]
            every.append(torch.cat(sums, dim=1))
        sums = torch.stack(every, dim=1)
        if state is not None:
            state.update(sums[..., :-1], sums[..., -1:])
        return sums
