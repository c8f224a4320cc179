"""Whole dense language models whose next-token distributions are mixed. Written by expert-registry; Apache-2.0.

Each member keeps its own attention and everything else ("separate attention", MergeME, Zhou et al. 2025, §3.1.3);
p(x_t | x_<t) = sum_j w_j p_j(x_t | x_<t), and the logits returned are its logarithm. `config.routing` says where the
weights w come from; those of x_t depend on x_<t alone, whatever is asked for in one call:

- `posterior`: w_j is p(D=j | x_<t), by Bayes' rule from each member's likelihood of x_<t (BTM, Li et al. 2022, §2).
- `perplexity`: softmax of the negative perplexity of each member on x_<t (MergeME, §3.1.3).
- `task-vector`: softmax of the cosine between the base model's negative gradient on the first `routing_tokens` tokens
  and each member's task vector (MergeME, §3.1.3; how many tokens count, and the uniform mixture before, are ours).

Of the weights the `routing_top_k` largest are kept and renormalised; without evidence every member has its prior.
`posterior` and `perplexity` run all members on every token, `task-vector` only those chosen once it has chosen. Token
ids and an attention mask of (batch, tokens) are needed; what is masked is no evidence.
"""

import torch
from torch import nn
from transformers import DynamicCache
from transformers import LlamaForCausalLM as DenseForCausalLM
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

# The name of a cache in calls and outputs, which is `cache` since transformers 5.24.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class EnsembleConfig(DenseForCausalLM.config_class):
    """The dense configuration with the members' names, how they are weighed and which tensors they share.

    `shared_tensors` gives, for a tensor's name, the number of the member whose tensor each one uses; the base model,
    where there is one, comes last. `routing_prior` is a weight for each member, or None for equal ones.
    """

    model_type = "ensemble_" + DenseForCausalLM.config_class.model_type


class EnsembleCache(Cache):
    """A cache for each member, and `rows`: what the tokens so far say of each, tensors with a row for each sequence."""

    def __init__(self, config):
        self.members = [DynamicCache(config=config) for _ in config.members]
        super().__init__(layers=[layer for member in self.members for layer in member.layers])
        self.rows, self.length = {}, 0

    def get_seq_length(self, layer_idx=0):
        return self.length

    def reset(self):
        super().reset()
        self.rows, self.length = {}, 0

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
            raise NotImplementedError(
                "the cache of an ensemble cannot forget tokens: what they said of the members is summed"
            )


class EnsembleForCausalLM(*DenseForCausalLM.__bases__):
    """The members, and the base model where the routing needs it."""

    config_class = EnsembleConfig
    base_model_prefix = ""

    def __init__(self, config):
        super().__init__(config)
        self.members = nn.ModuleList([DenseForCausalLM(config) for _ in config.members])
        self.base = DenseForCausalLM(config) if config.routing == "task-vector" else None
        self._keys_to_ignore_on_save = set(self.get_expanded_tied_weights_keys())
        self.post_init()

    def get_expanded_tied_weights_keys(self, all_submodels=False):
        """Return tensor -> the tensor that it is: what members share with one another, then the heads tied in each."""
        config = self.config
        places = [f"members.{index}" for index in range(len(config.members))] + ["base"] * (self.base is not None)
        heads = (DenseForCausalLM._tied_weights_keys or {}) if config.tie_word_embeddings else {}
        shared = {
            f"{place}.{name}": f"{places[owner]}.{name}"
            for name, owners in config.shared_tensors.items()
            for place, owner in zip(places, owners, strict=True)
            if place != places[owner]
        }
        own = {f"{place}.{target}": f"{place}.{source}" for place in places for target, source in heads.items()}
        return shared | own

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
        """Return the logarithm of the mixture, (B, S, V) in float32, as the logits."""
        if input_ids is None or inputs_embeds is not None:
            raise ValueError("an ensemble takes input_ids: each member embeds them by itself")
        if attention_mask is not None and attention_mask.ndim != 2:
            raise ValueError("an ensemble takes an attention mask of (batch, tokens), and makes its cache itself")
        given = kwargs.pop(CACHE, past_key_values)
        cache = self._cache(given, self.config.use_cache if use_cache is None else use_cache)
        state = {} if cache is None else cache.rows
        columns = input_ids.shape[1]
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, -columns:]
        real = real.bool()
        places = torch.arange(columns, device=input_ids.device)
        places = places[-logits_to_keep:] if isinstance(logits_to_keep, int) else places[logits_to_keep]

        def run(index, width):
            """Return a member's logits for the first `width` columns."""
            past = 0 if attention_mask is None else attention_mask.shape[1] - columns
            return self.members[index](
                input_ids=input_ids[:, :width],
                attention_mask=None if attention_mask is None else attention_mask[:, : past + width],
                position_ids=None if position_ids is None else position_ids[..., :width],
                use_cache=cache is not None,
                **{CACHE: None if cache is None else cache.members[index]},
                **kwargs,
            ).logits

        if self.base is None:
            every = [run(index, columns) for index in range(len(self.members))]
            weights = self._by_evidence(every, input_ids, real, state)
        else:
            every = [None] * len(self.members)
            weights = self._by_task_vector(input_ids, real, state)
        shape = len(input_ids), len(places), self.config.vocab_size
        mixed = torch.full(shape, torch.finfo(torch.float32).min, device=input_ids.device)  # -inf has no gradient
        for index, logits in enumerate(every):
            used = weights[:, :, index].isfinite().any(dim=0)
            wanted = places[used[places]]
            if logits is None:
                widths = [0, *(wanted + 1).tolist(), *([columns] if cache is not None and used[-1] else [])]
                if not max(widths):
                    continue
                logits = run(index, max(widths))
            chosen = used[places].nonzero()[:, 0]
            own = logits[:, wanted].float().log_softmax(dim=-1) + weights[:, wanted, index, None].float()
            mixed = mixed.index_copy(1, chosen, torch.logaddexp(mixed[:, chosen], own.to(mixed.device)))
        if cache is not None:
            cache.length += columns
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=mixed, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=mixed, **{CACHE: cache})

    def _cache(self, given, wanted):
        """Return the cache to go on with; one that `generate` made for a single model, still empty, is replaced."""
        if isinstance(given, EnsembleCache):
            return given
        if given is not None and given.get_seq_length():
            raise ValueError("this cache is of another model: leave it out, an ensemble makes its own")
        return EnsembleCache(self.config) if wanted else None

    def _weigh(self, scores, known):
        """Return log weights (B, S, E): the log softmax of each place's largest scores, the prior where not `known`."""
        best = scores.topk(self.config.routing_top_k, dim=-1)
        kept = torch.full_like(scores, -torch.inf).scatter(-1, best.indices, best.values)
        return torch.where(known.unsqueeze(-1), kept, self._log_prior(scores)).log_softmax(dim=-1)

    def _log_prior(self, like):
        prior = self.config.routing_prior
        return like.new_zeros(like.shape[-1]) if prior is None else like.new_tensor(prior).log()

    def _by_evidence(self, every, input_ids, real, state):
        """Return log weights (B, S, E) from the members' likelihood of each prefix; masked tokens say nothing.

        `state` holds, for each sequence, the summed log likelihoods and how many tokens they are of, whether there was
        a token, and each member's distribution after the last one.
        """
        exact = torch.float32 if input_ids.device.type == "mps" else torch.float64
        row = torch.arange(len(input_ids), device=input_ids.device).unsqueeze(1)
        place = torch.arange(input_ids.shape[1], device=input_ids.device)
        latest = torch.where(real, place, -1).cummax(dim=1).values
        before = torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], dim=1)  # where x_t was predicted
        seen = state.get("seen", torch.zeros_like(real[:, 0]))
        scored = real & ((before >= 0) | seen.unsqueeze(1))
        gains, ends = [], []
        for index, logits in enumerate(every):
            logits = logits.to(input_ids.device)
            norms = logits.float().logsumexp(dim=-1)
            gain = logits[row, before, input_ids].float() - norms[row, before]
            end = logits[row, latest[:, -1:]].squeeze(1).float().log_softmax(dim=-1)
            if "ends" in state:
                earlier = state["ends"][:, index]
                gain = torch.where(before >= 0, gain, earlier.gather(1, input_ids))
                end = torch.where(latest[:, -1:] >= 0, end, earlier)
            gains.append(gain.masked_fill(~scored, 0.0).to(exact))
            ends.append(end)
        total, count = torch.stack(gains, dim=-1).cumsum(dim=1), scored.cumsum(dim=1)
        if "total" in state:
            total, count = total + state["total"].unsqueeze(1), count + state["count"].unsqueeze(1)
        state.update(seen=seen | real.any(dim=1), ends=torch.stack(ends, dim=1), total=total[:, -1], count=count[:, -1])
        if self.config.routing == "posterior":
            scores = total / self.config.routing_temperature + self._log_prior(total)
        else:
            perplexity = (-total / count.clamp(min=1).unsqueeze(-1)).exp()
            scores = -perplexity / self.config.routing_temperature
        return self._weigh(scores, count > 0)

    def _by_task_vector(self, input_ids, real, state):
        """Return log weights (B, S, E) by each sequence's first tokens.

        `state` holds, for each sequence, its first tokens, how many tokens there were, and the cosines once known.
        """
        needed, rows = self.config.routing_tokens, len(input_ids)
        first = state.get("first", input_ids.new_zeros(rows, needed))
        count = state.get("count", input_ids.new_zeros(rows))
        cosines = state.get("cosines", torch.zeros(rows, len(self.members), device=input_ids.device))
        ordinal = count.unsqueeze(1) + real.cumsum(dim=1)
        row, column = (real & (ordinal <= needed)).nonzero(as_tuple=True)
        first = first.index_put((row, ordinal[row, column] - 1), input_ids[row, column])
        for new in ((count < needed) & (ordinal[:, -1] >= needed)).nonzero()[:, 0].tolist():
            cosines = cosines.index_put((cosines.new_tensor(new).long(),), self._cosines(first[new]).to(cosines))
        state.update(first=first, count=ordinal[:, -1], cosines=cosines)
        scores = (cosines / self.config.routing_temperature).unsqueeze(1).expand(*real.shape, -1)
        return self._weigh(scores, ordinal >= needed)

    def _cosines(self, tokens):
        """Return the cosine (E,) between the base model's negative gradient on `tokens` and each task vector.

        Each gradient is used and dropped as soon as it is there, so that no second copy of the weights is held.
        """
        with torch.inference_mode(False), torch.enable_grad():
            tokens = tokens.clone().unsqueeze(0)
            weights = {name: weight.detach().requires_grad_() for name, weight in self.base.named_parameters()}
            others = [dict(member.named_parameters()) for member in self.members]
            dots, norms = torch.zeros(2, len(others), dtype=torch.float32, device=tokens.device)
            length = torch.zeros((), device=tokens.device)

            def use(name, weight):
                with torch.no_grad():
                    down = -weight.grad.float()
                    length.add_(down.square().sum().to(length.device))
                    for index, other in enumerate(others):
                        step = other[name].float() - weight.float()
                        dots[index] += (down * step).sum().to(dots.device)
                        norms[index] += step.square().sum().to(norms.device)
                weight.grad = None

            for name, weight in weights.items():
                weight.register_post_accumulate_grad_hook(lambda weight, name=name: use(name, weight))
            output = torch.func.functional_call(self.base, weights, (), {"input_ids": tokens, "use_cache": False})
            nn.functional.cross_entropy(output.logits[0, :-1].float(), tokens[0, 1:]).backward()
        return dots / (norms * length).sqrt().clamp(min=torch.finfo(torch.float32).tiny)
