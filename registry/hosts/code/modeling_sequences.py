"""Models that weigh experts by each sequence's own text: the part that all of them share.

Shapes, in this file and in those that build on it:

    B  sequences of a call                       E  experts (members)
    P  tokens of each that the cache holds       V  tokens of the vocabulary
    S  tokens of each that the call adds         H  hidden size
    K  those of the S whose logits are wanted

"Padding" is a token that the attention mask leaves out: it is read by no expert, and says nothing of the experts.
"""

from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import can_return_tuple

# The name of a cache in calls and outputs: transformers 5.24 calls `cache` what was `past_key_values`.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


@dataclass
class Call:
    """The arguments of one call of a model, checked and in one form.

    Attributes:
        ids: the new tokens, (B, S) int64.
        mask: 1 for a token and 0 for padding, of the cache's tokens and the new ones, (B, P + S); None without padding.
        positions: of the new tokens, (B, S) or (1, S) int64; None where the model is to count them.
        real: which of the new tokens are no padding, (B, S) bool.
        kept: numbers of the new tokens whose logits are wanted, from 0 to S - 1, (K,) int64.
        cache: the cache, which is filled in this call; None where nothing follows.
        others: all other arguments, which the experts get as they are.
    """

    ids: torch.Tensor
    mask: torch.Tensor | None
    positions: torch.Tensor | None
    real: torch.Tensor
    kept: torch.Tensor
    cache: Cache | None
    others: dict


class RowsCache:
    """A cache that also keeps what the text so far says of the experts, beside keys and values.

    `rows` holds tensors by name, each with one row for each sequence, (B, ...). Whatever happens to the sequences of a
    cache, such as in beam search, happens to these rows: else a sequence would go on with another one's experts. It is
    a base class to be named before a class of transformers, whose methods it extends.
    """

    cannot_forget = "this cache cannot forget tokens: its weights may come from them"

    def reset(self):
        """Forget all sequences, so that other ones can begin."""
        super().reset()
        self.rows = {}

    def reorder_cache(self, beam_idx):
        """Put sequence `beam_idx[i]` in the place of sequence i; `beam_idx` is (B,) int64."""
        super().reorder_cache(beam_idx)
        self.rows = {name: rows[beam_idx.to(rows.device)] for name, rows in self.rows.items()}

    def batch_select_indices(self, indices):
        """Keep some of the sequences, in this order; `indices` is (n,) int64, and B becomes n."""
        super().batch_select_indices(indices)
        self.rows = {name: rows[indices] for name, rows in self.rows.items()}

    def batch_repeat_interleave(self, repeats):
        """Have `repeats` copies of each sequence, one after another; B becomes B * repeats."""
        super().batch_repeat_interleave(repeats)
        self.rows = {name: rows.repeat_interleave(repeats, dim=0) for name, rows in self.rows.items()}

    def crop(self, tokens_to_remove):
        """Refuse to forget the last tokens: `rows` hold sums over all tokens, which a single one cannot leave again."""
        if tokens_to_remove:
            raise NotImplementedError(self.cannot_forget)


class SequenceModel:
    """The call of a model whose experts are weighed by each sequence's own text.

    It is a base class to be named before one of transformers. Subclasses have `_answer`, which computes the logits,
    `_new_cache`, and their own words for what they cannot take.
    """

    cache_class = RowsCache
    needs_ids = "this model takes input_ids"
    needs_mask = "this model takes an attention mask of (batch, tokens)"
    foreign_cache = "this cache is of another model"

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
        """Return the logits of the tokens after each of the given ones, and the loss where there are labels.

        Args:
            input_ids: the new tokens, (B, S) int64.
            attention_mask: 1 for a token and 0 for padding, of the cache's tokens and the new ones, (B, P + S).
            position_ids: of the new tokens, (B, S) or (1, S); by default they are counted.
            past_key_values: the cache that an earlier call returned, for the tokens before; since transformers 5.24 it
                is called `cache`.
            inputs_embeds: refused. The experts are weighed by tokens, which embeddings do not tell.
            labels: the tokens to predict, (B, S), -100 where there is none; they are shifted by one in here.
            use_cache: fill a cache and return it; by default as the configuration says.
            logits_to_keep: of how many of the last tokens logits are wanted, 0 for all; or the tokens' numbers, (K,).
            kwargs: given on to the experts.

        Returns:
            `logits` of (B, K, V), `loss`, a scalar or None, and the cache under the name `CACHE`, if there is one.
        """
        if input_ids is None or inputs_embeds is not None:
            raise ValueError(self.needs_ids)
        if attention_mask is not None and attention_mask.ndim != 2:
            raise ValueError(self.needs_mask)
        cache = self._cache_for(
            kwargs.pop(CACHE, past_key_values), self.config.use_cache if use_cache is None else use_cache
        )
        kwargs.pop("cache_position", None)  # transformers 4 gives it; each expert finds it in its own cache
        new = input_ids.shape[1]  # S
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask[:, -new:]
        kept = torch.arange(new, device=input_ids.device)
        kept = kept[-logits_to_keep:] if isinstance(logits_to_keep, int) else kept[logits_to_keep]
        found = self._answer(Call(input_ids, attention_mask, position_ids, real != 0, kept, cache, kwargs))
        loss = None
        if labels is not None:
            logits = found["logits"]
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, **found, **{CACHE: cache})

    def _answer(self, call):
        """Return what the output has by name: `logits`, (B, K, V), and hidden states or attentions that are wanted."""
        raise NotImplementedError

    def _new_cache(self):
        """Return an empty cache of `cache_class`."""
        raise NotImplementedError

    def _cache_for(self, given, wanted):
        """Return the cache to go on with, or None.

        `generate` makes a cache for a single model before it calls this one. It is still empty then, and is replaced.

        Args:
            given: the cache of the call, or None.
            wanted: whether a cache is to be returned if none of ours was given.
        """
        if isinstance(given, self.cache_class):
            return given
        if given is not None and given.get_seq_length():
            raise ValueError(self.foreign_cache)
        return self._new_cache() if wanted else None
