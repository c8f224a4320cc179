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
    seen: dict[int, Tensor] = {}
    handles = [
        module.register_forward_pre_hook(lambda _module, inputs, layer=layer: seen.update({layer: inputs[0]}))
        for layer, module in enumerate(base.family.mlps(model))
    ]
    try:
        with torch.no_grad(), progress("embedding", sum(1 for _ in corpus), "document") as advance:
            for number, document in enumerate(corpus):
                tokens = encode(document, tokenizer)[:limit]
                if tokens:
                    model.base_model(input_ids=torch.tensor([tokens], device=model.device), use_cache=False)
                    inputs = [seen[layer].reshape(-1, seen[layer].shape[-1]) for layer in seen]  # (1, T, H) → (T, H)
                    yield number, torch.stack([x.double().mean(0) for x in inputs]).cpu()
                advance(1)
    finally:
        for handle in handles:
            handle.remove()
