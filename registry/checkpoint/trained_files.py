"""Files of experts that were trained with others: what all such files have in common, and router rows.

An expert that was trained beside a public expert has router rows: its row r and bias b of a layer have the logit
r·x + b for the layer's MLP input x, and the public expert has the logit 0. So a row is the difference of the two rows
of FlexOlmo (Shi et al. 2025, §3.3.2), whose public row is frozen.

Shapes: L layers, H hidden size.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from registry.checkpoint.model_files import ROUTER_FILE
from registry.errors import CheckpointError
from registry.io.limits import HEADER_VALUES
from registry.io.safetensors_file import header_of
from registry.io.untrusted import Kind, check_format, fields, parse_json

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_ROWS, _BIAS, _ROWS_FORMAT = "rows", "bias", "expert-registry router rows 1"
_ROWS_HINT = "delete it, or train the expert again: reg train-expert NAME --base B --data FILE --coordinate"

_FORMAT = 1  # the format of the documents of joint trainings


@dataclass(frozen=True, eq=False)
class RouterRows:
    """The router rows of one expert."""

    anchor: str  # digest over the tensors of the public expert that it was trained beside (`weights` in its content)
    rows: "npt.NDArray[np.float32]"  # float32 of shape (L, H)
    bias: "npt.NDArray[np.float32] | None" = None  # float32 of shape (L,); None where none was trained


def pack_rows(rows: RouterRows) -> bytes:
    """Return the content of `expert_router.safetensors`."""
    from safetensors.numpy import save

    tensors = {_ROWS: rows.rows} | ({} if rows.bias is None else {_BIAS: rows.bias})
    return save(tensors, metadata={"expert-registry": json.dumps([_ROWS_FORMAT, rows.anchor])})


def unpack_rows(data: bytes, shape: tuple[int, int], label: str) -> RouterRows:
    """Return the router rows in untrusted data; (L, H) is `shape` (CheckpointError: they are of another form)."""
    from safetensors.numpy import load

    where = f"{label}/{ROUTER_FILE}"
    try:
        form, anchor = parse_json(header_of(data).metadata["expert-registry"].encode(), values=HEADER_VALUES)
        found = load(data)
        if form != _ROWS_FORMAT or not {_ROWS} <= set(found) <= {_ROWS, _BIAS} or not isinstance(anchor, str):
            raise ValueError("its form is another")
    except Exception as error:  # safetensors has errors of its own
        raise CheckpointError(f"{where} holds no router rows: {str(error)[:200]}", _ROWS_HINT) from error
    shapes = {_ROWS: shape, _BIAS: shape[:1]}
    check_tensors(found, {name: shapes[name] for name in found}, where, _ROWS_HINT)
    return RouterRows(anchor, found[_ROWS], found.get(_BIAS))


def pack_document(document: Mapping[str, Any]) -> bytes:
    """Return the content of a joint training's document, of what `read_document` returns."""
    return json.dumps({"format": _FORMAT, **document}, indent=2).encode()


def check_tensors(found: Mapping[str, Any], shapes: Mapping[str, tuple[Any, ...]], where: str, hint: str) -> None:
    """Raise CheckpointError unless each array is finite, float32 and of its shape."""
    import numpy as np

    for name, shape in shapes.items():
        part = found[name]
        if part.dtype != np.float32 or part.shape != shape or not bool(np.isfinite(part).all()):
            raise CheckpointError(
                f"{where}: {name} is {part.dtype} of shape {list(part.shape)}, expected finite float32 of shape "
                f"{list(shape)}",
                hint,
            )


def read_document(document: dict[str, Any], kinds: Mapping[str, Kind], where: str, hint: str) -> dict[str, Any]:
    """Return the fields of a document without its format."""
    found = fields(document, kinds, where, hint=hint)
    check_format(found, _FORMAT, where, hint)
    del found["format"]
    return found
