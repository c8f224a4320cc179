"""Annotations of a version: by its user, and from `expert.json`, the manifest in an expert's Hub repository.

Its digest is that of all that is registered, so who signed the manifest (`expert.json.sig`) signed the expert.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from registry.checkpoint.hub_download import HubReference, commit_of, is_hub_reference
from registry.errors import InvalidInputError, SignatureError
from registry.io import ssh
from registry.io.limits import JSON_BYTES
from registry.io.model_folder import BUNDLE, SIGNATURE
from registry.io.untrusted import (
    DIGEST,
    TEXT,
    WHOLE,
    check_format,
    fields,
    json_object,
    list_of,
    maybe,
    own_file,
    read_json,
    read_small,
)
from registry.names.reference import check_alias, check_license, check_name

HUB_TAG, LANGUAGE_TAG, SIGNER_TAG = "hub", "language", "signer"
"""Tags of a version: its Hub repository (`ORG/NAME` or `ORG/NAME@COMMIT`), its languages (`de` or `de,en`), and who
signed it, a name among the allowed signers."""

FILE_NAME = "expert.json"
SIGNATURE_NAME = f"{FILE_NAME}.sig"  # that of SSH
VERIFIED_BY = {
    SIGNATURE_NAME: "reg add-expert --signers FILE",
    SIGNATURE: "reg verify-signature",
    BUNDLE: "model_signing",
}
"""File of a signature → what verifies it."""
FORMAT = 1
_KINDS = {"format": WHOLE, "name": TEXT, "digest": DIGEST, "license": maybe(TEXT), "languages": list_of(TEXT)}


@dataclass(frozen=True)
class Annotations:
    """Tags, a license (as the Hub writes it) and an alias of a version."""

    tags: dict[str, str] = field(default_factory=dict)
    license: str | None = None
    alias: str | None = None

    def __post_init__(self) -> None:
        if self.license is not None:
            check_license(self.license)
        if self.alias is not None:
            check_alias(self.alias)
        for key, value in self.tags.items():
            check_name(key, "tag")
            if not value or len(value) > 1000 or not value.isprintable():
                raise InvalidInputError(f"tag {key} has a value that is empty, unprintable or too long", "shorten it")


@dataclass(frozen=True)
class ExpertManifest:
    """An expert: its name where it was pushed from, its license, its languages, and its digest with that license."""

    name: str
    digest: str
    license: str | None
    languages: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {"format": FORMAT, **vars(self), "languages": list(self.languages)}

    @classmethod
    def from_document(cls, document: object, where: str) -> "ExpertManifest":
        """Read an untrusted document (CheckpointError: another form; InvalidInputError: an invalid name or license)."""
        values = fields(document, _KINDS, where)
        check_format(values, FORMAT, where, "use the program that it was pushed with")
        if values["license"] is not None:
            check_license(values["license"])
        return cls(check_name(values["name"]), values["digest"], values["license"], tuple(values["languages"]))


def read_manifest(folder: Path) -> ExpertManifest | None:
    """Return the manifest in a checkpoint's folder, or None without one (errors as `from_document`)."""
    path = folder / FILE_NAME
    return ExpertManifest.from_document(read_json(path), str(path)) if path.is_file() else None


def signed_manifest(folder: Path, label: str, signers: Path) -> tuple[ExpertManifest, str, str]:
    """Return a checkpoint's manifest, who signed it, a name among the allowed `signers`, and the key's fingerprint.

    (SignatureError: it is not signed, or by none of them; other errors as `from_document`.)
    """
    path, signature = own_file(folder, FILE_NAME), own_file(folder, SIGNATURE_NAME)
    if path is None or signature is None:
        raise SignatureError(
            f"{label} is not signed: it has no {SIGNATURE_NAME if path else FILE_NAME}",
            "its owner runs: reg push-expert NAME REPO --sign KEY; without --signers it is registered as it is",
        )
    data = read_small(path, JSON_BYTES)
    signer, key = ssh.verify(data, signature, signers)
    return ExpertManifest.from_document(json_object(data, str(path)), str(path)), signer, key


def signature_of(folder: Path) -> str:
    """Return whether a folder has a signature, which is not looked at, and what verifies it: part of a sentence."""
    found = next((name for name in VERIFIED_BY if (folder / name).is_file()), None)
    return "not signed" if found is None else f"signed ({found}), which {VERIFIED_BY[found]} verifies"


def is_signed(folder: Path) -> bool:
    """Tell whether a folder has a signature."""
    return any((folder / name).is_file() for name in VERIFIED_BY)


def annotations_with(
    own: Annotations, manifest: ExpertManifest | None, checkpoint: str, folder: Path, signer: str | None
) -> Annotations:
    """Complete a user's annotations, which take precedence, from a checkpoint's manifest, Hub repository and signer.

    `checkpoint` is the checkpoint as the user named it, and `folder` its folder on this disk.
    """
    tags = {} if signer is None else {SIGNER_TAG: signer}
    if manifest is not None and manifest.languages:
        tags[LANGUAGE_TAG] = ",".join(manifest.languages)
    if is_hub_reference(checkpoint):
        repo_id, commit = HubReference.parse(checkpoint).repo_id, commit_of(folder)
        tags[HUB_TAG] = f"{repo_id}@{commit}" if commit else repo_id
    license_id = own.license if own.license is not None or manifest is None else manifest.license
    return replace(own, tags=tags | own.tags, license=license_id)
