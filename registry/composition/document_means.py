"""Documents as their mean MLP inputs in a model."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from registry.calibration import Corpus
from registry.calibration.windows import encode
from registry.checkpoint import Checkpoint
from registry.member import Member
from registry.progress import Progress
from registry.runtime.seen_inputs import seen_inputs

DOCUMENT_TOKENS = 256
"""Tokens of a document that are used at most."""


def document_means(
    base: Member | Checkpoint, model: Any, corpus: Corpus, tokenizer: Any, progress: Progress
) -> Iterator[tuple[int, Float64[Tensor, "L H"]]]:
    """Yield the number of each document that has a token, from 0, and its mean MLP inputs in the base model.

    Args:
        corpus: the documents, of which the first `DOCUMENT_TOKENS` tokens are used.
    """
    limit = min(DOCUMENT_TOKENS, base.architecture.max_position_embeddings)
    with (
        seen_inputs(base.family.mlps(model)) as seen,
        torch.no_grad(),
        progress("embedding", sum(1 for _ in corpus), "document") as advance,
    ):
        for number, document in enumerate(corpus):
            tokens = encode(document, tokenizer)[:limit]
            if tokens:
                model.base_model(input_ids=torch.tensor([tokens], device=model.device), use_cache=False)
                inputs = [x.reshape(-1, x.shape[-1]) for x in seen.values()]  # (1, T, H) → (T, H)
                yield number, torch.stack([x.double().mean(0) for x in inputs]).cpu()
            advance(1)
