"""Files of experts that were trained with others, as a part of their checkpoints.

- Router rows of an expert that was trained beside a public expert: its row r and bias b of a layer have the logit
  r·x + b for the layer's MLP input x, and the public expert has the logit 0. So a row is the difference of the two
  rows of FlexOlmo (Shi et al. 2025, §3.3.1), whose public row is frozen.
- A soup: `soup.json` says of its shared weights what it is made of, and of an expert the digest of the soup and the
  expert's number. `soup_router.safetensors` has the router and the domains' centroids.
- A SIMoE: `simoe.json` says of what training an expert is. `simoe.safetensors` has the trained weights D that all
  experts of the training share, as `delta/…` by the tensor of the base model that they change, the expert's mask in
  bits, and its router row.

Shapes: L layers, H hidden size, k domains, n experts of a soup, F hidden units of its router, R outputs of all linear
layers of attention and MLPs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from registry.checkpoint.model_files import (
    ROUTER_FILE,
    SIMOE_ARRAYS,
    SIMOE_FILE,
    SOUP_FILE,
    SOUP_ROUTER,
    read_headers,
    weight_source,
)
from registry.errors import CheckpointError
from registry.io.dtypes import NAMES, WEIGHT_DTYPES
from registry.io.limits import HEADER_BYTES, HEADER_VALUES
from registry.io.untrusted import COUNT, DIGEST, LABEL, Kind, fields, json_object, list_of, maybe, own_file, parse_json
from store.arrays import ArraySource
from store.digest import json_digest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_ROWS, _BIAS, _ROWS_FORMAT = "rows", "bias", "expert-registry router rows 1"
_ROWS_HINT = "delete it, or train the expert again: reg train-expert NAME --base B --data FILE --coordinate"

_FORMAT = 1
"""The format of `soup.json` and `simoe.json`."""

_ROUTER_FORMAT = "expert-registry soup router 1"
_SOUP_HINT = "delete it, or train the soup again: reg train-soup NAME --base B --domains FILE …"
_SHARED = {
    "format": COUNT,
    "domains": list_of(LABEL),
    "experts": COUNT,
    "support": COUNT,
    "rank": maybe(COUNT),
    "data": DIGEST,
}
_EXPERT = {"format": COUNT, "soup": DIGEST, "number": COUNT}

DELTA, MASK, ROW = "delta/", "mask", "router"
"""Names of a SIMoE's arrays: a prefix before a tensor's name, and two names."""
_SIMOE_HINT = "copy the folder again, whole; or train the experts again: reg train-simoe NAME --base B --data FILE"
_SIMOE = {"format": COUNT, "base": DIGEST, "delta": DIGEST, "experts": COUNT, "number": COUNT, "prompt_tokens": COUNT}


@dataclass(frozen=True, eq=False)
class RouterRows:
    """The router rows of one expert.

    Attributes:
        anchor: digest over the tensors of the public expert that it was trained beside (`weights` in its content).
        rows: float32 of shape (L, H).
        bias: float32 of shape (L,); None where none was trained.
    """

    anchor: str
    rows: "npt.NDArray[np.float32]"
    bias: "npt.NDArray[np.float32] | None" = None


@dataclass(frozen=True, eq=False)
class SoupRouter:
    """The router φ of a soup and the centroids of its domains, all float32.

    Attributes:
        hidden: W_1, of shape (F, k).
        hidden_bias: b_1, (F,).
        output: W_2, (n, F).
        output_bias: b_2, (n,).
        centroids: mean embedding of each domain, (k, H).
    """

    hidden: "npt.NDArray[np.float32]"
    hidden_bias: "npt.NDArray[np.float32]"
    output: "npt.NDArray[np.float32]"
    output_bias: "npt.NDArray[np.float32]"
    centroids: "npt.NDArray[np.float32]"


def pack_rows(rows: RouterRows) -> bytes:
    """Return the content of `expert_router.safetensors`."""
    from safetensors.numpy import save

    tensors = {_ROWS: rows.rows} | ({} if rows.bias is None else {_BIAS: rows.bias})
    return save(tensors, metadata={"expert-registry": json.dumps([_ROWS_FORMAT, rows.anchor])})


def unpack_rows(data: bytes, shape: tuple[int, int], label: str) -> RouterRows:
    """Return the router rows in untrusted data, of a checkpoint named `label` whose (L, H) is `shape`.

    Raises:
        CheckpointError: the data is of another form, or its rows or biases are of another shape, NaN or infinite.
    """
    from safetensors.numpy import load

    where = f"{label}/{ROUTER_FILE}"
    try:
        form, anchor = parse_json(_metadata(data).encode(), values=HEADER_VALUES)
        found = load(data)
        if form != _ROWS_FORMAT or not {_ROWS} <= set(found) <= {_ROWS, _BIAS} or not isinstance(anchor, str):
            raise ValueError("its form is another")
    except Exception as error:  # safetensors has errors of its own
        raise CheckpointError(f"{where} holds no router rows: {str(error)[:200]}", _ROWS_HINT) from error
    _check_tensors(
        found, {name: size for name, size in ((_ROWS, shape), (_BIAS, shape[:1])) if name in found}, where, _ROWS_HINT
    )
    return RouterRows(anchor, found[_ROWS], found.get(_BIAS))


def pack_soup(document: dict[str, Any]) -> bytes:
    """Return the content of `soup.json`, of what `read_soup` returns."""
    return json.dumps({"format": _FORMAT} | document, indent=2).encode()


def read_soup(data: bytes, label: str) -> dict[str, Any]:
    """Return the part of a version in a soup, from an untrusted `soup.json` (CheckpointError: of another form)."""
    where = f"{label}/{SOUP_FILE}"
    document = json_object(data, where)
    found = _read_document(document, _EXPERT if "soup" in document else _SHARED, where, _SOUP_HINT)
    domains = found.get("domains", [])
    if domains != sorted(set(domains)):
        raise CheckpointError(f"{where}: its domains are not in order, each once", _SOUP_HINT)
    return found


def pack_router(router: SoupRouter) -> bytes:
    """Return the content of `soup_router.safetensors`."""
    from safetensors.numpy import save

    return save(dict(vars(router)), metadata={"expert-registry": _ROUTER_FORMAT})


def unpack_router(data: bytes, document: dict[str, Any], size: int, label: str) -> SoupRouter:
    """Return the router in untrusted data, of a checkpoint named `label`; `document` is its `soup.json`, `size` is H.

    Raises:
        CheckpointError: the data is of another form, or an array is of another shape, NaN or infinite.
    """
    from safetensors.numpy import load

    where = f"{label}/{SOUP_ROUTER}"
    try:
        if _metadata(data) != _ROUTER_FORMAT:
            raise ValueError("its form is another")
        router = SoupRouter(**load(data))
    except Exception as error:  # safetensors has errors of its own
        raise CheckpointError(f"{where} holds no router of a soup: {str(error)[:200]}", _SOUP_HINT) from error
    domains, experts = len(document.get("domains", [])), document.get("experts")
    units = len(router.hidden_bias) if router.hidden_bias.ndim else 0
    shapes = {
        "hidden": (units, domains),
        "hidden_bias": (units,),
        "output": (experts, units),
        "output_bias": (experts,),
        "centroids": (domains, size),
    }
    _check_tensors(vars(router), shapes, where, _SOUP_HINT)
    return router


def pack_simoe(document: Mapping[str, Any]) -> bytes:
    """Return the content of `simoe.json`, of what `read_simoe` returns."""
    return json.dumps({"format": _FORMAT, **document}, indent=2).encode()


def read_simoe(data: bytes, label: str) -> dict[str, Any]:
    """Return the part of an expert in its SIMoE, from an untrusted `simoe.json` (CheckpointError: of another form)."""
    where = f"{label}/{SIMOE_FILE}"
    found = _read_document(json_object(data, where), _SIMOE, where, _SIMOE_HINT)
    if not 1 <= found["number"] <= found["experts"] or found["prompt_tokens"] < 1:
        raise CheckpointError(
            f"{where}: number is {found['number']} of {found['experts']} experts, and prompt_tokens "
            f"{found['prompt_tokens']}: they count from 1",
            _SIMOE_HINT,
        )
    return found


def open_arrays(folder: Path, matrices: Mapping[str, tuple[int, ...]], size: int, label: str) -> dict[str, ArraySource]:
    """Return the arrays in a checkpoint's `simoe.safetensors` by name; they are read later.

    `matrices` has the shapes of the weights of all linear layers of attention and MLPs, by name; `size` is H.

    Raises:
        CheckpointError: the file is missing or of another form, or (while an array is read) a number is not finite.
    """
    where = f"{label}/{SIMOE_ARRAYS}"
    if (path := own_file(folder, SIMOE_ARRAYS)) is None:
        raise CheckpointError(f"{where} is missing, and {SIMOE_FILE} needs it", _SIMOE_HINT)
    stored = read_headers([path])
    outputs = sum(shape[0] for shape in matrices.values())
    expected = {f"{DELTA}{name}": tuple(shape) for name, shape in matrices.items()}
    expected |= {MASK: (-(-outputs // 8),), ROW: (size,)}
    dtypes = dict.fromkeys(expected, WEIGHT_DTYPES) | {MASK: ("uint8",), ROW: ("float32",)}
    for name in (*expected, *stored):
        if name not in stored or name not in expected:
            raise CheckpointError(
                f"{where}: array {name[:200]!r} is {'missing' if name in expected else 'unknown'}", _SIMOE_HINT
            )
        dtype, shape = stored[name].dtype, stored[name].shape
        if shape != expected[name] or NAMES.get(dtype) not in dtypes[name]:
            raise CheckpointError(
                f"{where}: {name} is {dtype} of shape {list(shape)}, expected {' or '.join(dtypes[name])} of shape "
                f"{list(expected[name])}",
                _SIMOE_HINT,
            )
    return {name: weight_source(name, stored[name], where) for name in expected}


def delta_digest(digests: Mapping[str, str]) -> str:
    """Return the digest of the weights D that all experts of a SIMoE share, from the digests of an expert's arrays."""
    return json_digest({name: digest for name, digest in digests.items() if name.startswith(DELTA)})


def check_delta(document: Mapping[str, Any], digests: Mapping[str, str], label: str) -> None:
    """Raise CheckpointError unless the digests of an expert's arrays are those that its `simoe.json` names."""
    if (found := delta_digest(digests)) != document["delta"]:
        raise CheckpointError(
            f"{label}/{SIMOE_ARRAYS} has the shared weights {found[:12]}, and {SIMOE_FILE} names "
            f"{document['delta'][:12]}",
            _SIMOE_HINT,
        )


def _metadata(data: bytes) -> str:
    """Return this program's note in the header of a safetensors file (any exception: there is none)."""
    length = int.from_bytes(data[:8], "little")
    if length > HEADER_BYTES:
        raise ValueError("its header is too large")
    note: str = parse_json(data[8 : 8 + length], values=HEADER_VALUES)["__metadata__"]["expert-registry"]
    return note


def _check_tensors(found: Mapping[str, Any], shapes: Mapping[str, tuple[Any, ...]], where: str, hint: str) -> None:
    import numpy as np

    for name, shape in shapes.items():
        part = found[name]
        if part.dtype != np.float32 or part.shape != shape or not bool(np.isfinite(part).all()):
            raise CheckpointError(
                f"{where}: {name} is {part.dtype} of shape {list(part.shape)}, expected finite float32 of shape "
                f"{list(shape)}",
                hint,
            )


def _read_document(document: dict[str, Any], kinds: Mapping[str, Kind], where: str, hint: str) -> dict[str, Any]:
    """Return the fields of a document without its format."""
    found = fields(document, kinds, where, hint=hint)
    if found.pop("format") != _FORMAT:
        raise CheckpointError(f"{where} has format {document['format']}, this program reads {_FORMAT}", hint)
    return found
