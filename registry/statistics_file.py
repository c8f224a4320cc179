"""`statistics.safetensors`: an expert's statistics as one file, so that they travel and the data does not.

Tensors: `<site>.exponents` int16 (L, H) · `<site>.gram.<layer>` int64, the packed upper triangle of G ·
`<site>.fold.<layer>.<fold>` the same for all folds but the last · `token_counts` int64 (V,) · with kept calibration
also `calibration.ids` int32 (N, S) and `calibration.lengths` int32 (N,). The header says which weights the statistics
belong to, by digest.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from registry.calibration import Calibration
from registry.errors import CheckpointError, StorageError, first_line
from registry.maths.folds import complete
from registry.maths.statistics import Statistics
from store.arrays import flush

FILE_NAME = "statistics.safetensors"
_FORMAT = "expert-registry statistics 1"
_COMPUTED = {"dtype": str, "batch_size": int, "device": str, "sites": str, "folds": int}
_ADDED = {"sites", "folds"}
"""What a file from before these were there leaves out."""


@dataclass(frozen=True)
class Collected:
    """Statistics of one expert, and what they were taken on.

    Attributes:
        weights: digest of the weights they were taken with.
        sites: site → one statistic a layer, in order.
        calibration_digest: digest of the calibration tokens.
        calibration_label: what a person should know them as.
        computed: how the forward pass ran, as far as its result depends on that: dtype, batch size, kind of device,
            sites, folds.
        calibration: the tokens themselves, where they are kept.
        folds: site → for each layer, its statistics on every fold of the windows but the last; the rest is the last.
        token_counts: how often each token came, int64 of shape (V,).
        done: site → windows that each layer has counted, while a pass is under way; None once it is complete.
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

    def all_folds(self, site: str, layer: int) -> tuple[Statistics, ...]:
        """Return the statistics of each fold; where there is one, of the whole."""
        return complete(self.sites[site][layer], self.folds[site][layer] if site in self.folds else ())


Part = tuple[str, int, Statistics, Sequence[Statistics]]
"""Of one site and layer: the statistics of the whole, and of every fold but the last."""


def save(path: Path, collected: Collected, parts: Iterable[Part] | None = None) -> None:
    """Write `path`, which appears whole or not at all.

    Args:
        path: the file.
        collected: what is written.
        parts: in place of its sites, layer by layer in order, so that they need not all be there at once.

    Raises:
        StorageError: the disk is full or refuses.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    exponents: dict[str, list[torch.Tensor]] = {site: [] for site in collected.sites}
    saturated: dict[str, list[int]] = {site: [] for site in collected.sites}
    for site, number, layer, folds in _parts(collected) if parts is None else parts:
        exponents.setdefault(site, []).append(layer.exponents)
        saturated.setdefault(site, []).append(layer.saturated)
        tensors[f"{site}.gram.{number}"] = layer.packed()
        for fold, part in enumerate(folds):
            tensors[f"{site}.fold.{number}.{fold}"] = part.packed()
    for site, of in exponents.items():
        tensors[f"{site}.exponents"] = torch.stack(of)
    if collected.token_counts is not None:
        tensors["token_counts"] = collected.token_counts
    if collected.calibration is not None:
        tensors["calibration.ids"] = collected.calibration.ids
        tensors["calibration.lengths"] = collected.calibration.lengths
    document = {
        "format": _FORMAT,
        "weights": collected.weights,
        "saturated": saturated,
        "calibration_digest": collected.calibration_digest,
        "calibration_label": collected.calibration_label,
        "computed": collected.computed,
        "done": collected.done,
    }
    partial = path.with_name(path.name + ".partial")
    try:
        partial.touch()
        mode = partial.stat().st_mode  # as the umask has it; safetensors makes a file of its own, for the owner alone
        save_file(tensors, partial, metadata={"expert-registry": json.dumps(document)})
        partial.chmod(mode)
        flush(partial)
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"{path} cannot be written: {error}", "free some space, or choose another folder") from error


def _parts(collected: Collected) -> Iterator[Part]:
    for site, layers in collected.sites.items():
        for number, layer in enumerate(layers):
            yield site, number, layer, collected.folds[site][number] if site in collected.folds else ()


def load(path: Path) -> Collected:
    """Read what `save` wrote; the file is untrusted input.

    Raises:
        CheckpointError: it is no such file, cannot be read, or its parts contradict one another.
    """
    from safetensors import SafetensorError, safe_open

    try:
        path.open("rb").close()  # safetensors does not tell why it cannot read a file
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {(error.strerror or str(error)).lower()}", f"make it readable: chmod u+r {path}"
        ) from error
    try:
        with safe_open(path, framework="pt") as file:
            document = json.loads((file.metadata() or {}).get("expert-registry", "{}"))
            if not isinstance(document, dict) or document.get("format") != _FORMAT:
                raise CheckpointError(
                    f"{path} was not written by reg collect",
                    "make it again: reg collect CKPT --data FILE --out DIR",
                )
            sites = {
                str(site): _layers(file, str(site), saturated) for site, saturated in document["saturated"].items()
            }
            folds = {
                site: tuple(folds_of(file, site, number, layer.exponents) for number, layer in enumerate(layers))
                for site, layers in sites.items()
                if f"{site}.fold.0.0" in file.keys()  # noqa: SIM118 - it is no dict
            }
            calibration = None
            label = str(document["calibration_label"])
            if "calibration.ids" in file.keys():  # noqa: SIM118 - it is no dict
                calibration = Calibration(
                    file.get_tensor("calibration.ids"), file.get_tensor("calibration.lengths"), label
                )
            return Collected(
                str(document["weights"]),
                sites,
                str(document["calibration_digest"]),
                label,
                {
                    key: kind(document["computed"][key])
                    for key, kind in _COMPUTED.items()
                    if key not in _ADDED or key in document["computed"]
                },
                calibration,
                folds,
                file.get_tensor("token_counts") if "token_counts" in file.keys() else None,  # noqa: SIM118
                None
                if document["done"] is None
                else {str(site): tuple(int(n) for n in done) for site, done in document["done"].items()},
            )
    except CheckpointError:
        raise
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is damaged: {first_line(error)}", "make it again: reg collect CKPT --data FILE --out DIR"
        ) from error


def _layers(file: Any, site: str, saturated: list[int]) -> tuple[Statistics, ...]:
    exponents = file.get_tensor(f"{site}.exponents")
    return tuple(
        Statistics.unpack(file.get_tensor(f"{site}.gram.{layer}"), exponents[layer].clone(), int(held))
        for layer, held in enumerate(saturated)
    )


def folds_of(file: Any, site: str, layer: int, exponents: torch.Tensor) -> tuple[Statistics, ...]:
    """Return the statistics of every fold but the last that an open file holds of one site and layer."""
    names, found = set(file.keys()), list[Statistics]()
    while (name := f"{site}.fold.{layer}.{len(found)}") in names:
        found.append(Statistics.unpack(file.get_tensor(name), exponents))
    return tuple(found)
