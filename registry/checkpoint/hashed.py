"""A checkpoint read whole, once: every weight finite, every tensor and file identified."""

from dataclasses import dataclass

from registry.checkpoint.checkpoint import Checkpoint
from registry.checkpoint.tokenizer import identify
from registry.progress import Progress
from store.arrays import digest_of
from store.digest import json_digest


@dataclass(frozen=True)
class HashedCheckpoint:
    """A checkpoint whose every byte has been read once: its weights are finite, and these are its digests.

    Attributes:
        checkpoint: the folder.
        tensors: tensor name → digest of its array.
        files: file name → content.
        weights: digest over all tensors, by which statistics name the weights they belong to.
        tokenizer: what identifies the tokenizer, or None where there is none.
        tokens: how many tokens it knows, or None where that cannot be told.
    """

    checkpoint: Checkpoint
    tensors: dict[str, str]
    files: dict[str, bytes]
    weights: str
    tokenizer: str | None
    tokens: int | None


def hash_checkpoint(checkpoint: Checkpoint, progress: Progress) -> HashedCheckpoint:
    """Read a checkpoint whole.

    Raises:
        CheckpointError: weights are NaN or infinite, or a file cannot be read.
    """
    files = checkpoint.files()
    tokenizer, tokens = identify(files)
    sources = {name: checkpoint.source(name) for name in (*checkpoint.trunk, *checkpoint.mlp)}
    tensors = {}
    with progress("hashing", sum(source.nbytes for source in sources.values()), "B") as advance:
        for name, source in sources.items():
            tensors[name] = digest_of(source)
            advance(source.nbytes)
    return HashedCheckpoint(checkpoint, tensors, files, json_digest(tensors), tokenizer, tokens)
