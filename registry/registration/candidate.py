"""A candidate for registration: a checkpoint opened, annotated, and compared with the registered versions."""

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Literal

from registry.calibration.corpus import check_files
from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.checkpoint.adapter_config import CONFIG
from registry.checkpoint.annotations import (
    Annotations,
    ExpertManifest,
    annotations_with,
    read_manifest,
    signed_manifest,
)
from registry.checkpoint.hub_download import is_hub_reference
from registry.checkpoint.open import open_checkpoint
from registry.checkpoint.version_files import VersionArrays
from registry.errors import InvalidInputError, NotFoundError
from registry.families.sites import COUNTS
from registry.io import ssh
from registry.io.untrusted import is_folder
from registry.names.resolve import check_name_is_free
from registry.progress import remark
from registry.registration.lineage import Relation, WeightSamples, confirm_related, relations_of, weights_of_checkpoint
from registry.statistics.settings import PassSettings, on_cluster
from registry.workspace import Workspace


@dataclass(frozen=True)
class RegistrationRequest:
    """A checkpoint to register, or only to check if it has no name (attributes as in `Registry.add_expert`)."""

    name: str | None
    checkpoint: str | PathLike[str]
    kind: Literal["expert", "base"] = "expert"
    data: Sequence[str | PathLike[str]] = ()
    settings: PassSettings | None = None
    annotations: Annotations = field(default_factory=Annotations)
    keep_calibration: bool = False
    base: str | PathLike[str] | None = None
    allow_unrelated: bool = False
    remote_code: bool = False
    tokenizer_of: str | None = None
    own_text: int = 0  # tokens of text that a base model is to write, which are counted; 0 for none
    signers: str | PathLike[str] | None = None


@dataclass(frozen=True)
class Candidate:
    """An opened checkpoint, all its headers checked."""

    request: RegistrationRequest
    checkpoint: Checkpoint
    annotations: Annotations  # those of the request, completed from the checkpoint's own `expert.json`
    manifest: ExpertManifest | None  # that file, or None without one
    signer: str | None  # who signed that file, if it was verified
    settings: PassSettings
    samples: WeightSamples
    relations: tuple[Relation, ...]  # its distance to every registered version of its shape, the nearest first


def _check_order(name: str, checkpoint: str, kind: str) -> None:
    """Check that name and checkpoint are not the wrong way round."""
    holds_model = is_folder(name) and any((Path(name) / file).is_file() for file in ("config.json", CONFIG))
    if (holds_model or is_hub_reference(name)) and not (is_folder(checkpoint) or is_hub_reference(checkpoint)):
        raise InvalidInputError(
            f"{name} is a checkpoint, and {checkpoint} is not: the name comes first",
            f"swap them: reg add-{kind} {shlex.join((checkpoint, name))}, and the same options",
        )


@contextmanager
def open_candidate(workspace: Workspace, request: RegistrationRequest) -> Iterator[Candidate]:
    """Open the checkpoint of a request, and compare it with the registered versions, without loading torch.

    (CheckpointError: it cannot be registered; IncompatibleError: it is unrelated to every model of its shape that is;
    ConflictError: the name belongs to the other kind.)
    """
    if request.name is not None:
        _check_order(request.name, os.fspath(request.checkpoint), request.kind)
        workspace.check_owner()
        check_name_is_free(workspace.catalog, request.name, request.kind)
    check_files(request.data)
    if request.signers is not None:
        ssh.read_signers(Path(request.signers))
    like = None
    if request.tokenizer_of is not None:
        version = workspace.resolve(request.tokenizer_of)
        like = version.ref, VersionArrays.load(workspace, version).files()
    with open_checkpoint(
        request.checkpoint,
        workspace.home.merged,
        base=request.base,
        registered=partial(_registered_weights, workspace),
        remote_code=request.remote_code,
        like=like,
        keep=partial(_with_weights_of, workspace) if request.kind == "expert" and request.name is not None else None,
        progress=workspace.progress,
    ) as checkpoint:
        settings = on_cluster(request.settings or PassSettings(), workspace.cluster)
        if not checkpoint.family.has_table and (request.kind == "base" or request.name is None):
            settings = replace(settings, sites=COUNTS)
        annotations, manifest, signer = request.annotations, None, None
        if request.kind == "expert" and request.name is not None:
            folder = checkpoint.folder
            if request.signers is None:
                manifest = read_manifest(folder)
            else:
                manifest, signer, key = signed_manifest(folder, checkpoint.label, Path(request.signers))
                remark(workspace.progress, f"{checkpoint.label}: signed by {signer}, key {key}")
            annotations = annotations_with(annotations, manifest, os.fspath(request.checkpoint), folder, signer)
        samples, versions = weights_of_checkpoint(checkpoint), workspace.versions()
        relations = relations_of(workspace, samples, versions)
        if not request.allow_unrelated and request.kind == "expert":
            confirm_related(workspace, checkpoint.label, samples, versions, relations)
        yield Candidate(request, checkpoint, annotations, manifest, signer, settings, samples, relations)


def _with_weights_of(workspace: Workspace, checkpoint: Checkpoint) -> VersionArrays | None:
    """Return the registered base model that has the weights of a folder, of which all are read, or None."""
    own = checkpoint.family.model_type, checkpoint.architecture.to_dict()
    bases = [(version, version.content or {}) for version in workspace.versions("base")]
    alike = [(version, held["weights"]) for version, held in bases if (held["family"], held["architecture"]) == own]
    weights = hash_checkpoint(checkpoint, workspace.progress).weights if alike else None
    found = next((version for version, held in reversed(alike) if held == weights), None)
    if found is None:
        return None
    remark(workspace.progress, f"{checkpoint.label} has the weights of {found.ref}, which is taken as the base model")
    return VersionArrays.load(workspace, found)


def _registered_weights(workspace: Workspace, ref: str) -> VersionArrays | None:
    """Return the weights of a registered version, or None if `ref` does not match one."""
    try:
        version = workspace.resolve(ref)
    except (NotFoundError, InvalidInputError):
        return None
    if version.kind == "expert":
        remark(workspace.progress, f"{version.ref} is an expert, which is taken as the base model")
    return VersionArrays.load(workspace, version)
