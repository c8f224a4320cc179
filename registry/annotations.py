"""What a user says of a version, beside its content."""

from dataclasses import dataclass, replace
from pathlib import Path

from registry.announced import Announced
from registry.checkpoint.hub import HubReference, commit_of, is_hub_reference
from registry.errors import InvalidInputError
from registry.reference import check_alias, check_license, check_name

HUB_TAG, LANGUAGE_TAG = "hub", "language"
"""Tags of a version: where it is on the Hub (`ORG/NAME` or `ORG/NAME@COMMIT`), and its languages (`de` or `de,en`)."""


@dataclass(frozen=True)
class Annotations:
    """What a user says of a version: tags, license (as the Hub writes it) and an alias to point at it."""

    tags: dict[str, str]
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


def as_announced(given: Annotations, announced: Announced | None, checkpoint: str, folder: Path) -> Annotations:
    """Return annotations with what was not given, and where the checkpoint comes from tells.

    Args:
        given: what a user says, which counts first.
        announced: what the checkpoint's folder says of it.
        checkpoint: what a user named.
        folder: where it is on this disk.
    """
    tags: dict[str, str] = {}
    if announced is not None and announced.languages:
        tags[LANGUAGE_TAG] = ",".join(announced.languages)
    if is_hub_reference(checkpoint):
        repo_id, commit = HubReference.parse(checkpoint).repo_id, commit_of(folder)
        tags[HUB_TAG] = f"{repo_id}@{commit}" if commit else repo_id
    license_id = given.license if given.license is not None or announced is None else announced.license
    return replace(given, tags=tags | given.tags, license=license_id)
