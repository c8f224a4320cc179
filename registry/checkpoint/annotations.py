"""Annotations of a version by its user: tags, license and alias."""

from dataclasses import dataclass, field

from registry.errors import InvalidInputError
from registry.names.reference import check_alias, check_license, check_name

HUB_TAG, LANGUAGE_TAG = "hub", "language"
"""Tags of a version: its Hub repository (`ORG/NAME` or `ORG/NAME@COMMIT`), and its languages (`de` or `de,en`)."""


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
