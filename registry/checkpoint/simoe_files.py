"""Files of an expert that was trained with others as one SIMoE: its part in it, and its arrays.

`simoe.json` says of what training it is. `simoe.safetensors` holds the trained weights D that all experts of the
training share, as `delta/…` by the tensor of the base model that they change, this expert's mask in bits, and its
router row.

Shapes: R outputs of all linear layers of attention and MLPs, H hidden size of the model.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from registry.checkpoint.weights import read_headers, weight_source
from registry.errors import CheckpointError
from registry.io.dtypes import NAMES, WEIGHT_DTYPES
from registry.io.files import own_file
from registry.io.safetensors_header import read_header
from registry.io.schema import COUNT, DIGEST, fields
from registry.io.strict_json import json_object
from store.arrays import ArraySource
from store.digest import json_digest

SIMOE_FILE, SIMOE_ARRAYS = "simoe.json", "simoe.safetensors"
DELTA, MASK, ROW = "delta/", "mask", "router"
"""Names of the arrays: a prefix before a tensor's name, and two names."""
_FORMAT = 1
_HINT = "copy the folder again, whole; or train the experts again: reg train-simoe NAME --base B --data FILE"
_KINDS = {
    "format": COUNT,
    "base": DIGEST,
    "delta": DIGEST,
    "experts": COUNT,
    "number": COUNT,
    "prompt_tokens": COUNT,
}


def pack_simoe(document: Mapping[str, Any]) -> bytes:
    """Return the content of `simoe.json`, of what `read_simoe` returns."""
    return json.dumps({"format": _FORMAT, **document}, indent=2).encode()


def read_simoe(data: bytes, label: str) -> dict[str, Any]:
    """Return the part of an expert in its SIMoE, without the file's format.

    Args:
        data: the content of `simoe.json`, untrusted.
        label: the checkpoint's name in messages.

    Raises:
        CheckpointError: the file is of another form.
    """
    where = f"{label}/{SIMOE_FILE}"
    document = json_object(data, where)
    found = fields(document, _KINDS, where, hint=_HINT)
    if found.pop("format") != _FORMAT:
        raise CheckpointError(f"{where} has format {document['format']}, this program reads {_FORMAT}", _HINT)
    if not 1 <= found["number"] <= found["experts"] or found["prompt_tokens"] < 1:
        raise CheckpointError(
            f"{where}: number is {found['number']} of {found['experts']} experts, and prompt_tokens "
            f"{found['prompt_tokens']}: they count from 1",
            _HINT,
        )
    return dict(found)


def open_arrays(folder: Path, matrices: Mapping[str, tuple[int, ...]], size: int, label: str) -> dict[str, ArraySource]:
    """Return the arrays in `simoe.safetensors` by name; they are read later.

    Args:
        folder: the checkpoint's folder.
        matrices: the shapes of the weights of all linear layers of attention and MLPs, by name.
        size: H.
        label: the checkpoint's name in messages.

    Raises:
        CheckpointError: the file is missing or of another form, or (while an array is read) a number is not finite.
    """
    where = f"{label}/{SIMOE_ARRAYS}"
    if (path := own_file(folder, SIMOE_ARRAYS)) is None:
        raise CheckpointError(f"{where} is missing, and {SIMOE_FILE} needs it", _HINT)
    entries = read_header(path).tensors
    outputs = sum(shape[0] for shape in matrices.values())
    expected = {f"{DELTA}{name}": tuple(shape) for name, shape in matrices.items()}
    expected |= {MASK: (-(-outputs // 8),), ROW: (size,)}
    dtypes = dict.fromkeys(expected, WEIGHT_DTYPES) | {MASK: ("uint8",), ROW: ("float32",)}
    for name in (*expected, *entries):
        if name not in entries or name not in expected:
            raise CheckpointError(
                f"{where}: array {name[:200]!r} is {'missing' if name in expected else 'unknown'}", _HINT
            )
        entry = entries[name]
        if entry.shape != expected[name] or NAMES.get(entry.dtype) not in dtypes[name]:
            raise CheckpointError(
                f"{where}: {name} is {entry.dtype} of shape {list(entry.shape)}, expected "
                f"{' or '.join(dtypes[name])} of shape {list(expected[name])}",
                _HINT,
            )
    stored = read_headers([path])
    return {name: weight_source(name, stored[name], where) for name in expected}


def delta_digest(digests: Mapping[str, str]) -> str:
    """Return the digest of the weights D that all experts of a training share.

    Args:
        digests: array name → digest of an expert's arrays; those that are no `delta/…` do not count.
    """
    return json_digest({name: digest for name, digest in digests.items() if name.startswith(DELTA)})


def check_delta(document: Mapping[str, Any], digests: Mapping[str, str], label: str) -> None:
    """Check that the arrays of an expert are those that its `simoe.json` names.

    Raises:
        CheckpointError: they are others.
    """
    if (found := delta_digest(digests)) != document["delta"]:
        raise CheckpointError(
            f"{label}/{SIMOE_ARRAYS} has the shared weights {found[:12]}, and {SIMOE_FILE} names "
            f"{document['delta'][:12]}",
            _HINT,
        )
