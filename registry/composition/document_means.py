"""Documents as their mean MLP inputs in a model."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from registry.calibration import Corpus
from registry.calibration.windows import encode
from registry.checkpoint import Checkpoint
from registry.composition.passes import PassContext, stored_folder
from registry.errors import CalibrationError
from registry.io.dtypes import AUTO
from registry.maths.soup_weights import nearest_shares
from registry.member import Member
from registry.progress import Progress
from registry.runtime.layerwise import seen_inputs
from registry.runtime.loading import load_tokenizer
from registry.runtime.upcast import load_for_pass

DOCUMENT_TOKENS = 256
"""Tokens of a document that are used at most."""


def document_means(
    base: Member | Checkpoint, model: Any, corpus: Corpus, tokenizer: Any, progress: Progress
) -> Iterator[tuple[int, Float64[Tensor, "L H"]]]:
    """Yield the number of each document that has a token, from 0, and the mean MLP inputs of its first tokens."""
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


def shares_of_text(
    base: Member, paths: Sequence[Path], centroids: Float64[Tensor, "k L H"], device: str | None, context: PassContext
) -> Float64[Tensor, "k"]:
    """Return the share of the documents of files that are nearest to each centroid.

    Centroids are mean MLP inputs of the last L layers (CalibrationError: a file cannot be read, or there is no text).
    """
    with stored_folder(base, context) as folder:
        model, tokenizer = load_for_pass(folder, AUTO, device, prefer_whole=True), load_tokenizer(folder)
    corpus, layers = Corpus(paths, tokenizer), centroids.shape[1]
    means = document_means(base, model, corpus, tokenizer, context.progress)
    shares = nearest_shares((mean[-layers:].flatten() for _, mean in means), centroids.flatten(1))
    if not shares.any():
        raise CalibrationError(f"{corpus.label} holds no text to be like", "give --like a file of documents")
    return shares
