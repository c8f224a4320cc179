"""Composed folders and their documents read back, and the check that every byte of a folder is as it was composed.

A folder that was pushed to the Hub and downloaded again passes the check: additions of the push to the model card,
between marks, and files that the download leaves in the folder do not count as changes.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from registry.composition.card import CARD, without_additions
from registry.composition.recipe.fields import FROM_BASE, problem_of_copies, target_of
from registry.composition.recipe.fields import removed as removed_fields
from registry.composition.recipe.recipe import DOCUMENT_FORMAT, Recipe
from registry.errors import CheckpointError, InvalidInputError, NotFoundError
from registry.io.limits import JSON_BYTES
from registry.io.model_folder import BOM, MARKER, UNLISTED, require_composed
from registry.io.tree_digest import PREFIX, digest_like, tree_and_sha256
from registry.io.untrusted import DIGEST, LIST, OBJECT, TEXT, WHOLE, fields, json_object, maybe, own_file, read_small
from registry.names.reference import check_name, copy_name
from registry.names.resolve import find_by_digest
from registry.progress import Advance, Progress
from store.catalog import Catalog, VersionRecord
from store.digest import json_digest

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
        """Read `{"name": …, "digest": …}` (InvalidInputError: it is not such an object, or the name is not valid)."""
        given = fields(document, {"name": TEXT, "digest": DIGEST}, where)
        return cls(check_name(given["name"]), given["digest"])


@dataclass(frozen=True)
class CompositionManifest:
    """The contents of a composition's document.

    Attributes:
        members: in the order of the experts, which is that of their names.
        base: the base model, where it took part.
        recipe: how they were composed; what was `removed` of that is left out.
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
        """Check that this program can make the composition again (NotFoundError: its recipe has what was removed)."""
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
        """Read an untrusted `composition.json`, or the catalog's document of a composition.

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
            document = target_of(given["recipe"]).without_removed(given, removed) if removed else given["recipe"]
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
    """Return the content of `composition.json`; `files` has the digest of every other file by name."""
    return {**document, "format": FOLDER_FORMAT, "digest": digest, "files": dict(files)}


def _is_of_copies(manifest: CompositionManifest) -> bool:
    count, base, recipe = manifest.from_base, manifest.base, manifest.recipe
    values = recipe.given | {"balance": "none"}  # which changed nothing while it was allowed
    if base is None or count != len(manifest.members) or problem_of_copies(count, values):
        return False
    names = [copy_name(base.name, number, count) for number in range(1, count + 1)]
    return manifest.members == tuple(VersionRef(name, base.digest) for name in names)


COMPOSE_AGAIN = "compose it again: reg compose --experts … --out DIR"

_APART = (".gitattributes", *UNLISTED)
_NOT_ITS_OWN = "is not of this composition"  # said of a bill of materials
_HUB = (".cache/huggingface/", ".git/")
"""Folders that a download from the Hub leaves behind."""


@dataclass(frozen=True)
class ComposedFolder:
    """A folder with a `composition.json`: its bytes, its content, and the same parsed."""

    path: Path
    data: bytes
    content: Mapping[str, Any]
    manifest: CompositionManifest

    @classmethod
    def read(cls, path: Path) -> "ComposedFolder":
        """Read the `composition.json` of a folder; `problems` compares the other files.

        Raises:
            CheckpointError: the file is absent, or this program did not write it.
            InvalidInputError: a member's name cannot be one.
        """
        require_composed(path)
        return cls.of(path, read_small(path / MARKER, JSON_BYTES))

    @classmethod
    def of(cls, path: Path, data: bytes) -> "ComposedFolder":
        """Parse the bytes of a folder's `composition.json` (errors as `read`)."""
        content = json_object(data, str(path / MARKER))
        return cls(path, data, content, CompositionManifest.from_document(content, str(path / MARKER)))

    @property
    def digest(self) -> str:
        """The composition's digest, as the folder states it."""
        return str(self.content.get("digest"))

    @property
    def document(self) -> dict[str, Any]:
        """The composition's document, which its digest covers; it has a format number of its own."""
        covered = {key: value for key, value in self.content.items() if key not in ("digest", "files", "lam")}
        return covered | {"format": DOCUMENT_FORMAT}

    @property
    def files(self) -> dict[str, str]:
        """File → digest as it was composed, for every file but `composition.json`.

        A digest is a tree digest, with its prefix, or SHA-256: of weights in a folder of format 2, and of any other.
        """
        files = self.content.get("files")
        return {str(name): str(digest) for name, digest in files.items()} if isinstance(files, dict) else {}

    @cached_property
    def paths(self) -> dict[str, Path]:
        """Relative path → path of every file of the folder and link, but for those apart and what downloads leave."""
        paths = (path for path in self.path.rglob("*") if path.is_symlink() or not path.is_dir())
        found = {path.relative_to(self.path).as_posix(): path for path in paths}
        return {name: path for name, path in found.items() if name not in _APART and not name.startswith(_HUB)}

    def problems(self, progress: Progress) -> Iterator[str]:
        """Yield a line for every difference from the folder as it was composed; `progress` reports the bytes read."""
        if not self.files or json_digest(self.document) != self.digest:
            yield f"{self.path / MARKER} was changed since it was written"
            return
        try:
            self.bom()
        except CheckpointError as error:
            yield error.message
        files, paths = self.files, self.paths
        total = sum(path.stat().st_size for path in paths.values() if path.is_file())
        with progress("checking", total, "B") as advance:
            for name in sorted({*files, *paths} - {MARKER}):
                if name not in files:
                    yield f"{self.path / name} is not a file of the composition"
                elif name not in paths or not paths[name].is_file():
                    yield f"{self.path / name} is missing"
                elif not has_digest(paths[name], files[name], advance) and not (
                    name == CARD and hashlib.sha256(self.card).hexdigest() == files[name]
                ):
                    yield f"{self.path / name} was changed since it was written"

    def check(self, progress: Progress, hint: str = COMPOSE_AGAIN) -> None:
        """Check that there are no `problems` (CheckpointError: there are problems; the message is the first one)."""
        for problem in self.problems(progress):
            raise CheckpointError(problem, self._again if problem.endswith(_NOT_ITS_OWN) else hint)

    def sha256(self, progress: Progress, hint: str = COMPOSE_AGAIN) -> dict[str, str]:
        """Return file → SHA-256; files of weights are read for it, and compared (CheckpointError: one was changed)."""
        sizes = {name: (self.path / name).stat().st_size for name in self.files}
        digests = dict(self.files)
        trees = {name: digest for name, digest in digests.items() if digest.startswith(PREFIX)}
        with progress("hashing", sum(sizes[name] for name in trees), "B") as advance:
            for name, known in trees.items():
                tree, digests[name] = tree_and_sha256(self.path / name, advance)
                if tree != known:
                    raise CheckpointError(f"{self.path / name} was changed since it was written", hint)
        return digests

    @property
    def serial_number(self) -> str:
        """The serial number of its bill of materials: a UUID, by its digest."""
        return uuid5(NAMESPACE_URL, f"sha256:{self.digest}").urn

    @property
    def _again(self) -> str:
        return f"delete it, then: reg bom {self.path}"

    def bom(self) -> bytes | None:
        """Return its bill of materials, if it has one (CheckpointError: the file is of something else, or a link)."""
        path = own_file(self.path, BOM)
        if path is None:
            return None
        data = read_small(path, JSON_BYTES)
        if json_object(data, str(path)).get("serialNumber") != self.serial_number:
            raise CheckpointError(f"{path} {_NOT_ITS_OWN}", self._again)
        return data

    @property
    def card(self) -> bytes:
        """The model card without the additions of a push."""
        return without_additions((self.path / CARD).read_bytes())


def has_digest(path: Path, digest: str, advance: Advance) -> bool:
    """Tell whether a file has a tree digest, or SHA-256."""
    try:
        return digest_like(path, digest, advance) == digest
    except CheckpointError:  # it is no longer a safetensors file
        return False


def registered_versions(catalog: Catalog, composed: ComposedFolder) -> dict[VersionRef, VersionRecord]:
    """Return the versions of a folder that are registered here, base model last (ConflictError: one was opted out)."""
    holder, digest = str(composed.path), composed.digest
    versions = {
        one: find_by_digest(catalog, one.name, one.digest, holder, digest) for one in composed.manifest.versions
    }
    return {one: version for one, version in versions.items() if version is not None}
