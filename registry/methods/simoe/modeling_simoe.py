"""A dense model between experts that share one change of its weights. Written by expert-registry; Apache-2.0.

Every linear layer of attention and MLPs has beside its weight W a matrix D, and each expert m a mask z_m of the layer's
outputs (SIMoE, Chen et al. 2025). A sequence has its own weights α of the experts, and the layer gives it

    y = W x + b + g * (D x),  g = sum_m α_m z_m.

Where no expert's mask opens an output, g is 0, so that row of D is left out, of weights and products alike. The masks
themselves tell which rows are there.

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

from registry.hosts.code.modeling_sequences import CACHE, RowsCache, SequenceModel


class SimoeConfig(DenseForCausalLM.config_class):
    """The dense configuration with what the experts add.

    `members` are their names, `interpolated_layers` the layers beside whose weight a D may be, `interpolated_rows` how
    many rows are kept of each one's D, and `prompt_tokens` how many first tokens decide a sequence's weights.
    """

    model_type = "simoe_" + DenseForCausalLM.config_class.model_type


class InterpolatedLinear(nn.Linear):
    """A linear layer of I inputs and O outputs, and K rows of its D: `delta`, (K, I), of the outputs that masks open.

    The model gives it two tensors before each run: `rows`, the numbers of these outputs, in order, (K,) int64; and
    `gates`, g of each sequence at them, (B, K).

    Args:
        like: the linear layer in whose place it stands.
        count: K, from 0 to O; of no row there is no `delta`.
    """

    def __init__(self, like, count):
        """Make the weights, with no value yet; D is 0."""
        super().__init__(like.in_features, like.out_features, bias=like.bias is not None, dtype=like.weight.dtype)
        self.delta = nn.Parameter(self.weight.new_zeros(count, like.in_features)) if count else None
        self.rows = self.gates = None

    def forward(self, x):
        """Return W x + b + g * (D x), (B, S, O), of x, (B, S, I): two products, whatever weights experts have."""
        y = super().forward(x)
        if self.delta is None:
            return y
        gates = self.gates.to(x.device)[:, None, :]  # (B, 1, K)
        change = gates * nn.functional.linear(x, self.delta)  # (B, S, K)
        return y.index_add_(-1, self.rows.to(x.device), change.to(y.dtype))  # change[..., k] goes to output rows[k]


class SimoeCache(RowsCache, DynamicCache):
    """Keys and values of the dense model, and what the tokens so far say of each sequence's weights."""

    def __init__(self, config):
        """Make an empty cache for a configuration."""
        super().__init__(config=config)
        self.rows = {}


class SimoeForCausalLM(SequenceModel, DenseForCausalLM):
    """The dense model, its masks in bits and its router.

    `masks` are all z_m, (E, R / 8) uint8, R the outputs of all layers, one after the other: bit i of byte j is output
    8 j + i. `router` is (E, H).
    """

    config_class = SimoeConfig
    cache_class = SimoeCache
    supports_gradient_checkpointing = False  # layers that run again would find the gates of a later pass
    needs_ids = "this model takes input_ids, not inputs_embeds: its weights come from its tokens"
    needs_mask = "this model takes an attention mask of (batch, tokens), and makes its cache itself"
    foreign_cache = "this cache is of another model: leave it out, this one makes its own"

    def __init__(self, config):
        """Make the dense model, and put an `InterpolatedLinear` in the place of each layer that has a D."""
        super().__init__(config)
        self.interpolated = []
        for name, count in zip(config.interpolated_layers, config.interpolated_rows, strict=True):
            above, _, own = name.rpartition(".")
            layer = InterpolatedLinear(self.get_submodule(name), count)
            setattr(self.get_submodule(above), own, layer)
            self.interpolated.append(name)
        self.outputs = sum(self.get_submodule(name).out_features for name in self.interpolated)  # R
        members = len(config.members)
        self.register_buffer("masks", torch.zeros(members, -(-self.outputs // 8), dtype=torch.uint8))
        self.router = nn.Parameter(torch.zeros(members, self.get_input_embeddings().weight.shape[1]))
        self._keep_in_fp32_modules_strict = {"router"}

    def _new_cache(self):
        """Return an empty cache."""
        return SimoeCache(self.config)

    def _answer(self, call):
        """Return the dense model's output by name, with the logits (B, K, V) of each sequence's own weights.

        The whole run has the weights that are known at its end. Where a prompt ends within it, the tokens before that
        end must not know them, so their logits come from a second run with equal weights.
        """
        cache, kept, new = call.cache, call.kept, call.ids.shape[1]
        ids, positions, scores, known, again = self._read(call, {} if cache is None else cache.rows)
        earlier = ids.shape[1] - new  # tokens of former calls that run again
        if again:
            cache.layers = DynamicCache(config=self.config).layers
        self._mix(scores)
        output = DenseForCausalLM.forward(
            self,
            input_ids=ids,
            attention_mask=call.mask,
            position_ids=positions,
            use_cache=cache is not None,
            logits_to_keep=0 if len(kept) == ids.shape[1] else kept + earlier,
            return_dict=True,
            **{CACHE: cache},
            **call.others,
        )
        logits = output.logits
        early = known[:, -1:] & ~known & call.real  # in sequences whose prompt is complete by now, (B, S)
        if early[:, kept].any():
            width = int(early.any(dim=0).nonzero().max()) + 1 + earlier
            alike = self._alike(call, ids, positions, width)
            sequence, place = early[:, kept].nonzero(as_tuple=True)
            from_alike = alike[sequence, (kept + earlier)[place]]
            logits = logits.index_put((sequence, place), from_alike.to(logits))
        return {name: value for name, value in output.items() if name != CACHE} | {"logits": logits}

    def _alike(self, call, ids, positions, width):
        """Return the logits of the first `width` of some tokens with equal weights of all experts, (B, width, V).

        Args:
            call: the call, whose mask goes over the same tokens as `ids`.
            ids: the tokens, (B, n).
            positions: of the tokens, (B, n) or (1, n), or None.
            width: at most n.
        """
        self._mix(self.router.new_zeros(len(ids), len(self.router)))
        return DenseForCausalLM.forward(
            self,
            input_ids=ids[:, :width],
            attention_mask=None if call.mask is None else call.mask[:, :width],
            position_ids=None if positions is None else positions[..., :width],
            use_cache=False,
            return_dict=True,
            **{name: value for name, value in call.others.items() if not name.startswith("output_")},
        ).logits

    def _read(self, call, rows):
        """Return the tokens to run on, and what they say of the weights.

        `rows` holds, for each sequence, its number of tokens (`count`, (B,)) and its scores (`scores`, (B, E)). While
        a prompt is incomplete it also holds all tokens, which are real, and their positions (`ids`, `real`, `places`,
        (B, P)): once it is complete, all of it runs again with its own weights.

        Returns:
            ids: the tokens to run on, (B, S), or (B, P + S) where former ones run again.
            positions: of these, (B, S) or (1, S) or (B, P + S), or None.
            scores: log α of each sequence up to a constant, (B, E) float32; 0 where its prompt is incomplete.
            known: at which new tokens the prompt is complete, (B, S) bool.
            again: whether former tokens run again.
        """
        needed, input_ids, real = self.config.prompt_tokens, call.ids, call.real
        count = rows.get("count", input_ids.new_zeros(len(input_ids)))
        scores = rows.get("scores", self.router.new_zeros(len(input_ids), len(self.router), dtype=torch.float32))
        rank = count.unsqueeze(1) + real.cumsum(dim=1)  # a token's number in its sequence, from 1, without padding
        known = rank >= needed
        complete = (count < needed) & known[:, -1]  # sequences whose prompt ends in this call, (B,)
        positions = call.positions
        if positions is None:
            start = 0 if call.cache is None else call.cache.get_seq_length()
            positions = torch.arange(start, start + input_ids.shape[1], device=input_ids.device)
        every = {"ids": input_ids, "real": real, "places": positions.reshape(-1, input_ids.shape[1]).expand_as(real)}
        if "ids" in rows:
            every = {name: torch.cat([rows[name], value], dim=1) for name, value in every.items()}
        if complete.any():
            prompt = every["real"] & (every["real"].cumsum(dim=1) <= needed)
            width = int(prompt[complete].any(dim=0).nonzero().max()) + 1
            embedded = self.get_input_embeddings()(every["ids"][:, :width]).float()  # (B, width, H)
            counted = prompt[:, :width].to(embedded.device).float().unsqueeze(2)
            mean = (embedded * counted).sum(dim=1) / needed  # (B, H)
            found = nn.functional.linear(mean, self.router.to(mean.device, torch.float32))
            scores = torch.where(complete.unsqueeze(1).to(found.device), found, scores.to(found.device))
        again = bool(complete.any()) and "ids" in rows
        for name in every:
            rows.pop(name, None)
        rows.update(count=rank[:, -1], scores=scores)
        if (rank[:, -1] < needed).any():
            rows.update(every)
        self._weigh(scores.unsqueeze(1).expand(-1, real.shape[1], -1), known)  # for those who record the weights
        ids, positions = (every["ids"], every["places"]) if again else (input_ids, call.positions)
        return ids, positions, scores, known, again

    def _weigh(self, scores, known):
        """Return the experts' log weights at each token, (B, S, E): those that predict the token after it.

        Args:
            scores: of each sequence, (B, S, E).
            known: at which tokens the prompt is complete, (B, S) bool; before, all experts count alike.
        """
        return torch.where(known.unsqueeze(-1).to(scores.device), scores, 0.0).log_softmax(dim=-1)

    def _mix(self, scores):
        """Give every layer its `rows`, and as `gates` g = sum_m α_m z_m of each sequence at these.

        Rows are read from the masks in each run: when the layers are made, masks are not loaded yet.

        Args:
            scores: log α up to a constant, (B, E).
        """
        alpha = scores.float().softmax(dim=-1).to(self.masks.device)
        bits = torch.arange(8, dtype=torch.uint8, device=self.masks.device)
        masks = ((self.masks.unsqueeze(-1) >> bits) & 1).flatten(1)[:, : self.outputs]  # (E, R); bits after R are none
        opened = masks.any(dim=0).nonzero().squeeze(1)  # outputs of all layers that some mask opens, in order
        gates = alpha @ masks[:, opened].to(alpha)  # (B, rows of all D)
        counts, start = self.config.interpolated_rows, 0
        for name, rows, own in zip(self.interpolated, opened.split(counts), gates.split(counts, dim=1), strict=True):
            layer = self.get_submodule(name)
            layer.rows, layer.gates = rows - start, own.to(layer.weight.dtype)  # rows count from the layer's first
            start += layer.out_features
