"""Names and paths of a choice of proxy text, checked without torch."""

from collections.abc import Sequence
from pathlib import Path

from registry.io.model_folder import check_output
from registry.names.reference import require_list
from registry.names.resolve import base_model
from registry.workspace import PathLike, Workspace


def check_proxy(workspace: Workspace, experts: Sequence[str], out: PathLike, *, base: str | None) -> None:
    """Check the experts, the base model and the output of a choice of proxy text.

    Raises:
        RegError: an expert or the base model is not registered, or `out` holds something.
    """
    check_output(Path(out).absolute(), replace=None)
    for ref in require_list(experts, "experts"):
        workspace.resolve(ref)
    base_model(workspace.catalog, base)
