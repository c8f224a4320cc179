"""A dense model with low-rank experts, of which a token has one or a few. Written by expert-registry; Apache-2.0.

Every linear layer that an expert changed gives, for a token of expert e,

    y = W x + b + s_e B_e (A_e x)                         LoRA (Hu et al. 2021, eq. 3); W, b of the base model
    y = W x + b + (g_e - 1) W x + g_e s_e B_e (A_e x)     DoRA (Liu et al. 2024, eq. 5); g_e = m / |W + s_e B A|

so that a model whose tokens all have one expert is the base model with that adapter, whatever else is in the folder. An
embedding changes as the matrix W that it takes rows of, (V, H), and with it a head that is tied to it. Norms and biases
that an expert changed are vectors of its own. An expert that was fine-tuned in full has the low-rank change that is
nearest to its own, and its own norms and biases.
The expert is the same in all layers and is known before they run: `evidence` says of each token how much likelier each
expert's text is to have it, and a token's expert is that of the largest mean evidence of the tokens up to it, the one D
tokens back with weight exp(-D / context_window), or all alike where `context_window` is 0. Where `context_fast` is not
0, a second mean f with that window notices what has just begun. By how much f[e] exceeds thresholds[e, e] counts
`context_alarm` times for expert e, and by how much f[n] - f[e] exceeds thresholds[e, n], for any other n, as often
against it. Where `context_pairs` is not 0, the first mean, not the second, has beside a token's evidence what it adds
that it follows the token before it: `pairs` has the numbers u * V + v of pairs that experts' text has often, once for
each of these experts, `pair_experts`, and `pair_evidence` how much; its mean over the experts counts as 0. Nothing of
it is trained.
Where `routing_top_k` is k > 1, a token has up to k experts, as long as its text may be of several. Their shares are
sparsemax of a text's evidence among the k of most (Martins & Astudillo 2016, eq. 3), its mean times n / (1 - ALIKE +
ALIKE n) for a window of n tokens: an expert that is a nat ahead of the others has the token alone, as above. A layer
adds the experts' changes, each times its share, and their vectors are averaged as the layer's own would give them.

Masked tokens are no evidence, and distances leave them out. So are words of the chat template: the first tokens of a
text where they are those of `context_prefix`, and tokens between messages, which `context_turns` lists. What follows
those of `context_next`, between an answer (or a system message) and the next question, is `context_window` tokens
further from what stands before, for the first mean: a question may be of another subject. In a document, a text in
which no user's message has begun as `context_user` does, experts whose text was conversations are behind by the nats
that `context_form` has of each, of a text's evidence. Where evidence says nothing, a token goes to the base model alone
if it is a member, `context_nobody`. Keys and values of earlier tokens stay those of the experts that they had. What a
cache holds beside them is one layer more (`RunningEvidence`), which the cache reorders, crops and repeats as it does
the others. Beams, batches, padding on the left, training and gradient checkpointing work.

Shapes: B sequences of S tokens, T = B * S tokens row by row; E experts; a linear layer of I inputs and O outputs; r_e
the rank of expert e in it, R their sum; V tokens of the vocabulary; W windows, 1 or 2.
"""

import inspect
from itertools import accumulate
from math import frexp

import torch
from torch import nn
from transformers import DynamicCache
from transformers import LlamaForCausalLM as DenseForCausalLM
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer

# Names of a cache in calls: transformers 5.24 calls `cache` what was `past_key_values`.
CACHES = ("cache", "past_key_values")
FEW = 4  # experts whose products cost no more one by one than at once
CHUNK = 256  # tokens that are weighed against one another at once
ALIKE = 0.2  # the part of the variance of a token's evidence that all tokens of a text have in common
AT_ONCE = 2**22  # numbers that are compared at once
MASKED = -1  # in the place of a masked token
NONE = 1e-38  # in the place of a share of 0, which has no logarithm
TIE = 1e-9  # nats by which whoever has what nobody knows is ahead where evidence is alike


class AdaptersConfig(DenseForCausalLM.config_class):
    """The dense configuration with `members`, `context_…` and `routing_top_k` (above), and what experts changed.

    `adapted_layers` has for each linear layer and embedding by its name the number of its entry in `adapted_kinds`, a
    list of [r_e, s_e, whether it is DoRA] for each expert. `adapted_vectors` has for each norm's weight and each bias
    by its name the numbers of the experts that have one of their own.
    """

    model_type = "adapters_" + DenseForCausalLM.config_class.model_type


try:  # transformers 5 stores some models otherwise than it holds them, by the names of their types
    from transformers import conversion_mapping
except ImportError:
    pass
else:
    conversions = conversion_mapping.get_checkpoint_conversion_mapping(DenseForCausalLM.config_class.model_type)
    if conversions is not None:
        conversion_mapping.register_checkpoint_conversion_mapping(
            AdaptersConfig.model_type, conversions, overwrite=True
        )


class Tokens:
    """The expert of each token of the call that runs.

    Attributes:
        groups: (e, numbers of its tokens among the T, its shares of them) for each expert that has some. The numbers
            are None where it has all tokens, a slice for each run of its tokens where the runs are few, so that no row
            is copied. The shares are (n, 1), or None where every token has one expert alone.
        length: S; of the head's, the number of those that it is asked for.
    """

    def __init__(self):
        """Make it before any call: no token has an expert."""
        self.groups, self.length = [], 0
        self.chosen, self.shares, self.past, self.whole, self.orders = None, None, None, None, {}

    def choose(self, chosen, shares=None, past=None):
        """Set the expert of each token, (B, S) int64.

        `shares` are those of all experts, (B, S, E), where a token may have several; `past` is what the cache holds of
        its tokens (`RunningEvidence`), (B, P, 2 or 2 + E).
        """
        self.groups, self.length = self._grouped(chosen, shares), chosen.shape[1]
        self.chosen, self.shares, self.past, self.whole, self.orders = chosen, shares, past, None, {}

    def of(self, rows):
        """Return the groups of so many rows: of the tokens of the call, or of those in the cache and these.

        Some classes keep in the cache what a linear layer is still to read, such as DeepSeek's latent keys and values.
        """
        count, found = self.chosen.numel(), self.groups
        if rows == count or (len(found) == 1 and rows < count):  # fewer are some of them, and all have one expert
            return found
        if self.past is not None:
            if self.whole is None:
                chosen = torch.cat([self.past[..., 0].to(self.chosen), self.chosen], dim=1)
                shares = self.shares if self.shares is None else torch.cat([self.past[..., 2:], self.shares], dim=1)
                self.whole = self._grouped(chosen, shares)
            count, found = count + self.past[..., 0].numel(), self.whole
        if rows != count and len(found) > 1:
            raise ValueError(f"a layer gets {rows} rows for {count} tokens: they have no expert")
        return found

    def in_order(self, groups, kinds):
        """Return groups' tokens, expert by expert, for a layer that experts change as `kinds` say, all in one rank.

        Returns:
            The tokens' numbers, (n,), their shares times s_e, (n, 1), and where each expert's end, int32, one for each
            that changes the layer. None where few of these have tokens, or the tokens are no tensors.
        """
        key = id(groups), id(kinds)
        if key not in self.orders:
            own = {e: (at, share) for e, at, share in groups if kinds[e][0]}
            self.orders[key] = None
            if len(own) > FEW and all(isinstance(at, torch.Tensor) for at, _ in own.values()):
                scales = [kinds[e][1] * (torch.ones(len(at), 1) if s is None else s) for e, (at, s) in own.items()]
                counts = [len(own[e][0]) if e in own else 0 for e, (rank, _, _) in enumerate(kinds) if rank]
                order = torch.cat([at for at, _ in own.values()])
                ends = order.new_tensor(counts).cumsum(0, dtype=torch.int32)
                self.orders[key] = order, torch.cat(scales), ends
        return self.orders[key]

    @staticmethod
    def _grouped(chosen, shares):
        if shares is not None and (shares.amax(dim=-1) < 1).any():
            experts, tokens = shares.flatten(0, 1).T.nonzero(as_tuple=True)
            owners, counts = (found.tolist() for found in experts.unique_consecutive(return_counts=True))
            parts, rows = zip(owners, tokens.split(counts), strict=True), shares.flatten(0, 1).float()
            return [(e, at if len(at) < len(rows) else None, rows[at, e, None]) for e, at in parts]
        flat = chosen.flatten()
        runs, counts = (found.tolist() for found in flat.unique_consecutive(return_counts=True))
        experts, ends = sorted({*runs}), [0, *accumulate(counts)]
        if len(experts) == 1:
            return [(experts[0], None, None)]
        if len(runs) <= 2 * len(experts):
            return [(e, slice(*pair), None) for e, *pair in zip(runs, ends, ends[1:], strict=False)]
        return [(e, (flat == e).nonzero()[:, 0], None) for e in experts]


class LowRank:
    """A low-rank change for each expert of what a linear layer gives, or an embedding.

    The layer gets parameters. `lora_A` is (R, I), the experts' A one below the other. `lora_B` is (R * O,), the
    experts' B one after the other, each of (O, r_e) row by row. `lora_magnitude` has g of each expert that is DoRA,
    (number of these, O). Of an embedding O is V, and I is H.

    Args:
        layer: the layer, whose weight is (O, I).
        kinds: of each expert r_e, s_e and whether it is DoRA.
        tokens: the experts of tokens, which all layers share.
        tied: the embedding that the layer is tied to, whose factors are its own too.
    """

    def __init__(self, layer, kinds, tokens, tied=None):
        """Give the layer its parameters, with no value yet, and change what it gives from now on."""
        self.owner, self.kinds, self.tokens = tied or layer, kinds, tokens
        self.factors, self.places = {}, None  # of experts, as they were read last, and where
        self.starts = [0, *accumulate(rank for rank, _, _ in kinds)]
        self.norms = [0, *accumulate(int(dora) for _, _, dora in kinds)]
        ranks = {rank for rank, _, _ in kinds if rank}
        self.rank = ranks.pop() if len(ranks) == 1 and not self.norms[-1] and isinstance(layer, nn.Linear) else None
        (self.outputs, inputs), dtype = layer.weight.shape, layer.weight.dtype
        if tied is None:
            layer.lora_A = nn.Parameter(torch.zeros(self.starts[-1], inputs, dtype=dtype))
            layer.lora_B = nn.Parameter(torch.zeros(self.starts[-1] * self.outputs, dtype=dtype))
            if self.norms[-1]:
                layer.lora_magnitude = nn.Parameter(torch.zeros(self.norms[-1], self.outputs, dtype=dtype))
        layer.register_forward_hook(self.add)

    def add(self, layer, args, y):
        """Add its change to y of each token, (..., O), the layer's own of x, (..., I), or of ids, (...).

        The leading sizes multiply to T, or with the tokens in the cache to B * (P + S).
        """
        x, embeds = args[0], isinstance(layer, nn.Embedding)
        groups = self.tokens.of(y.numel() // y.shape[-1])
        if len(groups) == 1:  # all tokens have one expert
            if self.kinds[groups[0][0]][0]:
                y.add_(self._change(layer, groups[0][0], x, y))
            return
        flat, own = y.view(-1, y.shape[-1]), x.reshape(-1) if embeds else x.reshape(-1, x.shape[-1])
        if self.rank and self._many(flat, own, groups):
            return
        shared = self.norms[-1] and any(share is not None for _, _, share in groups)
        plain = flat.clone() if shared else flat  # DoRA is of what no other expert has changed
        for expert, tokens, share in groups:
            rank, _, dora = self.kinds[expert]
            if not rank:
                continue
            if tokens is None:
                flat.add_(self._change(layer, expert, own, plain, share))
            elif isinstance(tokens, slice):
                flat[tokens].add_(self._change(layer, expert, own[tokens], plain[tokens], share))
            else:
                tokens = tokens.to(x.device)
                rows = plain.index_select(0, tokens) if dora else plain  # 4 to 8 times as fast as plain[tokens]
                change = self._change(layer, expert, own.index_select(0, tokens), rows, share)
                flat.index_add_(0, tokens, change)

    def _many(self, y, x, groups):
        """Add the changes of many experts to y, (T, O), of x, (T, I), in two grouped products; tell whether it did."""
        down, up = self.owner.lora_A, self.owner.lora_B
        is_here = x.device.type == self.tokens.chosen.device.type == "cpu" and down.dtype != torch.float64
        if not is_here or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        if not hasattr(nn.functional, "grouped_mm") or (down.data_ptr() | up.data_ptr()) % 16:  # as torch 2.10 asks for
            return False
        found = self.tokens.in_order(groups, self.kinds)
        if found is None:
            return False
        order, scales, ends = found
        own, experts = x.index_select(0, order).to(down.dtype), len(ends)
        inner = nn.functional.grouped_mm(own, down.view(experts, self.rank, -1).mT, offs=ends)
        up = up.view(experts, self.outputs, self.rank).mT
        y.index_add_(0, order, nn.functional.grouped_mm(inner * scales.to(inner), up, offs=ends).to(y))
        return True

    def _factors(self, expert):
        """Return A of an expert, (r_e, I), and B, (O, r_e): views, kept while no gradient is asked for."""
        down, up = self.owner.lora_A, self.owner.lora_B
        keeps = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        if keeps:
            places = down.data_ptr(), up.data_ptr()
            if places != self.places:  # a model that has moved has other arrays
                self.factors, self.places = {}, places
            if expert in self.factors:
                return self.factors[expert]
        rank, start = self.kinds[expert][0], self.starts[expert]
        found = down[start : start + rank], up[start * self.outputs : (start + rank) * self.outputs].view(-1, rank)
        if keeps:
            self.factors[expert] = found
        return found

    def _change(self, layer, expert, x, y, share=None):
        """Return what an expert adds to y, (..., O), times its share, in its dtype; only DoRA needs the values of y."""
        (_, scaling, dora), (down, up) = self.kinds[expert], self._factors(expert)
        if isinstance(layer, nn.Embedding):
            inner, up = nn.functional.embedding(x, up), down.T
            scaling = scaling * float(getattr(layer, "embed_scale", 1.0))  # what some classes multiply rows by
        else:
            inner = nn.functional.linear(x if x.dtype == down.dtype else x.to(down.dtype), down)
        if share is not None and not dora:  # the smaller product; a share of 1 changes no bit
            inner = inner * share.to(inner)
        if frexp(scaling)[0] == 0.5:  # a power of two changes no bit of the larger product, and few numbers here
            change = nn.functional.linear(inner * scaling, up)
        else:
            change = nn.functional.linear(inner, up) * scaling
        if dora:
            size = self.owner.lora_magnitude[self.norms[expert]]
            plain = y.clone() if layer.bias is None else y - layer.bias  # a gradient needs it, and y will change
            change = (size - 1) * plain + size * change
            change = change if share is None else change * share.to(change)
        return change if change.dtype == y.dtype else change.to(y.dtype)


class OwnVectors:
    """Vectors that experts have in the place of a layer's own: the weight and bias of a norm, the bias of another.

    The layer gets a parameter `own_NAME` for each, (number of experts that have one, size), in their order.

    Args:
        layer: the layer.
        experts: name of each such parameter of the layer → the experts that have one of their own.
        tokens: the experts of tokens, which all layers share.
    """

    def __init__(self, layer, experts, tokens):
        """Give the layer its parameters, with no value yet, and change what it gives from now on."""
        self.experts, self.tokens = experts, tokens
        for name, own in experts.items():
            like = layer.get_parameter(name)
            layer.register_parameter(f"own_{name}", nn.Parameter(torch.zeros(len(own), *like.shape, dtype=like.dtype)))
        layer.register_forward_hook(self.replace)

    def replace(self, layer, args, y):
        """Return y with that of the layer with an expert's vectors for its tokens, x and y being (B, S, ...).

        What is split into heads may also be (B, heads, S, ...), as a view of numbers that are token by token.
        """
        x, length, turned, plain = args[0], self.tokens.length, False, None
        if x.ndim == 4 and x.shape[2] == length:
            turned = x.shape[1] != length or x.stride(1) < x.stride(2)
        groups = self.tokens.groups
        for expert, tokens, share in groups:
            own = {name: experts.index(expert) for name, experts in self.experts.items() if expert in experts}
            if not own:
                continue
            if len(groups) == 1:
                return self._forward(layer, own, x)
            if not isinstance(tokens, torch.Tensor):
                tokens = torch.arange(self.tokens.chosen.numel())[tokens or slice(None)]
            tokens, x_, y_ = tokens.to(x.device), *(one.transpose(1, 2) if turned else one for one in (x, y))
            at = tokens // length, tokens % length
            changed = self._forward(layer, own, x_[at][None])[0]
            if share is not None:
                plain = y_.clone() if plain is None else plain
                share = share.view(-1, *[1] * (changed.ndim - 1)).to(changed)
                changed = changed.where(share == 1, y_[at] + share * (changed - plain[at]))
            y_[at] = changed
        return y

    def _forward(self, layer, own, x):
        """Return what the layer gives of x with an expert's vectors; `own` has their numbers by name."""
        plain = {name: getattr(layer, name) for name in own}
        try:
            for name, number in own.items():
                layer._parameters[name] = getattr(layer, f"own_{name}")[number]
            return layer.forward(x)
        finally:
            layer._parameters.update(plain)


class Gate(nn.Module):
    """A module that the experts' scores of tokens pass, (T, E), on their way to the choice; it changes nothing.

    Where a token may have several experts, the scores are the logarithms of its shares.

    Args:
        experts: E.
        top_k: most experts of a token.
    """

    def __init__(self, experts, top_k):
        """Make it for so many experts."""
        super().__init__()
        self.out_features, self.top_k = experts, top_k

    def forward(self, scores):
        """Return the scores."""
        return scores


class RunningEvidence(DynamicLayer):
    """Weighed sums of the text up to each token, in each window, as if they were keys and values of a layer.

    Keys are sums of evidence, (B, W, S, E), values sums of ones, the token's expert and the token, (B, W, S, 3), and
    experts' shares of it where it may have several, (B, W, S, 3 + E); a mean is the sum of evidence over that of ones.
    """


def is_empty(cache):
    """Tell whether a cache has seen no token; one without keys and values, of a recurrent model, knows no length."""
    try:
        return not cache.get_seq_length()
    except ValueError:
        return not cache.has_previous_state()


class AdaptersForCausalLM(DenseForCausalLM):
    """The base model with low-rank experts.

    `evidence` is (V, E), `thresholds` (E, E), both float32: those of `thresholds[e]` are for expert e.
    """

    config_class = AdaptersConfig

    @classmethod
    def is_custom_code(cls):
        """Tell transformers to load it as the dense class: of other code it leaves some buffers without a value."""
        return False

    def __init__(self, config):
        """Make the base model, change each layer that an expert changed, and route."""
        super().__init__(config)
        experts, tokens, head_tokens = len(config.members), Tokens(), Tokens()
        embedding, head, vectors = self.get_input_embeddings(), self.get_output_embeddings(), {}
        for name, own in config.adapted_vectors.items():
            layer, _, part = name.rpartition(".")
            vectors.setdefault(layer, {})[part] = own
        for name, own in vectors.items():
            layer = self.get_submodule(name)
            OwnVectors(layer, own, head_tokens if layer is head else tokens)
        for name, kind in config.adapted_layers.items():
            layer = self.get_submodule(name)
            LowRank(layer, config.adapted_kinds[kind], head_tokens if layer is head else tokens)
            if layer is embedding and config.tie_word_embeddings:
                LowRank(head, config.adapted_kinds[kind], head_tokens, embedding)
        self.tokens, self.head_tokens = tokens, head_tokens
        self.adapter_gate = Gate(experts, config.routing_top_k)
        self.register_buffer("evidence", torch.zeros(config.vocab_size, experts))
        self.register_buffer("thresholds", torch.zeros(experts, experts))
        if config.context_pairs:
            self.register_buffer("pairs", torch.zeros(config.context_pairs, dtype=torch.int64))
            self.register_buffer("pair_experts", torch.zeros(config.context_pairs, dtype=torch.int16))
            self.register_buffer("pair_evidence", torch.zeros(config.context_pairs))
        self._keep_in_fp32_modules_strict = {"evidence", "thresholds", "pair_evidence"}
        self.is_routed = False  # while a call of it runs, whose tokens have their experts
        self.register_forward_pre_hook(self._route, with_kwargs=True)
        self.register_forward_hook(self._end, always_call=True)
        self.base_model.register_forward_pre_hook(self._route_alone, with_kwargs=True)

    def _end(self, model, args, output):
        """Note that a call has ended."""
        self.is_routed = False

    def _route_alone(self, decoder, args, kwargs):
        """Choose experts for a call of the decoder alone."""
        if self.is_routed:
            return None
        return self._chosen(decoder, args, kwargs)

    def _route(self, model, args, kwargs):
        """Choose experts for a call of this model; some classes call their decoder without its own hooks."""
        found = self._chosen(model, args, kwargs)
        self.is_routed = True
        return found

    @torch.no_grad()
    def _chosen(self, model, args, kwargs):
        """Choose the expert of each token, from the ids that a model is called with, and give it a cache.

        Args:
            model: this one, or its decoder.
            args, kwargs: of its call, with `input_ids`, (B, S), and an attention mask of (B, P + S), P tokens in the
                cache.

        Returns:
            The arguments to call it with instead, all by their names.
        """
        names = inspect.signature(model.forward).parameters
        kwargs = dict(zip(names, args, strict=False)) | kwargs
        given = [kwargs.pop(name, None) for name in CACHES]
        cache = next((one for one in given if one is not None), None)
        ids, mask, use_cache = (kwargs.get(name) for name in ("input_ids", "attention_mask", "use_cache"))
        if ids is None:
            raise ValueError("this model takes input_ids, not inputs_embeds: experts are chosen by its tokens")
        if cache is not None and (
            not isinstance(cache, Cache) or any(isinstance(layer, StaticLayer) for layer in cache.layers)
        ):
            raise ValueError("this model takes a cache that grows, such as DynamicCache(), and no static one")
        if mask is not None and getattr(mask, "ndim", None) != 2:
            raise ValueError("this model takes an attention mask of (batch, tokens)")
        named = next((name for name in CACHES if name in names), None)
        if named is None and use_cache:
            raise ValueError("in this version of transformers the model takes no cache that grows: use_cache=False")
        if named is None and "use_cache" in names:
            kwargs["use_cache"] = False
        elif named is not None and cache is None and (self.config.use_cache if use_cache is None else use_cache):
            cache = DynamicCache(config=self.config)
        if named is not None:
            kwargs[named] = cache
        state = None if cache is None else self._state(cache)
        past = 0 if state is None else state.get_seq_length()
        real = ids.new_ones(len(ids), past + ids.shape[1]) if mask is None else mask.to(ids.device)
        real = (real != 0)[:, -past - ids.shape[1] :]
        new = ids.masked_fill(~real[:, -ids.shape[1] :], MASKED)
        seen = torch.cat([state.values[:, 0, :, 2].to(ids), new], dim=1) if past else new  # (B, P + S)
        told = seen[:, -ids.shape[1] - 1 :]
        told = told.masked_fill(self._is_template(seen, told.shape[1]), MASKED)  # what is evidence, and the one before
        sums = self._sums(ids, told, self._ends(seen, self.config.context_next, ids.shape[1]), state)
        means = sums[..., :-1] / sums[..., -1:].clamp(min=torch.finfo(sums.dtype).tiny)
        scores = means[:, 0]  # of (B, W, S, E), the slow window
        if self.config.context_fast:
            noticed = torch.where(sums[:, 1, :, -1:] > 0, self._noticed(means[:, 1]), 0.0)  # of no token says nothing
            scores = scores + self.config.context_alarm * noticed
        if self.config.context_form:
            scores = scores - self._of_other_form(seen, sums[:, 0, :, -1:])
        if self.config.context_nobody is not None:
            scores = scores + TIE * nn.functional.one_hot(ids.new_tensor(self.config.context_nobody), scores.shape[-1])
        if self.adapter_gate.top_k > 1:
            scores = self._shared(scores, sums[:, 0, :, -1:])
        scores = self.adapter_gate(scores.flatten(0, 1)).view(scores.shape)
        chosen, shares = scores.argmax(dim=-1), None
        if self.adapter_gate.top_k > 1:
            shares = nn.functional.threshold(scores.softmax(dim=-1), 2 * NONE, 0.0)
        past = None if state is None or not state.get_seq_length() else state.values[:, 0, :, 1:]  # (B, P, 2 or 2 + E)
        if state is not None:
            held = torch.stack([chosen, new, *(() if shares is None else shares.unbind(dim=-1))], dim=-1).to(sums)
            held = held[:, None].expand(-1, sums.shape[1], -1, -1)
            state.update(sums[..., :-1], torch.cat([sums[..., -1:], held], dim=-1))
        keep = kwargs.get("logits_to_keep", 0)  # the last so many tokens, or those of some numbers
        kept = slice(-keep, None) if isinstance(keep, int) else keep
        self.tokens.choose(chosen, shares, past)
        self.head_tokens.choose(chosen[:, kept], None if shares is None else shares[:, kept])
        return (), kwargs

    def _shared(self, scores, count):
        """Return the logarithms of experts' shares of tokens, (B, S, E): of text that says nothing one has all.

        Args:
            scores: mean evidence of the text up to each token, (B, S, E).
            count: how many tokens that is, each by its weight, (B, S, 1).
        """
        nobody = 2.0 * nn.functional.one_hot(scores.argmax(dim=-1), scores.shape[-1])
        whole = torch.where(count > 0, scores * count / (1 - ALIKE + ALIKE * count), nobody.to(scores))
        largest, experts = (part[..., : self.adapter_gate.top_k] for part in whole.sort(descending=True, stable=True))
        sums = largest.cumsum(dim=-1) - 1
        places = torch.arange(1, largest.shape[-1] + 1, device=largest.device)
        size = (places * largest > sums).sum(dim=-1, keepdim=True)  # experts that have a share
        found = largest - sums.gather(-1, size - 1) / size
        return torch.full_like(scores, NONE).scatter_(-1, experts, found.clamp(min=NONE)).log()

    def _is_template(self, seen, size):
        """Tell which of the last tokens of a text are words of the chat template, (B, S) bool.

        They are those of `context_prefix`, as all tokens before them are, and those that with the ones before them
        begin one of `context_turns`.

        Args:
            seen: the text, (B, P + S), `MASKED` where a token is masked.
            size: S.
        """
        prefix, found = seen.new_tensor(self.config.context_prefix), torch.zeros_like(seen, dtype=torch.bool)
        if len(prefix):
            real = seen != MASKED
            places = real.cumsum(dim=1) - 1
            found = (places < len(prefix)) & (seen == prefix[places.clamp(0, len(prefix) - 1)]) | ~real
            found = found.int().cumprod(dim=1).bool()
        found, turns = found[:, -size:], self.config.context_turns
        seen = seen[:, -size - max(map(len, turns), default=0) :]
        for turn in turns:
            begins = torch.ones_like(seen, dtype=torch.bool)  # whether tokens up to the one before are the turn's
            for number, token in enumerate(turn):
                begins = nn.functional.pad(begins[:, :-1], (1, 0), value=not number) & (seen == token)
                found |= begins[:, -size:]
        return found

    def _ends(self, seen, turn, size):
        """Tell which of the last tokens of a text, `seen`, (B, P + S), are the last ones of a turn, (B, S) bool."""
        seen = seen[:, -size - len(turn) :]
        found = torch.full_like(seen, bool(turn), dtype=torch.bool)
        for number, token in enumerate(turn):
            found = nn.functional.pad(found[:, :-1], (1, 0), value=not number) & (seen == token)
        return found[:, -size:]

    def _of_other_form(self, seen, count):
        """Return what speaks against each expert in the text up to each token, by its form alone, (B, S, E).

        Args:
            seen: the text, (B, P + S).
            count: how many tokens are its evidence, each by its weight, (B, S, 1).
        """
        begun = self._ends(seen, self.config.context_user, seen.shape[1]).cumsum(dim=1)[:, -count.shape[1] :, None]
        less = (1 - ALIKE + ALIKE * count) / count.clamp(min=torch.finfo(count.dtype).tiny)
        return torch.where((begun == 0) & (count > 0), less, 0.0) * count.new_tensor(self.config.context_form)

    def _noticed(self, fast):
        """Return what speaks for and against each expert beyond the thresholds, (B, S, E).

        Args:
            fast: the means of the fast window, (B, S, E).
        """
        thresholds = self.thresholds.to(fast)
        ahead = (fast - thresholds.diagonal()).clamp(min=0)
        others = thresholds.clone().fill_diagonal_(torch.inf)  # nobody is ahead of itself
        step = max(1, AT_ONCE // fast.numel())  # experts whose pairs with all others are compared at once
        behind = [
            (fast[..., None, :] - one[..., None] - limits).clamp(min=0).sum(dim=-1)  # of (B, S, step, E)
            for one, limits in zip(fast.split(step, dim=-1), others.split(step), strict=True)
        ]
        return ahead - torch.cat(behind, dim=-1)

    def _state(self, cache):
        """Return the last layer of a cache, which holds running evidence; a cache that is still empty gets it."""
        state = next((layer for layer in cache.layers if isinstance(layer, RunningEvidence)), None)
        if state is None:
            if not is_empty(cache):
                raise ValueError("this cache is of another model: start with an empty one")
            while len(cache.layers) < self.config.num_hidden_layers:  # a cache that adds layers when they are used
                cache.layers.append(cache.layer_class_to_replicate())
            state = RunningEvidence()
            cache.layers.append(state)
        return state

    def _of_pairs(self, before, ids):
        """Return what tokens add to the evidence of those after them, (B, S, E): of both, how often they are a pair.

        Args:
            before: the token before each, `MASKED` where it is no evidence, (B, S).
            ids: the tokens, (B, S).
        """
        ids, before = ids.to(self.pairs.device), before.to(self.pairs.device)
        keys = (before * self.config.vocab_size + ids).masked_fill(before == MASKED, MASKED).flatten()
        first, end = (torch.searchsorted(self.pairs, keys, right=right) for right in (False, True))
        counts = end - first  # of each token's entries, one for each expert that counted the pair
        rows = torch.arange(len(keys), device=keys.device).repeat_interleave(counts)
        at = torch.arange(len(rows), device=keys.device) + (first - counts.cumsum(0) + counts)[rows]
        found = self.evidence.new_zeros(len(keys), self.evidence.shape[1])
        found[rows, self.pair_experts[at].long()] = self.pair_evidence[at]
        return (found - found.mean(dim=-1, keepdim=True)).view(*ids.shape, -1)

    def _sums(self, ids, told, asked, state):
        """Return the weighed sums up to each token, of evidence and then of ones, (B, W, S, E + 1).

        With a(t) the tokens up to t over the window, and in the first 1 for each question after an answer, token s
        counts exp(a(s) - a(t)) at token t, so that the sum is the one at the token before times exp(-1 / window), plus
        what is new. In chunks of tokens that is one product of matrices and the sum at the end of the chunk before,
        which makes its cost grow with the text alone.

        Args:
            ids: the new tokens, (B, S).
            told: the same, `MASKED` where they are no evidence, and the one before them if there is one, (B, S + 1).
            asked: of each whether a question begins after it, (B, S).
            state: of `_state`; None without a cache.
        """
        told = nn.functional.pad(told, (ids.shape[1] + 1 - told.shape[1], 0), value=MASKED)
        real = told[:, 1:] != MASKED
        exact = torch.float32 if ids.device.type == "mps" else torch.float64
        real = real.to(exact)
        added = torch.cat(
            [self.evidence[ids.to(self.evidence.device)].to(real) * real[..., None], real[..., None]], dim=-1
        )  # (B, S, E + 1)
        slow = added
        if self.config.context_pairs:
            slow = added.clone()
            slow[..., :-1] += self._of_pairs(told[:, :-1], ids).to(slow) * real[..., None]
        windows = [self.config.context_window, *([self.config.context_fast] if self.config.context_fast else [])]
        pasts = torch.zeros_like(added[:, :1]).expand(-1, len(windows), -1)  # (B, W, E + 1)
        if state is not None and state.get_seq_length():
            pasts = torch.cat([state.keys[:, :, -1], state.values[:, :, -1, :1]], dim=-1)
        every = []
        for number, window in enumerate(windows):
            past, rate, sums = pasts[:, number], 1 / window if window else 0.0, []
            every_new = (added if number else slow).split(CHUNK, dim=1)
            begins = asked.to(real) if window and not number else torch.zeros_like(real)
            parts = zip(every_new, real.split(CHUNK, dim=1), begins.split(CHUNK, dim=1), strict=True)
            for new, counted, begun in parts:
                age = rate * counted.cumsum(dim=1) + begun.cumsum(dim=1)  # (B, n), n tokens of a chunk
                weights = (
                    (age[:, None, :] - age[:, :, None]).clamp(max=0).exp().tril()
                )  # of token s at token t, (B, n, n)
                sums.append(weights @ new + (-age).exp()[..., None] * past[:, None])
                past = sums[-1][:, -1]
            every.append(torch.cat(sums, dim=1))
        return torch.stack(every, dim=1)
