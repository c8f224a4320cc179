"""Several language models side by side, whose predictions or hidden states are added up with a weight for each.

Weights stand as logarithms: 0 for a weight of 1, -inf for a weight of 0. The weights at a token are those with which
the token *after* it is predicted.
"""

import torch
from transformers import DynamicCache
from transformers.cache_utils import Cache

from .modeling_sequences import CACHE, RowsCache, SequenceModel


def on_device_of(weight, tensor):
    """Return `tensor`, of any shape, on the device of `weight`.

    It stays where it is if the weight has no device of its own: accelerate brings weights that do not fit into memory
    when they are needed, and then moves what they are multiplied by as well.
    """
    return tensor if weight.device.type == "meta" else tensor.to(weight.device)


class MembersCache(RowsCache, Cache):
    """A cache for each member, since each has keys and values of its own.

    Args:
        configs: the members' configurations, which say what kind of cache each needs.
    """

    def __init__(self, configs):
        self.members = [DynamicCache(config=config) for config in configs]
        super().__init__(layers=[layer for member in self.members for layer in member.layers])
        self.rows, self.length = {}, 0

    def get_seq_length(self, layer_idx=0):
        """Return P, also where members without a weight have not read all of these tokens."""
        return self.length

    def reset(self):
        """Forget all sequences, so that other ones can begin."""
        super().reset()
        self.length = 0


class MembersModel(SequenceModel):
    """A model with `members`, E modules, each of which is called with token ids and has its own cache."""

    cache_class = MembersCache
    wanted_output = "logits"  # the output of a member that is added up, (B, S, V)

    def _new_cache(self):
        """Return an empty cache with a part for each member."""
        return self.cache_class([member.config for member in self.members])

    def _run(self, index, call, start, stop):
        """Return a member's output for the new tokens from number `start` to `stop` - 1: (B, stop - start, V or H).

        `start` is where the member's cache ends. The output stays on the member's device.
        """
        member = self.members[index]
        first = next(member.parameters())
        past = 0 if call.mask is None else call.mask.shape[1] - call.ids.shape[1]  # P
        cache = None if call.cache is None else call.cache.members[index]
        output = member(
            input_ids=on_device_of(first, call.ids[:, start:stop]),
            attention_mask=None if call.mask is None else on_device_of(first, call.mask[:, : past + stop]),
            position_ids=None if call.positions is None else on_device_of(first, call.positions[..., start:stop]),
            use_cache=cache is not None,
            **{CACHE: cache},
            **{name: value for name, value in call.others.items() if name != "num_items_in_batch"},  # of the loss
        )
        return getattr(output, self.wanted_output)

    def _weighted(self, call, weights, ready=0, heads=()):
        """Yield each member's part of the sum: the tokens that it has a weight at, its output and its weight there.

        Members run on no more than they have to: up to the last kept token at which any sequence gives them a weight,
        or to the end where tokens that follow will need their cache. One without any weight does not run at all.

        Args:
            call: the call.
            weights: log weights, (B, S, E).
            ready: how many of the new tokens all members have read already, to find out their weights.
            heads: each member's output at those of them that are kept, (B, kept ones, V or H).

        Yields:
            Of a member, with n ≤ K: its number; the places in `call.kept` where it counts, (n,) int64; its output
            there, (B, n, V or H); its log weights there, (B, n, 1) float32.
        """
        kept, new = call.kept, call.ids.shape[1]
        read = kept < ready  # (K,)
        for index in range(len(self.members)):
            used = weights[:, :, index].isfinite().any(dim=0)  # by any sequence, (S,)
            earlier, later = (used[kept] & read).nonzero()[:, 0], (used[kept] & ~read).nonzero()[:, 0]
            goes_on = call.cache is not None and used[-1]
            stop = max([ready, *(kept[later] + 1).tolist(), *([new] if goes_on else [])])
            parts = [heads[index][:, used[kept[read]]]] if len(earlier) else []
            if stop > ready:
                start = 0 if call.cache is None else ready  # without a cache the text is read from its beginning
                output = self._run(index, call, start, stop)
                parts.append(output[:, (kept[later] - start).to(output.device)])
            if parts:
                chosen = torch.cat([earlier, later])
                yield index, chosen, torch.cat(parts, dim=1), weights[:, kept[chosen], index, None].float()
        if call.cache is not None:
            call.cache.length += new

    def _first_tokens(self, call, rows):
        """Return which tokens decide about a sequence's weights: its first `routing_tokens`.

        With `routing_tokens` 0 these are all tokens of the first call, which in generation is the prompt.

        Returns:
            Which token of its sequence each new one is, counted from 1 over all calls and without padding, (B, S)
            int64; and whether it decides, (B, S) bool.
        """
        ordinal = rows.get("count", call.ids.new_zeros(len(call.ids))).unsqueeze(1) + call.real.cumsum(dim=1)
        needed = self.config.routing_tokens
        return ordinal, call.real & (ordinal <= needed) if needed else call.real & ("count" not in rows)

    def _weigh(self, scores, known):
        """Return log weights: the log softmax of the `routing_top_k` largest scores, the others -inf.

        Args:
            scores: what speaks for each member at each token, (B, S, E).
            known: whether the text up to a token says anything of the members, (B, S) bool. Where it does not, all
                members have their weight of before.

        Returns:
            (B, S, E), of the dtype of the scores.
        """
        best = scores.topk(self.config.routing_top_k, dim=-1)
        kept = torch.full_like(scores, -torch.inf).scatter(-1, best.indices, best.values)
        return torch.where(known.unsqueeze(-1), kept, self._log_prior(scores)).log_softmax(dim=-1)

    def _log_prior(self, like):
        """Return the logarithms of the members' weights before any text, (E,), in the dtype and place of `like`."""
        prior = getattr(self.config, "routing_prior", None)
        return like.new_zeros(like.shape[-1]) if prior is None else like.new_tensor(prior).log()
