"""A composition's document read back: what was composed of what, and how."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from registry.composition.recipe.fields import output_of
from registry.composition.recipe.fields import removed as removed_fields
from registry.composition.recipe.recipe import Recipe
from registry.composition.recipe.rules import FROM_BASE, problem_of_copies
from registry.errors import CheckpointError, InvalidInputError, NotFoundError
from registry.io.model_folder import MARKER, require_composed
from registry.io.untrusted import DIGEST, LIST, OBJECT, TEXT, WHOLE, fields, maybe, read_json
from registry.names.reference import check_name, copy_name

DOCUMENT_FORMAT = 1
"""The format of a composition's document, of which its digest is a function."""
FOLDER_FORMAT = 2
"""The format of `composition.json`: weights by tree digest. In format 1 every file has its SHA-256."""

_KINDS = {
    "format": WHOLE,
    "from_base": WHOLE,
    "host": TEXT,
    "recipe": OBJECT,
    "members": LIST,
    "base": maybe(OBJECT),
    "digest": DIGEST,
    "files": OBJECT,
    "lam": LIST,
    "parent": DIGEST,
    "training": OBJECT,
}
_OPTIONAL = ("digest", "files", "lam", "parent", "training", FROM_BASE)
"""Of `composition.json` alone, of its lam `auto` in earlier releases, of trained compositions, and of copies of a base
model."""


@dataclass(frozen=True)
class VersionRef:
    """A version as documents name it: by name and content digest."""

    name: str
    digest: str

    @classmethod
    def from_document(cls, document: object, where: str) -> "VersionRef":
        """Read `{"name": …, "digest": …}`.

        Raises:
            InvalidInputError: it is not such an object, or the name is not valid.
        """
        given = fields(document, {"name": TEXT, "digest": DIGEST}, where)
        return cls(check_name(given["name"]), given["digest"])


@dataclass(frozen=True)
class CompositionManifest:
    """The contents of a composition's document.

    Attributes:
        members: in the order of the experts, which is that of their names.
        base: the base model, where it took part.
        recipe: how they were composed; what was `removed` of that is left out.
        host: the `model_type`.
        parent: the digest of the composition that was trained; None of one that was not.
        from_base: the number of members, where they are copies of the base model; else None.
        removed: key → value of the recipe that only earlier releases took; such a composition is read as any other, and
            not made again.
    """

    members: tuple[VersionRef, ...]
    base: VersionRef | None
    recipe: Recipe
    host: str
    parent: str | None = None
    from_base: int | None = None
    removed: Mapping[str, Any] = field(default_factory=dict)

    def check_makeable(self) -> None:
        """Check that this program can make the composition again.

        Raises:
            NotFoundError: its recipe has a value that was removed.
        """
        if self.removed:
            told = " and ".join(f"{key}: {str(value).lower()}" for key, value in self.removed.items())
            names = [member.name for member in self.members]
            recipe = self.recipe.document(names)
            made = " ".join(f"--{key} {recipe[key]}" for key in ("trunk", "router", "lam") if key in recipe)
            raise NotFoundError(
                f"it was composed with {told}, which was removed",
                f"compose without it: reg compose --experts {','.join(names)} {made} --out DIR",
            )

    @property
    def versions(self) -> tuple[VersionRef, ...]:
        """The registered versions that it was made from, each once; the base model last, unless it is a member."""
        base = () if self.base is None else (self.base,)
        return base if self.from_base is not None else tuple(dict.fromkeys((*self.members, *base)))

    @classmethod
    def from_document(cls, document: Mapping[str, Any], where: str) -> "CompositionManifest":
        """Read a `composition.json`, or the catalog's document of a composition.

        Args:
            document: untrusted.
            where: what messages call it.

        Raises:
            CheckpointError: a key is unknown or missing, a value has the wrong kind, or the recipe is not valid.
            InvalidInputError: a member's name cannot be one.
        """
        given = fields(document, _KINDS, where, optional=_OPTIONAL)
        if given["format"] not in (DOCUMENT_FORMAT, FOLDER_FORMAT):
            raise CheckpointError(
                f"{where} has format {given['format']}, this program reads {DOCUMENT_FORMAT} and {FOLDER_FORMAT}",
                "use the program that it was composed with",
            )
        if ("parent" in given) != ("training" in given):
            raise CheckpointError(f"{where} has one of parent and training, which go together", "copy the file again")
        members = tuple(VersionRef.from_document(member, f"{where}, members") for member in given["members"])
        names = [member.name for member in members]
        if not names or names != sorted(set(names)):
            raise CheckpointError(f"{where}: its members are not in the order of their names", "copy the file again")
        base = None if given["base"] is None else VersionRef.from_document(given["base"], f"{where}, base")
        removed = {key: value for key, (_, value) in removed_fields().items() if given["recipe"].get(key) == value}
        try:
            document = output_of(given["recipe"]).without_removed(given, removed) if removed else given["recipe"]
            recipe = Recipe.from_document(document, names, host=given["host"])
        except InvalidInputError as error:
            raise CheckpointError(f"{where}: {error.message}", "copy the file again") from error
        manifest = cls(members, base, recipe, given["host"], given.get("parent"), given.get(FROM_BASE), removed)
        if manifest.from_base is not None and not _is_of_copies(manifest):
            raise CheckpointError(
                f"{where}: its members are not {manifest.from_base} copies of its base model", "copy the file again"
            )
        return manifest


def folder_document(document: Mapping[str, Any], digest: str, files: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of `composition.json`.

    Args:
        document: the composition's document; its format is another number, of which the digest is a function.
        digest: the composition's digest.
        files: file name → digest of every other file.
    """
    return {**document, "format": FOLDER_FORMAT, "digest": digest, "files": dict(files)}


def read_composed(folder: Path) -> tuple[dict[str, object], CompositionManifest]:
    """Return the `composition.json` of a folder, and what it says.

    Raises:
        CheckpointError: there is no such file, or it is not what this program writes.
        InvalidInputError: a member's name cannot be one.
    """
    require_composed(folder)
    marker = folder / MARKER
    document = read_json(marker)
    return document, CompositionManifest.from_document(document, str(marker))


def _is_of_copies(manifest: CompositionManifest) -> bool:
    count, base, recipe = manifest.from_base, manifest.base, manifest.recipe
    values = recipe.given | {"balance": "none"}  # which changed nothing while it was allowed
    if base is None or count != len(manifest.members) or problem_of_copies(count, values):
        return False
    names = [copy_name(base.name, number, count) for number in range(1, count + 1)]
    return manifest.members == tuple(VersionRef(name, base.digest) for name in names)
