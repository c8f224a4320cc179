"""Digests of a checkpoint's tensors and files, computed in one read that also checks that its weights are finite."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from registry.checkpoint.checkpoint import Checkpoint
from registry.checkpoint.router_rows import ROUTER_FILE, unpack_rows
from registry.checkpoint.simoe_files import SIMOE_FILE, check_delta, open_arrays, read_simoe
from registry.checkpoint.soup_files import SOUP_FILE, SOUP_ROUTER, read_soup, unpack_router
from registry.checkpoint.tokenizer import identify
from registry.maths.threads import prepare_threads
from registry.progress import Progress
from store.arrays import ArraySource, digest_of
from store.digest import json_digest

HASHERS = 4
"""Tensors that are read and hashed at once; each holds one block of rows."""


@dataclass(frozen=True)
class HashedCheckpoint:
    """A checkpoint with finite weights, and its digests.

    Attributes:
        checkpoint: the checkpoint.
        tensors: tensor name → digest of its array.
        files: file name → content.
        weights: digest over all tensors; statistics refer to their weights by it.
        tokenizer: digest of the tokenizer, or None without one.
        tokens: number of tokens in its vocabulary, or None without a tokenizer.json.
        soup: what it is in a soup that was trained; None outside of one.
        simoe: its part in a SIMoE that was trained; None outside of one.
        own: its arrays there, by name, and `own_digests` their digests.
    """

    checkpoint: Checkpoint
    tensors: dict[str, str]
    files: dict[str, bytes]
    weights: str
    tokenizer: str | None
    tokens: int | None
    soup: dict[str, Any] | None = None
    simoe: dict[str, Any] | None = None
    own: dict[str, ArraySource] = field(default_factory=dict)
    own_digests: dict[str, str] = field(default_factory=dict)


def hash_checkpoint(checkpoint: Checkpoint, progress: Progress) -> HashedCheckpoint:
    """Read all of a checkpoint, and return its digests.

    Raises:
        CheckpointError: weights are NaN or infinite, or a file cannot be read or is of another form.
    """
    files = checkpoint.files()
    if ROUTER_FILE in files:
        size = checkpoint.architecture.num_hidden_layers, checkpoint.architecture.hidden_size
        unpack_rows(files[ROUTER_FILE], size, checkpoint.label)
    soup = None if SOUP_FILE not in files else read_soup(files[SOUP_FILE], checkpoint.label)
    if SOUP_ROUTER in files:
        unpack_router(files[SOUP_ROUTER], soup or {}, checkpoint.architecture.hidden_size, checkpoint.label)
    simoe = None if SIMOE_FILE not in files else read_simoe(files[SIMOE_FILE], checkpoint.label)
    own = {} if simoe is None else _own_arrays(checkpoint)
    tokenizer, tokens = identify(files)
    names = (*checkpoint.trunk, *checkpoint.mlp)
    sources = {("", name): checkpoint.source(name) for name in names} | {("own", name): own[name] for name in own}
    tensors = {}
    prepare_threads()
    with (
        progress("hashing", sum(source.nbytes for source in sources.values()), "B") as advance,
        ThreadPoolExecutor(HASHERS, thread_name_prefix="hashing") as pool,
    ):
        futures = {name: pool.submit(digest_of, source) for name, source in sources.items()}
        try:
            for name, future in futures.items():
                tensors[name] = future.result()
                advance(sources[name].nbytes)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    weights, arrays = ({name: tensors[kind, name] for kind, name in tensors if kind == of} for of in ("", "own"))
    if simoe is not None:
        check_delta(simoe, arrays, checkpoint.label)
    digest = json_digest(weights)
    return HashedCheckpoint(checkpoint, weights, files, digest, tokenizer, tokens, soup, simoe, own, arrays)


def _own_arrays(checkpoint: Checkpoint) -> dict[str, ArraySource]:
    architecture = checkpoint.architecture
    shapes = {name: checkpoint.shapes[name] for name in checkpoint.family.layer_matrices(architecture)}
    return open_arrays(checkpoint.folder, shapes, architecture.hidden_size, checkpoint.label)
