"""Registering: a checkpoint's weights, files and statistics become content-addressed arrays and one immutable version.

Order of writing, so that a crash leaves at most arrays that nobody names: everything is checked, the statistics are
taken, the arrays are written and read back, and one transaction of the catalog makes them visible.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from registry.checkpoint import HashedCheckpoint
from registry.maths.statistics import Statistics
from registry.progress import Progress
from registry.statistics_file import Collected
from registry.tensors import to_block
from store.arrays import ArraySource, ArrayStore
from store.catalog import ArrayLink, NewVersion, StatisticsRecord, VersionRecord
from store.catalog.records import Kind, Role
from store.digest import json_digest

CONTENT_FORMAT = 1


@dataclass(frozen=True)
class Registration:
    """What registering did.

    Attributes:
        version: the version that holds the content.
        added: False where the same content was there already.
        self_sampled: the expert wrote its own calibration text, because nothing else was given.
    """

    version: VersionRecord
    added: bool
    self_sampled: bool = False


def content_of(hashed: HashedCheckpoint, kind: Kind, licence: str | None, *, kept: bool = False) -> dict[str, Any]:
    """Return what a version says of itself beside its arrays; both together have the content digest.

    `kept` tells whether its calibration tokens are among the arrays.
    """
    checkpoint = hashed.checkpoint
    return {
        "format": CONTENT_FORMAT,
        "kind": kind,
        "family": checkpoint.family.model_type,
        "architecture": checkpoint.architecture.to_dict(),
        "dtype": checkpoint.dtype,
        "special_tokens": checkpoint.special_tokens,
        "weights": hashed.weights,
        "tokenizer": hashed.tokenizer,
        "license": licence,
        "calibration_kept": kept,
    }


def content_digest(content: dict[str, Any], arrays: list[ArrayLink] | tuple[ArrayLink, ...]) -> str:
    """Return the digest of a version: of what it says, and of the digest of every array by role and name."""
    return json_digest([content, sorted([link.role, link.name, link.digest] for link in arrays)])


def write_arrays(
    store: ArrayStore, hashed: HashedCheckpoint, collected: Collected | None, progress: Progress
) -> tuple[ArrayLink, ...]:
    """Write every array of a version that is not there yet, and return what each is to it.

    Raises:
        StorageError: the disk refused.
        DamagedError: what was read back is not what was written, or the checkpoint changed meanwhile.
    """
    links = []
    items = list(_arrays(hashed, collected))
    with progress("storing", sum(source.nbytes for _, _, source, _ in items), "B") as advance:
        for role, name, source, digest in items:
            digest = store.put(source, compress=role == "statistics", digest=digest)
            links.append(ArrayLink(role, name, digest, source.dtype, source.shape, source.nbytes))
            advance(source.nbytes)
    return tuple(links)


def new_version(
    name: str,
    kind: Kind,
    hashed: HashedCheckpoint,
    licence: str | None,
    collected: Collected | None,
    tags: dict[str, str],
    arrays: tuple[ArrayLink, ...],
) -> NewVersion:
    """Return the version as the catalog takes it."""
    kept = collected is not None and collected.calibration is not None
    content = content_of(hashed, kind, licence, kept=kept)
    statistics: tuple[StatisticsRecord, ...] = ()
    if collected is not None:
        statistics = tuple(
            StatisticsRecord(
                site,
                layers[0].count,
                sum(layer.saturated for layer in layers),
                collected.calibration_digest,
                collected.calibration_label,
            )
            for site, layers in collected.sites.items()
        )
    return NewVersion(
        name,
        kind,
        content_digest(content, arrays),
        content,
        hashed.checkpoint.parameters,
        arrays,
        statistics,
        tags,
    )


def find_same(
    candidates: list[VersionRecord],
    content: dict[str, Any],
    calibration_digest: str | None,
    calibration_label: str,
) -> VersionRecord | None:
    """Return the active version that already holds `content` with this calibration, if any.

    It lets a repeated registration end before its forward pass. Text that the expert is still to write has no digest
    yet (`calibration_digest` None); its label tells how it is made, which with the weights decides it.
    """
    for version in candidates:
        if version.content != content:
            continue
        for taken in version.statistics:
            if calibration_digest in (taken.calibration_digest, None) and (
                calibration_digest is not None or taken.calibration_label == calibration_label
            ):
                return version
    return None


def _arrays(
    hashed: HashedCheckpoint, collected: Collected | None
) -> Iterator[tuple[Role, str, ArraySource, str | None]]:
    """Yield (role, name, array, its digest if known) for everything a version consists of."""
    checkpoint = hashed.checkpoint
    for name in checkpoint.trunk:
        yield "trunk", name, checkpoint.source(name), hashed.tensors[name]
    for name in checkpoint.mlp:
        yield "mlp", name, checkpoint.source(name), hashed.tensors[name]
    for name, data in hashed.files.items():
        yield "file", name, _source(torch.frombuffer(bytearray(data), dtype=torch.uint8), "uint8"), None
    if collected is None:
        return
    for site, layers in collected.sites.items():
        yield (
            "statistics",
            f"{site}/exponents",
            _source(torch.stack([t.exponents for t in layers]), "int16"),
            None,
        )
        yield (
            "statistics",
            f"{site}/saturated",
            _source(torch.tensor([t.saturated for t in layers]), "int64"),
            None,
        )
        for number, layer in enumerate(layers):
            yield "statistics", f"{site}/gram/{number}", _packed(layer), None
    if collected.calibration is not None:
        yield "calibration", "ids", _source(collected.calibration.ids, "int32"), None
        yield "calibration", "lengths", _source(collected.calibration.lengths, "int32"), None


def _source(tensor: torch.Tensor, dtype: str) -> ArraySource:
    return ArraySource.of(to_block(tensor), dtype)


def _packed(layer: Statistics) -> ArraySource:
    size = len(layer.matrix)  # packed only while it is written: all layers at once would double the memory
    return ArraySource("int64", (size * (size + 1) // 2,), lambda: _source(layer.packed(), "int64").blocks())
