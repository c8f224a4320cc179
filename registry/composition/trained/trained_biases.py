"""Biases of routers after the training of a composition, from the stored tensors that it changed."""

from registry.composition.found import ROUTERS
from registry.io.torch_blocks import to_tensor
from registry.runtime.gates import GATE
from registry.workspace import Workspace
from store.catalog import CompositionRecord

_BIAS = ".bias"


def trained_biases(workspace: Workspace, composition: CompositionRecord) -> dict[str, tuple[float, ...]]:
    """Return expert → the biases of its logits after a training (arguments and errors as `Registry.trained_biases`)."""
    document = composition.document
    router = ROUTERS.get(document["recipe"].get("router") or "")
    if router is None or not router.is_trained or "training" not in document:
        return {}
    experts = [member["name"] for member in document["members"]]
    layers: dict[int, list[float]] = {}
    digest = composition.digest
    while True:
        for link in workspace.catalog.trained_arrays(digest):
            gate = GATE.fullmatch(link.name.removesuffix(_BIAS)) if link.name.endswith(_BIAS) else None
            if gate and int(gate[1]) not in layers:  # a later training is read first
                layers[int(gate[1])] = to_tensor(workspace.arrays.read(link.digest), link.dtype).float().tolist()
        if (above := workspace.catalog.composition_document(digest)) is None or "parent" not in above:
            break
        digest = str(above["parent"])
    return {
        expert: tuple(layers[layer][number] for layer in sorted(layers))
        for number, expert in enumerate(experts)
        if layers
    }
