"""Recipe files: YAML with the fields of a recipe, the experts and the base model.

    experts: [code, math@2]        # or by weight: {code: 2, math@2: 1}
    trunk: dare
    trunk_options: {density: 0.5}
    base: base

The keys are those of the recipe in a `composition.json`, and `experts`, `base`, `from_base`, `host` and `device`; a key
without a value counts as absent. Coefficients that were fitted have the record of that beside them, `fit`. A
`composition.json` can be read as well: it names members and base model by content digest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from registry.composition.manifest import CompositionManifest
from registry.composition.option import Option, OptionKind, Problem
from registry.composition.recipe.fields import (
    FIELDS,
    FROM_BASE,
    first_problem,
    misplaced,
    of_copies,
    problem_of_copies,
    removed,
    target_of,
)
from registry.composition.recipe.recipe import CoefficientFit, Recipe
from registry.composition.recipe.shared_options import TRUNK_OPTIONS
from registry.errors import CheckpointError, InvalidInputError, NotFoundError, OutputError
from registry.io.disk import atomic_file
from registry.io.limits import JSON_BYTES
from registry.io.strict_yaml import Located, parse_yaml
from registry.io.untrusted import parse_json
from registry.names.reference import Reference, check_name
from registry.names.resolve import by_digest
from registry.names.suggest import suggest
from registry.statistics.settings import PassSettings
from store.catalog import Catalog

EXPERTS, BASE, COMPUTED, FIT = "experts", "base", "computed", "fit"
FILE_FIELDS = tuple(one for one in FIELDS.values() if not one.group and one.stands_for is None)
"""Fields that are keys of a recipe file."""
KEYS = (EXPERTS, BASE, FROM_BASE, *(one.name for one in FILE_FIELDS), TRUNK_OPTIONS, COMPUTED, FIT)

_SCHEMA_HINT = "reg schema recipe"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./@-]*")
_RESERVED = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
"""Words that some reader of YAML takes for something other than text."""
_HEADER = "# A recipe for reg compose --recipe; reg schema recipe describes the fields.\n"


@dataclass(frozen=True)
class RecipeFile:
    """The contents of a recipe file.

    Attributes:
        experts: references to the members; empty if it names no expert.
        base: a reference to the base model, where it names one.
        values: the fields that it gives, as `Recipe.of_fields` takes them.
        members: of a `composition.json`, name and content digest of each member, which `resolved` makes references of.
        base_member: of a `composition.json`, name and content digest of the base model.
        from_base: the number of copies of the base model that are the experts, where no expert is named.
        fit: what the coefficients among `values` were fitted for and on; None where they were not.
    """

    path: Path
    experts: tuple[str, ...] = ()
    base: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    members: tuple[tuple[str, str], ...] = ()
    base_member: tuple[str, str] | None = None
    from_base: int | None = None
    fit: CoefficientFit | None = None

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe."""
        return Recipe.of_fields(self.values, self.fit)

    def resolved(self, catalog: Catalog) -> RecipeFile:
        """Return the same by references (NotFoundError: a version is not registered; ConflictError: opted out)."""
        holder = str(self.path)
        members = tuple(by_digest(catalog, *member, holder).ref for member in self.members)
        base = by_digest(catalog, *self.base_member, holder).ref if self.base_member else self.base
        return replace(self, experts=members or self.experts, base=base, members=(), base_member=None)


def read_recipe(path: Path | str) -> RecipeFile:
    """Read a recipe file, or a `composition.json`.

    Raises:
        NotFoundError: there is no such file.
        InvalidInputError: it is not a recipe; the message has the file, the line and the key.
    """
    path = Path(path)
    if not path.is_file():
        raise NotFoundError(f"{path} is not a file", "name a recipe file, or the composition.json of a folder")
    with path.open("rb") as file:
        data = file.read(JSON_BYTES + 1)
    if data.lstrip()[:1] == b"{" and len(data) <= JSON_BYTES and (document := _composition(data)) is not None:
        return _of_composition(document, path)
    return _Reader(path).read(parse_yaml(data, str(path)))


def recipe_text(
    recipe: Recipe, experts: Sequence[str] = (), base: str | None = None, from_base: int | None = None
) -> str:
    """Return a recipe file of a recipe; every field that has a part in it is written out."""
    values = recipe.fields
    items: dict[str, Any] = {EXPERTS: [*experts] or None, BASE: base, FROM_BASE: from_base}
    for one in FIELDS.values():
        if one.name in values and not one.group:
            items[one.name] = values[one.name]
        if one.name == "trunk":
            items[TRUNK_OPTIONS] = {name: values[name] for name in values if FIELDS[name].group} or None
    items[FIT] = recipe.fit and asdict(recipe.fit)
    return _HEADER + "".join(f"{key}: {_written(item)}\n" for key, item in items.items() if item is not None)


def check_recipe_output(path: Path, *, force: bool = False) -> None:
    """Check that a recipe can be written to `path` (OutputError: it exists without `force`, or has no folder)."""
    if path.is_dir() or (not force and (path.exists() or path.is_symlink())):
        raise OutputError(f"{path} exists", "choose another --save-recipe, or replace the file: --force")
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent} is not a folder", "make it, or choose another --save-recipe")


def write_recipe(
    path: Path | str,
    recipe: Recipe,
    experts: Sequence[str] = (),
    base: str | None = None,
    *,
    from_base: int | None = None,
    force: bool = False,
) -> None:
    """Write a recipe file, which appears whole or not at all; `read_recipe` returns an equal recipe.

    `from_base` copies of the base model may be the experts in place of `experts` (OutputError: as
    `check_recipe_output`).
    """
    path = Path(path)
    check_recipe_output(path, force=force)
    with atomic_file(path) as fresh:
        fresh.write_text(recipe_text(recipe, experts, base, from_base), encoding="ascii")


def _composition(data: bytes) -> dict[str, Any] | None:
    try:
        document = parse_json(data)
    except ValueError:
        return None  # as YAML, its message has the line
    return document if isinstance(document, dict) and {"recipe", "members"} <= document.keys() else None


def _of_composition(document: Mapping[str, Any], path: Path) -> RecipeFile:
    described = CompositionManifest.from_document(document, str(path))
    if described.parent is not None:
        raise InvalidInputError(
            f"{path} describes a trained composition, which no recipe makes",
            "name the composition.json of its parent, then train that: reg train",
        )
    described.check_makeable()
    values = described.recipe.fields
    for name, unset in (("weights", 1.0), ("bias", 0.0)):
        if name in values:
            values[name] = {member: number for member, number in values[name].items() if number != unset}
    base, copies = described.base, described.from_base
    return RecipeFile(
        path,
        values={name: value for name, value in values.items() if value != {}},
        members=() if copies else tuple((member.name, member.digest) for member in described.members),
        base_member=(base.name, base.digest) if base else None,
        from_base=copies,
        fit=described.recipe.fit,
    )


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, int] = {}
        self._values: dict[str, Any] = {}

    def read(self, document: Located) -> RecipeFile:
        """Return what the file says."""
        if document.value is not None and not isinstance(document.value, dict):
            raise self._error(document.line, "a recipe file holds fields, as in trunk: mean")
        given = {key: item for key, item in (document.value or {}).items() if self._is_given(key, item)}
        for one in FILE_FIELDS:
            if one.name in given:
                self._add(one, given[one.name])
        self._read_options(given)
        self._read_computed(given)
        copies = self._read_from_base(given)
        experts = self._read_experts(given)
        base = self._read_base(given)
        for name in self._values:
            if problem := misplaced(name, self._values):
                raise self._located(problem)
        options = {name: value for name, value in self._values.items() if FIELDS[name].group}
        own = {name: value for name, value in self._values.items() if name not in options}
        if problem := first_problem(own, options, is_fitted=FIT in given) or target_of(own).unwanted(own):
            raise self._located(problem)
        fit = self._read_fit(given)
        if experts and (problem := Recipe.of_fields(self._values, fit).problem_of_members([*experts])):
            raise self._located(problem)
        if base is not None and not target_of(self._values).needs_base(self._values):
            hint = "drop it, or choose a method that needs the base model: trunk: base"
            raise self._error(self._lines[BASE], "this recipe takes no base model, and one is named", hint)
        refs = tuple(experts.values())
        return RecipeFile(self._path, refs, base, self._values, from_base=copies or None, fit=fit)

    def _is_given(self, key: str, item: Located) -> bool:
        self._lines[key] = item.line
        unasked, gone = removed().get(key, (None, None))
        if item.value is not None and item.value == gone:
            raise self._error(item.line, f"{key}: {str(gone).lower()} was removed", "compose without it: drop the line")
        if key not in KEYS and (unasked is None or item.value not in (None, unasked)):
            raise self._unknown(key, item.line)
        return key in KEYS and item.value is not None

    def _unknown(self, key: str, line: int) -> InvalidInputError:
        one = FIELDS.get(key)
        if one is not None and one.group:
            return self._error(line, f"{key} belongs under {one.group}", f"write it as {one.group}: {{{key}: …}}")
        if one is not None and one.stands_for:
            return self._error(line, f"there is no field {key!r}", "write it as {}: {}".format(*one.stands_for))
        return self._error(line, f"there is no field {key[:80]!r}{suggest(key[:80], KEYS)}", _SCHEMA_HINT)

    def _add(self, one: Option, item: Located) -> None:
        self._lines[one.name] = item.line
        parts = item.value if isinstance(item.value, dict) and one.kind is OptionKind.BY_MEMBER else {}
        for member, number in parts.items():
            self._check(number.line, check_name, member)
            if problem := one.problem({member: number.plain}):
                raise self._error(number.line, *problem)
        value = item.plain
        if problem := one.problem(value):
            raise self._error(item.line, *problem)
        self._values[one.name] = one.typed(value)

    def _mapping(self, given: Mapping[str, Located], key: str) -> dict[str, Located]:
        if key not in given:
            return {}
        value = given[key].value
        if not isinstance(value, dict):
            raise self._error(given[key].line, f"{key} must hold fields of its own", _SCHEMA_HINT)
        return value

    def _read_options(self, given: Mapping[str, Located]) -> None:
        for name, item in self._mapping(given, TRUNK_OPTIONS).items():
            if name not in FIELDS or FIELDS[name].group != TRUNK_OPTIONS:
                known = [one.name for one in FIELDS.values() if one.group == TRUNK_OPTIONS]
                message = f"there is no trunk option {name[:80]!r}{suggest(name[:80], known)}"
                raise self._error(item.line, message, f"there are {', '.join(known)}")
            if item.value is not None:
                self._add(FIELDS[name], item)

    def _read_computed(self, given: Mapping[str, Located]) -> None:
        for name, item in self._mapping(given, COMPUTED).items():
            if name == "device":
                if "device" in given:
                    raise self._error(item.line, "the device is given twice", f"drop {COMPUTED}")
                self._add(FIELDS["device"], item)
            elif name != "batch_size":
                raise self._error(item.line, f"there is no field {name[:80]!r} of {COMPUTED}", f"drop {COMPUTED}")
            elif item.value != PassSettings().batch_size:
                message = f"passes run in batches of {PassSettings().batch_size}, not {str(item.plain)[:80]}"
                raise self._error(item.line, message, f"drop {COMPUTED}")

    def _read_fit(self, given: Mapping[str, Located]) -> CoefficientFit | None:
        if FIT not in given:
            return None
        try:
            return CoefficientFit.from_document(given[FIT].plain, FIT)
        except CheckpointError as error:
            raise self._error(self._lines[FIT], error.message, f"drop {FIT}, or copy the file again") from error

    def _read_experts(self, given: Mapping[str, Located]) -> dict[str, str]:
        """Return name → reference of the experts, whose weights may stand beside them."""
        if EXPERTS not in given:
            return {}
        value, line = given[EXPERTS].value, given[EXPERTS].line
        refs: list[tuple[object, int]] = []
        if isinstance(value, dict):
            refs = [(ref, item.line) for ref, item in value.items()]
        elif isinstance(value, list):
            refs = [(item.value, item.line) for item in value]
        else:
            raise self._error(line, "experts must be a list of references, or weights by reference", "[code, math@2]")
        named: dict[str, str] = {}
        for ref, at in refs:
            if not isinstance(ref, str):
                raise self._error(at, f"the expert {str(ref)[:80]} is not text", "put it in quotes")
            name = self._check(at, Reference.parse, ref).name
            if name in named:
                message = f"{name} is named more than once: a composition holds one version of an expert"
                raise self._error(at, message, "name each once")
            named[name] = ref
        if isinstance(value, dict):
            if "weights" in given:
                message = "weights stand beside the experts already"
                raise self._error(given["weights"].line, message, "drop one of the two")
            if weights := {name: value[ref] for name, ref in named.items() if value[ref].value is not None}:
                self._add(FIELDS["weights"], Located(weights, line))
        return named

    def _read_from_base(self, given: Mapping[str, Located]) -> int:
        """Return the number of copies of the base model, 0 for none, and give fields the values that go with it."""
        if FROM_BASE not in given:
            return 0
        count: Any = given[FROM_BASE].plain
        if EXPERTS in given:
            message = "the experts are copies of the base model, and others are named"
            raise self._error(given[EXPERTS].line, message, f"drop {EXPERTS}, or {FROM_BASE}")
        if problem := problem_of_copies(count, self._values):
            raise self._located(problem)
        self._values = {**of_copies(), **self._values}
        return int(count)

    def _read_base(self, given: Mapping[str, Located]) -> str | None:
        if BASE not in given:
            return None
        ref, line = given[BASE].value, given[BASE].line
        if not isinstance(ref, str):
            raise self._error(line, "the base model must be a reference", "such as base: NAME@2, in quotes if a number")
        self._check(line, Reference.parse, ref)
        return ref

    def _check(self, line: int, check: Any, *arguments: Any) -> Any:
        """Call `check`, and give its error the line."""
        try:
            return check(*arguments)
        except InvalidInputError as error:
            raise self._error(line, error.message, error.hint or _SCHEMA_HINT) from error

    def _located(self, problem: Problem) -> InvalidInputError:
        line = next((self._lines[name] for name in problem.fields if name in self._lines), 1)
        return self._error(line, problem.message, problem.hint)

    def _error(self, line: int, message: str, hint: str = _SCHEMA_HINT) -> InvalidInputError:
        return InvalidInputError(f"{self._path}:{line}: {message}", hint)


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(key)}: {_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool | int):
        return json.dumps(value)
    text = repr(float(value))
    return text if "." in text else text.replace("e", ".0e")


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    safe = (c if c.isascii() and c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return '"' + "".join(safe) + '"'
