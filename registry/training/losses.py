"""The language-model loss of a batch.

Shapes: B windows of S tokens, V vocabulary.
"""

from typing import Any

import torch.nn.functional as F
from jaxtyping import Bool, Int64
from torch import Tensor


def next_token_loss(model: Any, ids: Int64[Tensor, "B S"], keep: Bool[Tensor, "B S"], reduction: str) -> Tensor:
    """Return the loss of a model's predictions in nats, a scalar.

    Args:
        model: a causal language model, on its device.
        ids: tokens.
        keep: whether each counts; padding does not.
        reduction: `mean` over the tokens that are predicted, or `sum`.
    """
    ids, keep = ids.to(model.device), keep.to(model.device)
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    # The logits (B, S, V) at token t predict token t + 1; nothing predicts the first token.
    targets = ids[:, 1:].masked_fill(~keep[:, 1:], -100)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction=reduction)
