"""`statistics.safetensors`: an expert's statistics as one file, so that they travel and the data does not.

Tensors: `<site>.exponents` int16 (L, H) · `<site>.gram.<layer>` int64, the packed upper triangle of G · with kept
calibration also `calibration.ids` int32 (N, S) and `calibration.lengths` int32 (N,). The header says which weights the
statistics belong to, by digest.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from registry.calibration import Calibration
from registry.errors import CheckpointError, StorageError, first_line
from registry.maths.statistics import Statistics
from store.arrays import flush

FILE_NAME = "statistics.safetensors"
_FORMAT = "expert-registry statistics 1"
_COMPUTED = {"dtype": str, "batch_size": int, "device": str}


@dataclass(frozen=True)
class Collected:
    """Statistics of one expert, and what they were taken on.

    Attributes:
        weights: digest of the weights they were taken with.
        sites: site → one statistic a layer, in order.
        calibration_digest: digest of the calibration tokens.
        calibration_label: what a person should know them as.
        computed: how the forward pass ran, as far as its numbers depend on that: dtype, batch size, kind of device.
        calibration: the tokens themselves, where they are kept.
        done: windows that each layer has counted, while a pass is under way; None once it is complete.
    """

    weights: str
    sites: dict[str, tuple[Statistics, ...]]
    calibration_digest: str
    calibration_label: str
    computed: dict[str, Any]
    calibration: Calibration | None = None
    done: tuple[int, ...] | None = None


def save(path: Path, collected: Collected) -> None:
    """Write `path`, which appears whole or not at all.

    Raises:
        StorageError: the disk is full or refuses.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    for site, layers in collected.sites.items():
        tensors[f"{site}.exponents"] = torch.stack([layer.exponents for layer in layers])
        for number, layer in enumerate(layers):
            tensors[f"{site}.gram.{number}"] = layer.packed()
    if collected.calibration is not None:
        tensors["calibration.ids"] = collected.calibration.ids
        tensors["calibration.lengths"] = collected.calibration.lengths
    document = {
        "format": _FORMAT,
        "weights": collected.weights,
        "saturated": {site: [layer.saturated for layer in layers] for site, layers in collected.sites.items()},
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
                {key: kind(document["computed"][key]) for key, kind in _COMPUTED.items()},
                calibration,
                None if document["done"] is None else tuple(int(done) for done in document["done"]),
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
