"""Files that versions of a SIMoE keep: `simoe.json` and `simoe.safetensors`.

`simoe.json` says of what training an expert is. `simoe.safetensors` has the trained weights D that all experts of the
training share, as `delta/…` by the tensor of the base model that they change, the expert's mask in bits, and its router
row.

Shapes: H hidden size, R outputs of all linear layers of attention and MLPs.
"""

from collections.abc import Mapping
from pathlib import Path

from registry.checkpoint.joint_training import Document, JointTraining
from registry.checkpoint.model_files import read_headers, weight_source
from registry.checkpoint.trained_files import read_document
from registry.errors import CheckpointError
from registry.io.display import counted
from registry.io.dtypes import NAMES, WEIGHT_DTYPES
from registry.io.untrusted import COUNT, DIGEST, json_object, own_file
from store.arrays import ArraySource
from store.digest import json_digest

KEY = "simoe"
"""Key of `simoe.json` in a version's content, and the role of the arrays."""
SIMOE_FILE, SIMOE_ARRAYS = "simoe.json", "simoe.safetensors"
DELTA, MASK, ROW = "delta/", "mask", "router"
"""Names of its arrays: a prefix before a tensor's name, and two names."""
_HINT = "copy the folder again, whole; or train the experts again: reg train-simoe NAME --base B --data FILE"
_KINDS = {"format": COUNT, "base": DIGEST, "delta": DIGEST, "experts": COUNT, "number": COUNT, "prompt_tokens": COUNT}


class SimoeVersions(JointTraining):
    """The experts of a SIMoE."""

    key = KEY
    called = "a SIMoE"
    document = SIMOE_FILE
    arrays = SIMOE_ARRAYS
    array_words = "shared weights, mask and router row of a SIMoE"
    lacks_statistics = "compose it as it was trained, with others of its training: --to simoe"

    def read(self, files: Mapping[str, bytes], hidden_size: int, label: str) -> Document | None:
        if SIMOE_FILE not in files:
            return None
        where = f"{label}/{SIMOE_FILE}"
        found = read_document(json_object(files[SIMOE_FILE], where), _KINDS, where, _HINT)
        if not 1 <= found["number"] <= found["experts"] or found["prompt_tokens"] < 1:
            raise CheckpointError(
                f"{where}: number is {found['number']} of {found['experts']} experts, and prompt_tokens "
                f"{found['prompt_tokens']}: they count from 1",
                _HINT,
            )
        return found

    def open_arrays(
        self, folder: Path, matrices: Mapping[str, tuple[int, ...]], hidden_size: int, label: str
    ) -> Mapping[str, ArraySource]:
        where = f"{label}/{SIMOE_ARRAYS}"
        if (path := own_file(folder, SIMOE_ARRAYS)) is None:
            raise CheckpointError(f"{where} is missing, and {SIMOE_FILE} needs it", _HINT)
        stored = read_headers([path])
        outputs = sum(shape[0] for shape in matrices.values())
        expected = {f"{DELTA}{name}": tuple(shape) for name, shape in matrices.items()}
        expected |= {MASK: (-(-outputs // 8),), ROW: (hidden_size,)}
        dtypes = dict.fromkeys(expected, WEIGHT_DTYPES) | {MASK: ("uint8",), ROW: ("float32",)}
        for name in (*expected, *stored):
            if name not in stored or name not in expected:
                state = "missing" if name in expected else "unknown"
                raise CheckpointError(f"{where}: array {name[:200]!r} is {state}", _HINT)
            dtype, shape = stored[name].dtype, stored[name].shape
            if shape != expected[name] or NAMES.get(dtype) not in dtypes[name]:
                raise CheckpointError(
                    f"{where}: {name} is {dtype} of shape {list(shape)}, expected {' or '.join(dtypes[name])} of shape "
                    f"{list(expected[name])}",
                    _HINT,
                )
        return {name: weight_source(name, stored[name], where) for name in expected}

    def check_arrays(self, document: Document, digests: Mapping[str, str], label: str) -> None:
        if (found := delta_digest(digests)) != document["delta"]:
            raise CheckpointError(
                f"{label}/{SIMOE_ARRAYS} has the shared weights {found[:12]}, and {SIMOE_FILE} names "
                f"{document['delta'][:12]}",
                _HINT,
            )

    def shared_digest(self, document: Document, digest: str) -> str:
        return str(document["delta"])

    def sentence(self, document: Document) -> str:
        router = f"router on {counted(document['prompt_tokens'], 'prompt token')}"
        shared = f"shared weights {document['delta'][:12]}, trained together by all: reg compose --to simoe"
        return f"expert {document['number']} of {document['experts']}, {router}; {shared}"


def delta_digest(digests: Mapping[str, str]) -> str:
    """Return the digest of the weights D that all experts of a SIMoE share, from the digests of an expert's arrays."""
    return json_digest({name: digest for name, digest in digests.items() if name.startswith(DELTA)})
