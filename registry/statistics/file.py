"""`statistics.safetensors`: the file format of an expert's statistics, which travel while the data stays.

Tensors: `<site>.exponents` int16 (L, C) · `<site>.gram.<layer>` int64, the packed upper triangle of G ·
`token_counts` int64 (V,) · `content_counts` int64 (V,), those that are evidence, and with it `pair_counts` int32
(P, 3): two tokens, and how often they follow one another (files of earlier releases may lack both) · with kept
calibration also `calibration.ids` int32 (N, S) and `calibration.lengths` int32 (N,). The header has the digest of the
weights that they belong to.

Earlier releases also kept parts of the sums, `<site>.fold.<layer>.<fold>`, in the form of `gram`, which is the sum of
all parts. Nothing is computed from them; they are carried on, because the digest of a version covers them.

Shapes: L layers, V vocabulary, N windows, S tokens of a window; C channels of a site, G (C + 1, C + 1) packed to
P = (C + 1)(C + 2) / 2 integers.
"""

import json
import os
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int16, Int64
from torch import Tensor

from registry.calibration import Calibration
from registry.errors import CheckpointError, DamagedError, first_line
from registry.families.sites import CONTENT_COUNTS, COUNTS, PAIR_COUNTS, TOKEN_COUNTS
from registry.io.dtypes import NAMES
from registry.io.safetensors_file import Entry, Stream, read_header, replace_shard
from registry.io.torch_blocks import to_block, torch_dtype
from registry.io.untrusted import COUNT, DIGEST, LABEL, OBJECT, TEXT, WHOLE, Kind, fields, json_object, list_of, maybe
from registry.maths.statistics import PackedStatistics, Statistics
from store.arrays import ArraySource


@dataclass(frozen=True)
class OpenTensors:
    """The tensors of an open safetensors file, by its descriptor: it stays readable if it is deleted meanwhile.

    They are read, not mapped, so that they leave the memory after their use.
    """

    file: int
    entries: dict[str, Entry]

    @classmethod
    def open(cls, path: Path) -> "OpenTensors":
        """Open a file, which is closed with the last reference to it (CheckpointError: it cannot be read)."""
        entries = read_header(path).tensors
        try:
            opened = cls(os.open(path, os.O_RDONLY), entries)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}", "copy the file again") from error
        weakref.finalize(opened, os.close, opened.file)
        return opened

    def fill(self, name: str, begin: int, into: Tensor) -> None:
        """Read elements from number `begin` on into a contiguous tensor of their dtype (DamagedError: too few)."""
        rest, at = into.numpy().data.cast("B"), self.entries[name].begin + into.element_size() * begin
        while rest:
            if not (read := os.preadv(self.file, [rest], at)):
                raise DamagedError("a file of statistics ends early", "repeat the command: the file is made again")
            rest, at = rest[read:], at + read

    def read(self, name: str) -> Tensor:
        """Return a whole tensor of integers or of float64 (errors as `fill`)."""
        entry = self.entries[name]
        found = torch.empty(entry.shape, dtype=torch_dtype(NAMES[entry.dtype]))
        self.fill(name, 0, found)
        return found

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Return some rows of a matrix of float64, (r, H)."""
        _, width = self.entries[name].shape
        found = torch.empty((stop - start, width), dtype=torch.float64)
        self.fill(name, start * width, found)
        return found


@dataclass(frozen=True, eq=False)
class LazyStatistics:
    """The statistics of one layer, as `PackedStatistics` but read or packed when they are asked for."""

    exponents: Int16[Tensor, "C"]
    saturated: int
    packed: Callable[[], Int64[Tensor, "P"]]

    @property
    def shape(self) -> tuple[int]:
        """The shape (P,) of `packed`."""
        size = self.exponents.numel() + 1
        return (size * (size + 1) // 2,)

    @property
    def source(self) -> ArraySource:
        """The array of `packed`."""
        return _lazy(self.shape, self.packed)


def _lazy(shape: tuple[int, ...], read: Callable[[], Tensor]) -> ArraySource:
    """Return an array that is read or packed only while it is written: all layers at once would double the memory."""
    return ArraySource("int64", shape, lambda: ArraySource.of(to_block(read()), "int64").blocks())


@dataclass(frozen=True, eq=False)
class LazyLayers(Sequence[Statistics]):
    """Statistics of a site layer by layer, of which each is read at every access."""

    items: tuple[LazyStatistics, ...]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        item = self.items[index]
        return PackedStatistics(item.packed(), item.exponents, item.saturated).unpacked()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(own == item for own, item in zip(self, other, strict=True))


def lazy_layers(layers: Sequence[Statistics]) -> tuple[LazyStatistics, ...]:
    """Return statistics, in memory or in files, to be read or packed one by one."""
    if isinstance(layers, LazyLayers):
        return layers.items
    return tuple(LazyStatistics(layer.exponents, layer.saturated, layer.packed) for layer in layers)


FILE_NAME = "statistics.safetensors"
_FORMAT = "expert-registry statistics 1"
_COMPUTED = {
    "dtype": LABEL,
    "batch_size": WHOLE,
    "device": LABEL,
    "sites": LABEL,
    "folds": WHOLE,
    "evidence": LABEL,
    "evidence_text": DIGEST,
    "evidence_pairs": COUNT,
    "evidence_documents": COUNT,
}
_REDO = "make it again: reg collect CKPT --data FILE --out DIR"
_TENSORS = {
    re.compile(r"[a-z_]{1,40}\.exponents"): ("I16", 2),
    re.compile(r"[a-z_]{1,40}\.gram\.\d{1,6}"): ("I64", 1),
    re.compile(r"[a-z_]{1,40}\.fold\.\d{1,6}\.\d{1,6}"): ("I64", 1),
    re.compile(r"(token|content)_counts"): ("I64", 1),
    re.compile(r"pair_counts"): ("I32", 2),
    re.compile(r"calibration\.ids"): ("I32", 2),
    re.compile(r"calibration\.lengths"): ("I32", 1),
}
"""Pattern of a tensor's name → its dtype and number of axes."""
_LISTS = Kind(
    "an object of lists of counts",
    lambda value: isinstance(value, dict) and all(map(list_of(COUNT).holds, value.values())),
)
_KINDS = {
    "format": TEXT,
    "weights": DIGEST,
    "saturated": _LISTS,
    "calibration_digest": DIGEST,
    "calibration_label": LABEL,
    "computed": OBJECT,
    "done": maybe(_LISTS),
}
# Which older files lack, and short texts.
_ADDED = {"sites", "folds", "evidence", "evidence_text", "evidence_pairs", "evidence_documents"}


@dataclass(frozen=True)
class Collected:
    """Statistics of one expert, and the calibration that they were collected on.

    Attributes:
        sites: site → one statistic a layer, in order; those in a file are read at each access (`LazyLayers`).
        computed: settings that the result depends on: sites, and of a forward pass dtype, batch size and kind of
            device; `evidence` where it has counts of its own, and `evidence_text` the digest of their tokens;
            `evidence_documents` the characters in a thousand that are of no conversation, where others are.
        folds: what statistics of earlier releases have beside their sums: name of the array, as in
            `mlp_input/fold/0/0` → it.
        token_counts: occurrences of each token, int64 of shape (V,).
        content_counts: those that are evidence (`CONTENT_COUNTS`), or None in a file of an earlier release.
        pair_counts: beside them, pairs of tokens and their occurrences (`PAIR_COUNTS`), int32 of shape (P, 3).
        done: site → windows that each layer has counted, in the state of an interrupted pass; None if complete.
    """

    weights: str  # digest of the expert's weights
    sites: Mapping[str, Sequence[Statistics]]
    calibration_digest: str
    calibration_label: str
    computed: dict[str, Any]
    calibration: Calibration | None = None
    folds: Mapping[str, ArraySource] = field(default_factory=dict, compare=False)
    token_counts: torch.Tensor | None = field(default=None, compare=False)  # they follow from the calibration
    content_counts: torch.Tensor | None = field(default=None, compare=False)
    pair_counts: torch.Tensor | None = field(default=None, compare=False)
    done: dict[str, tuple[int, ...]] | None = None

    @property
    def counts_alone(self) -> bool:
        """True if it has token counts and no statistics of a site."""
        return not self.sites and self.token_counts is not None

    @property
    def tokens(self) -> int:
        """Calibration tokens that it counts."""
        if self.sites:
            return next(iter(self.sites.values()))[0].count
        return 0 if self.token_counts is None else int(self.token_counts.sum())

    def packed_statistics(self, site: str, layer: int) -> PackedStatistics:
        """Return the statistics of one site and layer as they are stored."""
        item = lazy_layers(self.sites[site])[layer]
        return PackedStatistics(item.packed(), item.exponents, item.saturated)


def no_pairs(computed: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the pairs of a text that were counted and not stored, as it repeats none; None where none were counted."""
    return torch.zeros((0, 3), dtype=torch.int32) if "evidence_pairs" in computed else None


Part = tuple[str, int, Statistics]  # site, layer, and its statistics


def save(path: Path, collected: Collected, parts: Iterable[Part] | None = None) -> None:
    """Write statistics to `path` atomically (StorageError: the disk is full or refuses).

    `parts` are written in place of its sites, layer by layer in order, so that only one is in memory at a time.
    """
    streams: list[Stream] = []

    def add(name: str, tensor: torch.Tensor) -> None:
        streams.append(Stream.of(name, to_block(tensor), str(tensor.dtype).removeprefix("torch.")))

    exponents: dict[str, list[torch.Tensor]] = {site: [] for site in collected.sites}
    saturated: dict[str, list[int]] = {site: [] for site in collected.sites}
    held = ((site, *one) for site, layers in collected.sites.items() for one in enumerate(lazy_layers(layers)))
    for site, number, layer in held if parts is None else map(_held, parts):
        exponents.setdefault(site, []).append(layer.exponents)
        saturated.setdefault(site, []).append(layer.saturated)
        sources = {f"{site}.gram.{number}": layer.source} | {
            name.replace("/", "."): fold
            for name, fold in collected.folds.items()
            if name.startswith(f"{site}/fold/{number}/")
        }
        streams += [Stream(name, source.dtype, source.shape, source.blocks) for name, source in sources.items()]
    for site, layers in exponents.items():
        add(f"{site}.exponents", torch.stack(layers))  # L tensors (C,) → (L, C)
    for name in (TOKEN_COUNTS, CONTENT_COUNTS, PAIR_COUNTS):
        if (counts := getattr(collected, name)) is not None and len(counts):  # a short text repeats no pair
            add(name, counts)
    if collected.calibration is not None:
        add("calibration.ids", collected.calibration.ids)
        add("calibration.lengths", collected.calibration.lengths)
    document = {
        "format": _FORMAT,
        "weights": collected.weights,
        "saturated": saturated,
        "calibration_digest": collected.calibration_digest,
        "calibration_label": collected.calibration_label,
        "computed": collected.computed,
        "done": collected.done,
    }
    replace_shard(path, streams, {"expert-registry": json.dumps(document)})


def _held(part: Part) -> tuple[str, int, LazyStatistics]:
    """Return a temporary part packed: only its packed half stays in memory."""
    site, number, layer = part
    packed = layer.packed()
    return site, number, LazyStatistics(layer.exponents, layer.saturated, lambda: packed)


def load(path: Path) -> Collected:
    """Open a file that `save` wrote, as untrusted input. Its matrices are checked in shape, and read when needed.

    (CheckpointError: the file is not of this format, cannot be read, or contradicts itself.)
    """
    header = read_header(path)
    for name, tensor in header.tensors.items():
        kind = next((kind for pattern, kind in _TENSORS.items() if pattern.fullmatch(name)), None)
        if kind != (tensor.dtype, len(tensor.shape)) or min(tensor.shape) < 1:
            raise CheckpointError(f"{path} has a tensor {name[:100]!r} that statistics do not have", _REDO)
    document = json_object(header.metadata.get("expert-registry", "{}").encode(), f"the metadata of {path}")
    if document.get("format") != _FORMAT:
        raise CheckpointError(f"{path} was not written by reg collect", _REDO)
    document = fields(document, _KINDS, f"the metadata of {path}", hint=_REDO)
    optional = _COMPUTED if document["computed"].get("sites") == COUNTS else _ADDED
    fields(document["computed"], _COMPUTED, f"the metadata of {path}, computed", optional=optional, hint=_REDO)
    try:
        file = OpenTensors.open(path)
        sites, folds = {}, dict[str, ArraySource]()
        for site, saturated in document["saturated"].items():
            exponents = file.read(f"{site}.exponents")[: len(saturated)]
            layers = enumerate(zip(exponents, saturated, strict=True))
            items = (_layer(file, f"{site}.gram.{number}", own, int(held)) for number, (own, held) in layers)
            sites[site] = LazyLayers(tuple(items))
            folds |= {name: fold for layer in range(len(saturated)) for name, fold in _folds(file, site, layer)}
        calibration = None
        label = document["calibration_label"]
        if "calibration.ids" in file.entries:
            ids, lengths = file.read("calibration.ids"), file.read("calibration.lengths")
            if len(lengths) != len(ids) or not 1 <= int(lengths.min()) <= int(lengths.max()) <= ids.shape[1]:
                raise ValueError("its lengths do not fit its windows")
            calibration = Calibration(ids, lengths, label)
        return Collected(
            document["weights"],
            sites,
            document["calibration_digest"],
            label,
            document["computed"],
            calibration,
            folds,
            file.read(TOKEN_COUNTS) if TOKEN_COUNTS in file.entries else None,
            file.read(CONTENT_COUNTS) if CONTENT_COUNTS in file.entries else None,
            file.read(PAIR_COUNTS) if PAIR_COUNTS in file.entries else no_pairs(document["computed"]),
            None if document["done"] is None else {site: tuple(done) for site, done in document["done"].items()},
        )
    except (OSError, DamagedError, ValueError, LookupError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{path} is damaged: {first_line(error)}", _REDO) from error


def _layer(file: OpenTensors, name: str, exponents: torch.Tensor, saturated: int) -> LazyStatistics:
    """Return one layer's statistics, given the name of its packed matrix, int64 (P,), and its exponents (C,)."""
    layer = LazyStatistics(exponents, saturated, partial(file.read, name))
    if file.entries[name].shape != layer.shape:
        raise ValueError(f"{name} has shape {list(file.entries[name].shape)}, not {list(layer.shape)}")
    return layer


def _folds(file: OpenTensors, site: str, layer: int) -> Iterator[tuple[str, ArraySource]]:
    """Yield the parts of one site's and layer's sums that an earlier release kept, each with its array's name."""
    of, number = file.entries[f"{site}.gram.{layer}"], 0
    while (part := file.entries.get(name := f"{site}.fold.{layer}.{number}")) is not None:
        if part.shape != of.shape:
            raise ValueError(f"{name} has shape {list(part.shape)}, not {list(of.shape)}")
        yield name.replace(".", "/"), _lazy(part.shape, partial(file.read, name))
        number += 1
