"""Files that versions of a soup keep: the shared weights' and the experts' `soup.json`, and the router.

`soup.json` says of the shared weights what they are made of, and of an expert the digest of the soup and the expert's
number. `soup_router.safetensors` has the router and the domains' centroids.

Shapes: H hidden size, k domains, n experts, F hidden units of the router.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from registry.checkpoint.joint_training import Document, JointTraining
from registry.checkpoint.trained_files import check_tensors, read_document
from registry.errors import CheckpointError
from registry.io.display import counted
from registry.io.safetensors_file import header_of
from registry.io.untrusted import COUNT, DIGEST, LABEL, json_object, list_of, maybe

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SOUP_FILE, SOUP_ROUTER = "soup.json", "soup_router.safetensors"
_FORMAT = "expert-registry soup router 1"
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


class SoupVersions(JointTraining):
    """The shared weights of a soup, which are a base model, and its experts."""

    key = "soup"
    called = "a soup"
    document = SOUP_FILE
    files = (SOUP_ROUTER,)

    def read(self, files: Mapping[str, bytes], hidden_size: int, label: str) -> Document | None:
        found = None
        if SOUP_FILE in files:
            where = f"{label}/{SOUP_FILE}"
            document = json_object(files[SOUP_FILE], where)
            found = read_document(document, _EXPERT if "soup" in document else _SHARED, where, _HINT)
            domains = found.get("domains", [])
            if domains != sorted(set(domains)):
                raise CheckpointError(f"{where}: its domains are not in order, each once", _HINT)
        if SOUP_ROUTER in files:
            unpack_router(files[SOUP_ROUTER], found or {}, hidden_size, label)
        return found

    def shared_digest(self, document: Document, digest: str) -> str:
        return str(document.get("soup", digest))

    def sentence(self, document: Document) -> str:
        if "soup" in document:
            return f"expert {document['number']} of {document['soup'][:12]}, trained together with all of it"
        domains = ", ".join(document["domains"])
        return f"shared weights of {counted(document['experts'], 'expert')}; domains {domains}: reg instantiate"


@dataclass(frozen=True, eq=False)
class SoupRouter:
    """The router φ of a soup and the centroids, mean embeddings, of its domains."""

    hidden: npt.NDArray[np.float32]  # W_1, (F, k)
    hidden_bias: npt.NDArray[np.float32]  # b_1, (F,)
    output: npt.NDArray[np.float32]  # W_2, (n, F)
    output_bias: npt.NDArray[np.float32]  # b_2, (n,)
    centroids: npt.NDArray[np.float32]  # (k, H)


def pack_router(router: SoupRouter) -> bytes:
    """Return the content of `soup_router.safetensors`."""
    from safetensors.numpy import save

    return save(dict(vars(router)), metadata={"expert-registry": _FORMAT})


def unpack_router(data: bytes, document: dict[str, Any], size: int, label: str) -> SoupRouter:
    """Return the router in untrusted data, of a checkpoint named `label`; `document` is its `soup.json`, `size` is H.

    (CheckpointError: the data is of another form, or an array is of another shape, NaN or infinite.)
    """
    from safetensors.numpy import load

    where = f"{label}/{SOUP_ROUTER}"
    try:
        if header_of(data).metadata["expert-registry"] != _FORMAT:
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
    check_tensors(vars(router), shapes, where, _HINT)
    return router
