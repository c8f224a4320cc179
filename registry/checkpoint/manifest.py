"""`expert.json`: what an expert's repository on the Hub says of it beside weights and statistics.

Who registers the expert from there gets its license and languages, and can tell whether it has the digest it had.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from registry.checkpoint.annotations import HUB_TAG, LANGUAGE_TAG, Annotations
from registry.checkpoint.hub_download import HubReference, commit_of, is_hub_reference
from registry.errors import CheckpointError
from registry.io.files import read_json
from registry.io.schema import DIGEST, TEXT, WHOLE, fields, list_of, maybe
from registry.names.reference import check_license, check_name

FILE_NAME = "expert.json"
FORMAT = 1
_KINDS = {"format": WHOLE, "name": TEXT, "digest": DIGEST, "license": maybe(TEXT), "languages": list_of(TEXT)}


@dataclass(frozen=True)
class ExpertManifest:
    """What is said of an expert.

    Attributes:
        name: what it is called where it comes from.
        digest: its content digest, wherever it is registered from here with its license as it is.
        license: its license.
        languages: its languages.
    """

    name: str
    digest: str
    license: str | None
    languages: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return it as its file holds it."""
        return {"format": FORMAT, **vars(self), "languages": list(self.languages)}

    @classmethod
    def from_document(cls, document: object, where: str) -> "ExpertManifest":
        """Read what `document` returned, which may come from anywhere.

        Raises:
            CheckpointError: it is none.
            InvalidInputError: a name or license in it cannot be one.
        """
        given = fields(document, _KINDS, where)
        if given["format"] != FORMAT:
            raise CheckpointError(
                f"{where} has format {given['format']}, this program reads {FORMAT}",
                "use the program that it was pushed with",
            )
        if given["license"] is not None:
            check_license(given["license"])
        return cls(check_name(given["name"]), given["digest"], given["license"], tuple(given["languages"]))


def read_manifest(folder: Path) -> ExpertManifest | None:
    """Return what the folder of a checkpoint says of it, or None where it says nothing (errors as above)."""
    path = folder / FILE_NAME
    return ExpertManifest.from_document(read_json(path), str(path)) if path.is_file() else None


def annotations_with(given: Annotations, manifest: ExpertManifest | None, checkpoint: str, folder: Path) -> Annotations:
    """Return annotations with what was not given, and where the checkpoint comes from tells.

    Args:
        given: what a user says, which counts first.
        manifest: what the checkpoint's folder says of it.
        checkpoint: what a user named.
        folder: where it is on this disk.
    """
    tags: dict[str, str] = {}
    if manifest is not None and manifest.languages:
        tags[LANGUAGE_TAG] = ",".join(manifest.languages)
    if is_hub_reference(checkpoint):
        repo_id, commit = HubReference.parse(checkpoint).repo_id, commit_of(folder)
        tags[HUB_TAG] = f"{repo_id}@{commit}" if commit else repo_id
    license_id = given.license if given.license is not None or manifest is None else manifest.license
    return replace(given, tags=tags | given.tags, license=license_id)
