"""Router rows of an expert that was trained beside a public expert, as a file of its checkpoint.

An expert's row r and bias b of a layer have the logit r·x + b for the layer's MLP input x; the public expert has the
logit 0. So a row is the difference of the two rows of FlexOlmo (Shi et al. 2025, §3.3.1), whose public row is frozen.

Shapes: L layers, H hidden size.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.errors import CheckpointError
from registry.io.limits import HEADER_BYTES, HEADER_VALUES
from registry.io.strict_json import parse_json

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ROUTER_FILE = "expert_router.safetensors"
_ROWS, _BIAS, _FORMAT = "rows", "bias", "expert-registry router rows 1"


@dataclass(frozen=True, eq=False)
class RouterRows:
    """The rows of one expert.

    Attributes:
        anchor: digest over the tensors of the public expert that it was trained beside (`weights` in its content).
        rows: float32 of shape (L, H).
        bias: float32 of shape (L,); None where none was trained.
    """

    anchor: str
    rows: "npt.NDArray[np.float32]"
    bias: "npt.NDArray[np.float32] | None" = None


def pack_rows(rows: RouterRows) -> bytes:
    """Return the content of the file."""
    from safetensors.numpy import save

    tensors = {_ROWS: rows.rows} | ({} if rows.bias is None else {_BIAS: rows.bias})
    return save(tensors, metadata={"expert-registry": json.dumps([_FORMAT, rows.anchor])})


def unpack_rows(data: bytes, shape: tuple[int, int], label: str) -> RouterRows:
    """Return the rows that a file holds.

    Args:
        data: its content, untrusted.
        shape: (L, H) of the checkpoint.
        label: the checkpoint's name in messages.

    Raises:
        CheckpointError: the file is of another form, or its rows or biases are of another shape, NaN or infinite.
    """
    import numpy as np
    from safetensors.numpy import load

    try:
        length = int.from_bytes(data[:8], "little")
        if length > HEADER_BYTES:
            raise ValueError("its header is too large")
        header = parse_json(data[8 : 8 + length], values=HEADER_VALUES)
        form, anchor = parse_json(header["__metadata__"]["expert-registry"].encode(), values=HEADER_VALUES)
        found = load(data)
        if form != _FORMAT or not {_ROWS} <= set(found) <= {_ROWS, _BIAS} or not isinstance(anchor, str):
            raise ValueError("its form is another")
    except Exception as error:  # safetensors has errors of its own
        raise CheckpointError(
            f"{label}/{ROUTER_FILE} holds no router rows: {str(error)[:200]}",
            "delete it, or train the expert again: reg train-expert NAME --base B --data FILE --coordinate",
        ) from error
    for name, expected in ((_ROWS, shape), (_BIAS, shape[:1])):
        part = found.get(name)
        if part is None or (part.dtype == np.float32 and part.shape == expected and bool(np.isfinite(part).all())):
            continue
        raise CheckpointError(
            f"{label}/{ROUTER_FILE}: {name} is {part.dtype} of shape {list(part.shape)}, expected finite float32 of "
            f"shape {list(expected)}",
            "delete it, or train the expert again: reg train-expert NAME --base B --data FILE --coordinate",
        )
    return RouterRows(anchor, found[_ROWS], found.get(_BIAS))
