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

from .modeling_ensemble import LEAST, EnsembleForCausalLM, _exact, _latest


class MixedEnsembleForCausalLM(EnsembleForCausalLM):
    """The members, weighed by any routing, and mixed as probabilities or as logits."""

    def _mix(self, shape, device, outputs):
        """Return the logarithm of the mixture, (B, K, V) float32 (arguments as in the ensemble)."""
        if self.config.mixing != "logits":
            return super()._mix(shape, device, outputs)
        mixed = torch.zeros(shape, device=device)
        for _, chosen, logits, weight in outputs:
            own = logits.float().log_softmax(dim=-1).to(device).clamp(min=LEAST)  # log p_j, (B, n, V)
            mixed = mixed.index_add(1, chosen, weight.exp() * own)
        return mixed.log_softmax(dim=-1)

    def _weights(self, call):
        """Return the log weights (B, S, E), and what the members computed to find them out (as in the ensemble)."""
        if self.config.routing != "prompt-perplexity":
            return super()._weights(call)
        return self._by_prompt(call, {} if call.cache is None else call.cache.rows)

    def _by_prompt(self, call, rows):
        """Return what `_weights` does, by each member's perplexity on each sequence's first tokens.

        Members run on the tokens up to the last one that decides for any sequence; these are R.

        `rows` holds, for each sequence, how many tokens there were (`count`, (B,)), each member's log likelihood of
        those that decide (`total`, (B, E)), of how many it is (`scored`, (B,)), and while some are awaited each
        member's distribution of the token after the last one (`ends`, (B, E, V)).
        """
        ids, needed, batch, exact = call.ids, self.config.routing_tokens, len(call.ids), _exact(call.ids)
        count = rows.get("count", ids.new_zeros(batch))
        total = rows.get("total", torch.zeros(batch, len(self.members), dtype=exact, device=ids.device))
        scored = rows.get("scored", ids.new_zeros(batch))
        ordinal, deciding = self._first_tokens(call, rows)
        ready = int((deciding.any(dim=0).nonzero() + 1).max()) if deciding.any() else 0  # R
        awaited = bool((ordinal[:, -1] < needed).any())
        gains, ends, heads = [], [], []
        if ready:
            latest, before = _latest(call.real[:, :ready])
            # Not the very first token, which nobody predicted, (B, R).
            told = deciding[:, :ready] & ((before >= 0) | (count > 0).unsqueeze(1))
            for index in range(len(self.members)):
                logits = self._run(index, call, 0, ready).to(ids.device)
                gain, end = self._read(index, logits, ids[:, :ready], latest, before, rows)
                gains.append(gain.masked_fill(~told, 0.0).to(exact).sum(dim=1))
                ends.append(end)
                heads.append(logits[:, call.kept[call.kept < ready]])
            total, scored = total + torch.stack(gains, dim=1), scored + told.sum(dim=1)
            rows.pop("ends", None)
            rows.update({"ends": torch.stack(ends, dim=1)} if awaited else {})
        rows.update(count=ordinal[:, -1], total=total, scored=scored)
        likelihood = (total / scored.clamp(min=1).unsqueeze(1)).exp()  # 1 / PPL, a token's geometric mean, (B, E)
        scores = (likelihood / self.config.routing_temperature).unsqueeze(1).expand(*ids.shape, -1)
        known = ordinal >= needed if needed else (scored > 0).unsqueeze(1).expand_as(ids)
        return self._weigh(scores, known), ready, heads
