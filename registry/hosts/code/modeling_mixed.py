"""The ensemble with one routing and one way of mixing more. Written by expert-registry; Apache-2.0.

- Routing `prompt-perplexity`: softmax over the `routing_top_k` largest 1 / PPL_j, where PPL_j is the perplexity of
  member j on the first `routing_tokens` tokens (MergeME, Zhou et al. 2025, §3.1.3). The weights stay for the rest of
  the sequence, in which members without a weight do not run; before there are so many tokens, all members count alike.
  0 tokens stand for all tokens of the first call, the prompt in generation: its perplexities then weigh all tokens of
  that call too, so that the probability of a token depends on tokens after it. Without a cache, every call is a prompt.
- `config.mixing` `logits`: log p(x_t | x_<t) = sum_j w_j log p_j(x_t | x_<t) + constant (FlexOlmo, Shi et al. 2025,
  A.1). As log p_j is member j's logits less a number that is the same for all tokens of the vocabulary, the sum of the
  logits gives the same probabilities.

Both go with all that the ensemble takes: caches, padding, batches and beams.
"""

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from .modeling_ensemble import CACHE, EnsembleForCausalLM


class MixedEnsembleForCausalLM(EnsembleForCausalLM):
    """The members, weighed by any routing, and mixed as probabilities or as logits."""

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
        columns = input_ids.shape[1]
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, -columns:]
        places = torch.arange(columns, device=input_ids.device)
        places = places[-logits_to_keep:] if isinstance(logits_to_keep, int) else places[logits_to_keep]
        cache_position = kwargs.pop("cache_position", None)  # transformers 4 gives it

        def run(index, start, stop):
            """Return a member's logits for the columns from `start`, where its cache ends, to `stop`."""
            past = 0 if attention_mask is None else attention_mask.shape[1] - columns
            some = {} if cache_position is None else {"cache_position": cache_position[start:stop]}
            logits = self.members[index](
                input_ids=input_ids[:, start:stop],
                attention_mask=None if attention_mask is None else attention_mask[:, : past + stop],
                position_ids=None if position_ids is None else position_ids[..., start:stop],
                use_cache=cache is not None,
                **{CACHE: None if cache is None else cache.members[index]},
                **some,
                **kwargs,
            ).logits
            return logits.to(input_ids.device)

        # All members have run on the first `ready` columns; `heads` has their logits at those of them that are kept.
        weights, ready, heads = self._weights(run, input_ids, real.bool(), places, {} if cache is None else cache.rows)
        early, shape = places < ready, (len(input_ids), len(places), self.config.vocab_size)
        by_logits = self.config.mixing == "logits"
        least = torch.finfo(torch.float32).min  # -inf has no gradient
        mixed = torch.full(shape, 0.0 if by_logits else least, device=input_ids.device)
        for index in range(len(self.members)):
            used = weights[:, :, index].isfinite().any(dim=0)
            first, later = (used[places] & early).nonzero()[:, 0], (used[places] & ~early).nonzero()[:, 0]
            stop = max([ready, *(places[later] + 1).tolist(), *([columns] if cache is not None and used[-1] else [])])
            parts = [heads[index][:, used[places[early]]]] if len(first) else []
            if stop > ready:
                start = 0 if cache is None else ready
                parts.append(run(index, start, stop)[:, places[later] - start])
            if not parts:
                continue
            chosen = torch.cat([first, later])
            own = torch.cat(parts, dim=1).float().log_softmax(dim=-1)
            weight = weights[:, places[chosen], index, None].float()
            if by_logits:
                mixed = mixed.index_add(1, chosen, weight.exp() * own.clamp(min=least))
            else:
                mixed = mixed.index_copy(1, chosen, torch.logaddexp(mixed[:, chosen], own + weight))
        if by_logits:
            mixed = mixed.log_softmax(dim=-1)
        if cache is not None:
            cache.length += columns
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=mixed, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=mixed, **{CACHE: cache})

    def _weights(self, run, input_ids, real, places, state):
        """Return log weights (B, S, E), how many columns all members ran on, and their logits at `places` there."""
        if self.config.routing == "prompt-perplexity":
            return self._by_prompt(run, input_ids, real, places, state)
        if self.base is not None:
            return self._by_task_vector(input_ids, real, state), 0, ()
        columns = input_ids.shape[1]
        every = [run(index, 0, columns) for index in range(len(self.members))]
        return self._by_evidence(every, input_ids, real, state), columns, [logits[:, places] for logits in every]

    def _by_prompt(self, run, input_ids, real, places, state):
        """Return what `_weights` does, by each member's perplexity on each sequence's first tokens.

        `state` holds, for each sequence, how many tokens there were, the summed log likelihoods of those that decide,
        how many these are of, and while some are awaited each member's distribution after the last token.
        """
        needed, rows = self.config.routing_tokens, len(input_ids)
        exact = torch.float32 if input_ids.device.type == "mps" else torch.float64
        count = state.get("count", input_ids.new_zeros(rows))
        total = state.get("total", torch.zeros(rows, len(self.members), dtype=exact, device=input_ids.device))
        scored = state.get("scored", input_ids.new_zeros(rows))
        ordinal = count.unsqueeze(1) + real.cumsum(dim=1)
        deciding = real & (ordinal <= needed) if needed else real & ("count" not in state)
        ready = int((deciding.any(dim=0).nonzero() + 1).max()) if deciding.any() else 0
        row = torch.arange(rows, device=input_ids.device).unsqueeze(1)
        latest = torch.where(real, torch.arange(real.shape[1], device=real.device), -1)[:, :ready].cummax(dim=1).values
        before = torch.cat([torch.full_like(row, -1), latest], dim=1)[:, :ready]  # where x_t was predicted
        told = deciding[:, :ready] & ((before >= 0) | (count > 0).unsqueeze(1))
        awaited = bool((ordinal[:, -1] < needed).any())
        gains, ends, heads = [], [], []
        for index in range(len(self.members)) if ready else ():
            logits, ids = run(index, 0, ready), input_ids[:, :ready]
            gain = logits[row, before, ids].float() - logits.float().logsumexp(dim=-1)[row, before]
            if "ends" in state:
                gain = torch.where(before >= 0, gain, state["ends"][:, index].gather(1, ids))
            if awaited:
                end = logits[row, latest[:, -1:]].squeeze(1).float().log_softmax(dim=-1)
                ends.append(torch.where(latest[:, -1:] >= 0, end, state["ends"][:, index]) if "ends" in state else end)
            gains.append(gain.masked_fill(~told, 0.0).to(exact).sum(dim=1))
            heads.append(logits[:, places[places < ready]])
        if ready:
            total, scored = total + torch.stack(gains, dim=1), scored + told.sum(dim=1)
            state.pop("ends", None)
            state.update({"ends": torch.stack(ends, dim=1)} if awaited else {})
        state.update(count=ordinal[:, -1], total=total, scored=scored)
        likelihood = (total / scored.clamp(min=1).unsqueeze(1)).exp()  # 1 / PPL, a token's geometric mean
        scores = (likelihood / self.config.routing_temperature).unsqueeze(1).expand(*real.shape, -1)
        known = ordinal >= needed if needed else (scored > 0).unsqueeze(1).expand_as(real)
        return self._weigh(scores, known), ready, heads
