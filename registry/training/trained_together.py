"""Experts that one training makes together: checks before it, and the registration of each."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.checkpoint.annotations import Annotations
from registry.errors import ConflictError, InvalidInputError, StorageError
from registry.families.sites import COUNTS
from registry.io.work_dirs import temporary
from registry.names.reference import NAME_LIMIT, check_name, copy_name
from registry.names.resolve import check_name_is_free
from registry.progress import silent
from registry.registration import Registration, RegistrationRequest, open_candidate, register_base, register_expert
from registry.statistics import file as statistics
from registry.statistics.collect import counted
from registry.statistics.forward_pass import computed_by
from registry.statistics.settings import PassSettings
from registry.training.processes import leading
from registry.workspace import PathLike, Workspace
from store.catalog.records import Kind


def check_one_process(what: str) -> None:
    """Check that no launcher started several processes.

    Args:
        what: what is trained, with its article.

    Raises:
        InvalidInputError: one did.
    """
    with leading() as processes:
        if processes.count > 1:
            raise InvalidInputError(
                f"{what} trains in one process, and a launcher started {processes.count}",
                "repeat the command without the launcher",
            )


def check_base(workspace: Workspace, base: PathLike) -> None:
    """Check that what a training begins from is no registered expert; a folder or a model of the Hub may be it.

    Raises:
        InvalidInputError: it is an expert.
    """
    if os.fspath(base).partition("@")[0] in workspace.catalog.names():
        workspace.resolve(os.fspath(base), kind="base")


def check_names(workspace: Workspace, name: str, experts: int, kind: str) -> None:
    """Check that NAME-1 to NAME-n can be registered as experts of a training.

    Args:
        workspace: the registry.
        name: the training's name.
        experts: n.
        kind: `soup` or `simoe`, the key of what versions of such a training store of it.

    Raises:
        InvalidInputError: a name is not valid.
        ConflictError: a name is a base model's, or an active version of it comes from elsewhere.
    """
    last = copy_name(check_name(name), experts, experts)
    if len(last) > NAME_LIMIT:
        raise InvalidInputError(
            f"experts of {name[:20]}… would have names of more than {NAME_LIMIT} characters", "choose a shorter name"
        )
    for number in range(1, experts + 1):
        check_name_is_free(workspace.catalog, own := copy_name(name, number, experts), "expert")
        for version in workspace.catalog.versions(own):
            if version.state == "active" and kind not in (version.content or {}):
                raise ConflictError(
                    f"{version.ref} is registered, and it does not come from reg train-{kind}",
                    f"choose another name: its experts are registered as NAME-1 to NAME-{experts}",
                )


def check_libraries() -> None:
    """Check that what training needs is installed.

    Raises:
        StorageError: it is not.
    """
    if importlib.util.find_spec("accelerate") is None:
        raise StorageError("training needs accelerate", "run: pip install 'expert-registry[train]'")


def register_trained(
    workspace: Workspace, name: str, kind: Kind, annotations: Annotations, write: Callable[[Path], None]
) -> Registration:
    """Register a checkpoint that a training made; its folder is deleted afterwards.

    Args:
        workspace: the registry.
        name: its name.
        kind: expert or base.
        annotations: tags, license and alias.
        write: writes it to a folder.
    """
    with temporary(workspace.home.merged, prefix="training-") as scratch:
        write(scratch / "model")
        request = RegistrationRequest(
            name,
            scratch / "model",
            kind,
            annotations=annotations,
            allow_unrelated=True,  # it comes from a base model, registered or not
            remote_code=True,
        )
        with open_candidate(workspace, request) as candidate:
            return (register_base if kind == "base" else register_expert)(workspace, candidate)


def write_counts(folder: Path, base: Checkpoint, text: Calibration) -> None:
    """Write how often the training text has each token: what combines experts by coefficients needs no more.

    Args:
        folder: the expert's checkpoint.
        base: the base model.
        text: the training text.
    """
    weights = hash_checkpoint(Checkpoint(folder, remote_code=True), silent).weights
    computed = computed_by(base, PassSettings(sites=COUNTS))
    statistics.save(folder / statistics.FILE_NAME, counted(weights, text, base, computed))
