"""Files of a trained soup: what a version is in it, and with its shared weights the router and the domains' centroids.

`soup.json` says of the shared weights what the soup is made of, and of an expert the digest of its soup and its number.

Shapes: k domains, n experts, F hidden units, H hidden size of the model.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from registry.errors import CheckpointError
from registry.io.limits import HEADER_BYTES, HEADER_VALUES
from registry.io.schema import COUNT, DIGEST, LABEL, fields, list_of, maybe
from registry.io.strict_json import json_object, parse_json

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SOUP_FILE, SOUP_ROUTER = "soup.json", "soup_router.safetensors"
_FORMAT, _ROUTER = 1, "expert-registry soup router 1"
_HINT = "delete it, or train the soup again: reg train-soup NAME --base B --domains FILE …"
_SHARED = {
    "format": COUNT,
    "domains": list_of(LABEL),
    "experts": COUNT,
    "support": COUNT,
    "rank": maybe(COUNT),
    "data": DIGEST,
}
_EXPERT = {"format": COUNT, "soup": DIGEST, "number": COUNT}


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


def pack_soup(document: dict[str, Any]) -> bytes:
    """Return the content of `soup.json`, of what `read_soup` returns."""
    return json.dumps({"format": _FORMAT} | document, indent=2).encode()


def read_soup(data: bytes, label: str) -> dict[str, Any]:
    """Return what a version is in a soup, without the file's format.

    Args:
        data: the content of `soup.json`, untrusted.
        label: the checkpoint's name in messages.

    Raises:
        CheckpointError: the file is of another form.
    """
    where = f"{label}/{SOUP_FILE}"
    document = json_object(data, where)
    found = fields(document, _EXPERT if "soup" in document else _SHARED, where, hint=_HINT)
    if found.pop("format") != _FORMAT:
        raise CheckpointError(f"{where} has format {document['format']}, this program reads {_FORMAT}", _HINT)
    domains = found.get("domains", [])
    if domains != sorted(set(domains)):
        raise CheckpointError(f"{where}: its domains are not in order, each once", _HINT)
    return dict(found)


def pack_router(router: SoupRouter) -> bytes:
    """Return the content of `soup_router.safetensors`."""
    from safetensors.numpy import save

    return save(dict(vars(router)), metadata={"expert-registry": _ROUTER})


def unpack_router(data: bytes, document: dict[str, Any], size: int, label: str) -> SoupRouter:
    """Return the router that a file holds.

    Args:
        data: its content, untrusted.
        document: what `soup.json` says beside it.
        size: H.
        label: the checkpoint's name in messages.

    Raises:
        CheckpointError: the file is of another form, or an array is of another shape, NaN or infinite.
    """
    import numpy as np
    from safetensors.numpy import load

    where = f"{label}/{SOUP_ROUTER}"
    try:
        length = int.from_bytes(data[:8], "little")
        if length > HEADER_BYTES:
            raise ValueError("its header is too large")
        header = parse_json(data[8 : 8 + length], values=HEADER_VALUES)
        if header["__metadata__"]["expert-registry"] != _ROUTER:
            raise ValueError("its form is another")
        router = SoupRouter(**load(data))
    except Exception as error:  # safetensors has errors of its own
        raise CheckpointError(f"{where} holds no router of a soup: {str(error)[:200]}", _HINT) from error
    domains, experts = len(document.get("domains", [])), document.get("experts")
    units = len(router.hidden_bias) if router.hidden_bias.ndim else 0
    shapes = {
        "hidden": (units, domains),
        "hidden_bias": (units,),
        "output": (experts, units),
        "output_bias": (experts,),
        "centroids": (domains, size),
    }
    for name, shape in shapes.items():
        part = getattr(router, name)
        if part.dtype != np.float32 or part.shape != shape or not bool(np.isfinite(part).all()):
            raise CheckpointError(
                f"{where}: {name} is {part.dtype} of shape {list(part.shape)}, expected finite float32 of shape "
                f"{list(shape)}",
                _HINT,
            )
    return router
