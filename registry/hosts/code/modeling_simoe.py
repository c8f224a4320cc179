"""A dense model between experts that share one change of its weights. Written by expert-registry; Apache-2.0.

Every linear layer of attention and MLPs has beside its weight W a matrix D, and each expert m a mask z_m of the layer's
outputs (SIMoE, Chen et al. 2025). A sequence has its own weights α of the experts, and the layer gives it

    y = W x + b + g * (D x),  g = sum_m α_m z_m.

α is the softmax of the products of the router's rows with the mean embedding of the sequence's first
`config.prompt_tokens` tokens. Logits at those tokens but the last come from equal weights of all experts, so that the
probability of a token never depends on tokens after it; from the last of them on, the whole sequence has the weights α.
So a call that holds the end of a prompt runs twice on the prompt, unless logits are asked for after it alone, and a
cache that was filled before is filled again. Masked tokens do not count. All this goes with caches, padding, batches
and beams; token ids and an attention mask of (batch, tokens) are needed.
"""

import torch
from torch import nn
from transformers import DynamicCache
from transformers import LlamaForCausalLM as DenseForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

# The name of a cache in calls and outputs, which is `cache` since transformers 5.24.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class SimoeConfig(DenseForCausalLM.config_class):
    """The dense configuration with the members' names, `prompt_tokens` and the names of the layers that have a D."""

    model_type = "simoe_" + DenseForCausalLM.config_class.model_type


class InterpolatedLinear(nn.Linear):
    """A linear layer with a matrix D beside its weight; `gates` are g of each sequence, (B, outputs)."""

    def __init__(self, like):
        super().__init__(like.in_features, like.out_features, bias=like.bias is not None, dtype=like.weight.dtype)
        self.delta = nn.Parameter(torch.zeros_like(self.weight))
        self.gates = None

    def forward(self, x):
        gates = self.gates.to(x.device)[:, None, :]
        return super().forward(x) + (gates * nn.functional.linear(x, self.delta)).to(x.dtype)


class SimoeCache(DynamicCache):
    """A cache with `rows`: what the tokens so far say of the weights, tensors with a row for each sequence."""

    def __init__(self, config):
        super().__init__(config=config)
        self.rows = {}

    def reset(self):
        super().reset()
        self.rows = {}

    def reorder_cache(self, beam_idx):
        super().reorder_cache(beam_idx)
        self.rows = {name: rows[beam_idx.to(rows.device)] for name, rows in self.rows.items()}

    def batch_select_indices(self, indices):
        super().batch_select_indices(indices)
        self.rows = {name: rows[indices] for name, rows in self.rows.items()}

    def batch_repeat_interleave(self, repeats):
        super().batch_repeat_interleave(repeats)
        self.rows = {name: rows.repeat_interleave(repeats, dim=0) for name, rows in self.rows.items()}

    def crop(self, tokens_to_remove):
        if tokens_to_remove:
            raise NotImplementedError("this cache cannot forget tokens: its weights may come from them")


class SimoeForCausalLM(DenseForCausalLM):
    """The dense model, its masks in bits and its router."""

    config_class = SimoeConfig
    supports_gradient_checkpointing = False  # layers that run again would find the gates of a later pass

    def __init__(self, config):
        super().__init__(config)
        self.interpolated = []
        for name in config.interpolated_layers:
            above, _, own = name.rpartition(".")
            layer = InterpolatedLinear(self.get_submodule(name))
            setattr(self.get_submodule(above), own, layer)
            self.interpolated.append(name)
        outputs = sum(self.get_submodule(name).out_features for name in self.interpolated)
        members = len(config.members)
        self.register_buffer("masks", torch.zeros(members, -(-outputs // 8), dtype=torch.uint8))
        self.router = nn.Parameter(torch.zeros(members, self.get_input_embeddings().weight.shape[1]))
        self._keep_in_fp32_modules_strict = {"router"}

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        logits_to_keep=0,
        **kwargs,
    ):
        """Return the logits of each sequence's own weights."""
        if input_ids is None or inputs_embeds is not None:
            raise ValueError("this model takes input_ids, not inputs_embeds: its weights come from its tokens")
        if attention_mask is not None and attention_mask.ndim != 2:
            raise ValueError("this model takes an attention mask of (batch, tokens), and makes its cache itself")
        kwargs.pop("cache_position", None)  # transformers 4 gives it, and finds it by itself
        given = kwargs.pop(CACHE, past_key_values)
        cache = self._cache(given, self.config.use_cache if use_cache is None else use_cache)
        rows = {} if cache is None else cache.rows
        columns = input_ids.shape[1]
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, -columns:]
        ids, places, real, scores, known, again = self._read(input_ids, position_ids, real != 0, cache, rows)
        earlier = ids.shape[1] - columns  # columns of former calls that run again
        if earlier:
            position_ids = places
        kept = torch.arange(columns, device=input_ids.device)
        kept = kept[-logits_to_keep:] if isinstance(logits_to_keep, int) else kept[logits_to_keep]
        if again:
            cache.layers = DynamicCache(config=self.config).layers
        self._mix(scores)
        output = super().forward(
            input_ids=ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=cache is not None,
            logits_to_keep=0 if len(kept) == ids.shape[1] else kept + earlier,
            return_dict=True,
            **{CACHE: cache},
            **kwargs,
        )
        early = known[:, -1:] & ~known & real  # in sequences whose prompt is complete by now
        if early[:, kept].any():
            width = int(early.any(dim=0).nonzero().max()) + 1 + earlier
            alike = self._alike(ids, attention_mask, position_ids, width, kwargs)
            chosen = early[:, kept].nonzero(as_tuple=True)
            from_alike = alike[chosen[0], (kept + earlier)[chosen[1]]]
            output.logits = output.logits.index_put(chosen, from_alike.to(output.logits))
        setattr(output, CACHE, cache)  # None is left out
        if labels is not None:
            output.loss = self.loss_function(
                logits=output.logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs
            )
        return output

    def _alike(self, ids, attention_mask, position_ids, width, kwargs):
        """Return the logits of the first columns with equal weights of all experts."""
        self._mix(self.router.new_zeros(len(ids), len(self.router)))
        output = super().forward(
            input_ids=ids[:, :width],
            attention_mask=None if attention_mask is None else attention_mask[:, :width],
            position_ids=None if position_ids is None else position_ids[..., :width],
            use_cache=False,
            return_dict=True,
            **{name: value for name, value in kwargs.items() if not name.startswith("output_")},
        )
        return output.logits

    def _cache(self, given, wanted):
        """Return the cache to go on with; one that `generate` made for another model, still empty, is replaced."""
        if isinstance(given, SimoeCache):
            return given
        if given is not None and given.get_seq_length():
            raise ValueError("this cache is of another model: leave it out, this one makes its own")
        return SimoeCache(self.config) if wanted else None

    def _read(self, input_ids, position_ids, real, cache, rows):
        """Return what to run on, and the weights.

        That is the ids, their positions, which of the new columns are real, the scores of each sequence, at which new
        columns its prompt is complete, and whether former columns run again.

        `rows` holds, for each sequence, its number of tokens and its scores, and while a prompt is incomplete all ids,
        their positions, and which are real.
        """
        needed, batch = self.config.prompt_tokens, len(input_ids)
        count = rows.get("count", input_ids.new_zeros(batch))
        scores = rows.get("scores", self.router.new_zeros(batch, len(self.router), dtype=torch.float32))
        rank = count.unsqueeze(1) + real.cumsum(dim=1)
        known = rank >= needed
        new = (count < needed) & known[:, -1]
        if position_ids is None:
            start = 0 if cache is None else cache.get_seq_length()
            positions = torch.arange(start, start + input_ids.shape[1], device=input_ids.device)
        else:
            positions = position_ids
        every = {"ids": input_ids, "real": real, "places": positions.reshape(-1, input_ids.shape[1]).expand_as(real)}
        if "ids" in rows:
            every = {name: torch.cat([rows[name], value], dim=1) for name, value in every.items()}
        if new.any():
            prompt = every["real"] & (every["real"].cumsum(dim=1) <= needed)
            width = int(prompt[new].any(dim=0).nonzero().max()) + 1
            embedded = self.get_input_embeddings()(every["ids"][:, :width]).float()
            counted = prompt[:, :width].to(embedded.device).float().unsqueeze(2)
            mean = (embedded * counted).sum(dim=1) / needed
            found = nn.functional.linear(mean, self.router.to(mean.device, torch.float32))
            scores = torch.where(new.unsqueeze(1).to(found.device), found, scores.to(found.device))
        again = bool(new.any()) and "ids" in rows
        for name in every:
            rows.pop(name, None)
        rows.update(count=rank[:, -1], scores=scores)
        if (rank[:, -1] < needed).any():
            rows.update(every)
        self._weigh(scores.unsqueeze(1).expand(-1, real.shape[1], -1), known)
        ids, places = (every["ids"], every["places"]) if again else (input_ids, None)
        return ids, places, real, scores, known, again

    def _weigh(self, scores, known):
        """Return the log weights at each token (B, S, E), those that predict the token after it."""
        return torch.where(known.unsqueeze(-1).to(scores.device), scores, 0.0).log_softmax(dim=-1)

    def _mix(self, scores):
        """Give every layer the gates of each sequence."""
        alpha = scores.float().softmax(dim=-1).to(self.masks.device)
        bits = torch.arange(8, dtype=torch.uint8, device=self.masks.device)
        masks = ((self.masks.unsqueeze(-1) >> bits) & 1).flatten(1).to(alpha)
        gates, start = alpha @ masks, 0
        for name in self.interpolated:
            layer = self.get_submodule(name)
            layer.gates = gates[:, start : start + layer.out_features].to(layer.weight.dtype)
            start += layer.out_features
