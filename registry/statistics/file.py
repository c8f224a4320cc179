"""`statistics.safetensors`: the file format of an expert's statistics, which travel while the data stays.

Tensors: `<site>.exponents` int16 (L, H) · `<site>.gram.<layer>` int64, the packed upper triangle of G ·
`<site>.fold.<layer>.<fold>` the same for all folds but the last · `token_counts` int64 (V,) · with kept calibration
also `calibration.ids` int32 (N, S) and `calibration.lengths` int32 (N,). The header has the digest of the weights that
the statistics belong to.

Shapes: L layers, V vocabulary, N windows, S tokens of a window, G (H + 1, H + 1) packed to ((H + 1)(H + 2) / 2,).
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int16

from registry.calibration import Calibration
from registry.errors import CheckpointError, first_line
from registry.families.sites import COUNTS
from registry.io.safetensors_header import read_header
from registry.io.safetensors_writer import Stream, replace_shard
from registry.io.schema import COUNT, DIGEST, LABEL, OBJECT, TEXT, WHOLE, Kind, fields, list_of, maybe
from registry.io.strict_json import json_object
from registry.io.torch_blocks import to_block
from registry.maths.statistics import Statistics, complete_folds

FILE_NAME = "statistics.safetensors"
_FORMAT = "expert-registry statistics 1"
_COMPUTED = {"dtype": LABEL, "batch_size": WHOLE, "device": LABEL, "sites": LABEL, "folds": WHOLE}
_REDO = "make it again: reg collect CKPT --data FILE --out DIR"
_TENSORS = {
    re.compile(r"[a-z_]{1,40}\.exponents"): ("I16", 2),
    re.compile(r"[a-z_]{1,40}\.gram\.\d{1,6}"): ("I64", 1),
    re.compile(r"[a-z_]{1,40}\.fold\.\d{1,6}\.\d{1,6}"): ("I64", 1),
    re.compile(r"token_counts"): ("I64", 1),
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
_ADDED = {"sites", "folds"}
"""Keys that older files lack."""


@dataclass(frozen=True)
class Collected:
    """Statistics of one expert, and the calibration that they were collected on.

    Attributes:
        weights: digest of the expert's weights.
        sites: site → one statistic a layer, in order.
        calibration_digest: digest of the calibration tokens.
        calibration_label: name of the calibration for people.
        computed: settings that the result depends on: sites, and of a forward pass dtype, batch size, kind of device
            and folds.
        calibration: the calibration tokens, if they are kept.
        folds: site → for each layer, its statistics on every fold of the windows but the last, which is the remainder.
        token_counts: occurrences of each token, int64 of shape (V,).
        done: site → windows that each layer has counted, in the state of an interrupted pass; None if complete.
    """

    weights: str
    sites: dict[str, tuple[Statistics, ...]]
    calibration_digest: str
    calibration_label: str
    computed: dict[str, Any]
    calibration: Calibration | None = None
    folds: dict[str, tuple[tuple[Statistics, ...], ...]] = field(default_factory=dict)
    token_counts: torch.Tensor | None = field(default=None, compare=False)  # they follow from the calibration
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

    def all_folds(self, site: str, layer: int) -> tuple[Statistics, ...]:
        """Return the statistics of each fold; without folds, the total."""
        return complete_folds(self.sites[site][layer], self.folds[site][layer] if site in self.folds else ())


Part = tuple[str, int, Statistics, Sequence[Statistics]]
"""Site, layer, the statistics of all tokens, and those of every fold but the last."""


def save(path: Path, collected: Collected, parts: Iterable[Part] | None = None) -> None:
    """Write statistics to `path` atomically.

    Args:
        path: the file.
        collected: the statistics.
        parts: written in place of its sites, layer by layer in order, so that only one is in memory at a time.

    Raises:
        StorageError: the disk is full or refuses.
    """
    streams: list[Stream] = []

    def add(name: str, tensor: torch.Tensor) -> None:
        streams.append(Stream.of(name, to_block(tensor), str(tensor.dtype).removeprefix("torch.")))

    def add_packed(name: str, item: Statistics) -> None:
        if parts is not None:  # a temporary: only its packed half stays in memory
            add(name, item.packed())
            return
        size = len(item.matrix)  # packed only while it is written: all layers at once would double the memory
        shape = (size * (size + 1) // 2,)  # the upper triangle of G
        streams.append(Stream(name, "int64", shape, lambda: [to_block(item.packed())]))

    exponents: dict[str, list[torch.Tensor]] = {site: [] for site in collected.sites}
    saturated: dict[str, list[int]] = {site: [] for site in collected.sites}
    for site, number, layer, folds in _parts(collected) if parts is None else parts:
        exponents.setdefault(site, []).append(layer.exponents)
        saturated.setdefault(site, []).append(layer.saturated)
        add_packed(f"{site}.gram.{number}", layer)
        for fold, part in enumerate(folds):
            add_packed(f"{site}.fold.{number}.{fold}", part)
    for site, layers in exponents.items():
        add(f"{site}.exponents", torch.stack(layers))  # L tensors (H,) → (L, H)
    if collected.token_counts is not None:
        add("token_counts", collected.token_counts)
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


def _parts(collected: Collected) -> Iterator[Part]:
    for site, layers in collected.sites.items():
        for number, layer in enumerate(layers):
            yield site, number, layer, collected.folds[site][number] if site in collected.folds else ()


def load(path: Path) -> Collected:
    """Read a file that `save` wrote, as untrusted input.

    Raises:
        CheckpointError: the file is not of this format, cannot be read, or contradicts itself.
    """
    from safetensors import SafetensorError, safe_open

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
        with safe_open(path, framework="pt") as file:
            sites = {site: _layers(file, site, saturated) for site, saturated in document["saturated"].items()}
            folds = {
                site: tuple(folds_of(file, site, number, layer.exponents) for number, layer in enumerate(layers))
                for site, layers in sites.items()
                if f"{site}.fold.0.0" in file.keys()  # noqa: SIM118 - not a dict
            }
            calibration = None
            label = document["calibration_label"]
            if "calibration.ids" in file.keys():  # noqa: SIM118 - not a dict
                ids, lengths = file.get_tensor("calibration.ids"), file.get_tensor("calibration.lengths")
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
                file.get_tensor("token_counts") if "token_counts" in file.keys() else None,  # noqa: SIM118
                None if document["done"] is None else {site: tuple(done) for site, done in document["done"].items()},
            )
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(f"{path} is damaged: {first_line(error)}", _REDO) from error


def _layers(file: Any, site: str, saturated: Sequence[int]) -> tuple[Statistics, ...]:
    exponents = file.get_tensor(f"{site}.exponents")
    return tuple(
        Statistics.unpack(file.get_tensor(f"{site}.gram.{layer}"), exponents[layer].clone(), int(held))
        for layer, held in enumerate(saturated)
    )


def folds_of(file: Any, site: str, layer: int, exponents: Int16[torch.Tensor, "H"]) -> tuple[Statistics, ...]:
    """Return the statistics of every fold but the last of one site and layer, from an open file."""
    names, folds = set(file.keys()), list[Statistics]()
    while (name := f"{site}.fold.{layer}.{len(folds)}") in names:
        folds.append(Statistics.unpack(file.get_tensor(name), exponents))
    return tuple(folds)
