"""The recipe of a command that composes: from its options, and from a file with `--recipe`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.options import Choice, Integer, Size, file_path, flag, is_typed, numbers, option, options, split
from cli.output import Decorator
from cli.session import Session
from registry import composition
from registry.composition.found import OUTPUTS
from registry.composition.option import Option as Field
from registry.composition.option import OptionKind
from registry.composition.recipe.fields import FIELDS, obstacle, of_copies, problem_of_copies, target_of, without_trunk
from registry.composition.recipe.recipe import Recipe, overlay
from registry.errors import InvalidInputError, RegError
from registry.names.reference import Reference, check_distinct

if TYPE_CHECKING:
    from store.catalog.records import Kind  # with SQLAlchemy


@dataclass(frozen=True)
class Asked:
    """References to the members, the recipe and the base model that a command line asks for."""

    experts: list[str]
    recipe: Recipe
    base: str | None  # None where none was named, or takes part
    from_base: int | None = None  # number of copies of the base model that are the members, in place of `experts`


def _option(described: Field) -> Decorator:
    name, kind, limits = described.option, described.kind, described.limits
    settings: dict[str, Any] = {"advanced": described.advanced, "outputs": described.outputs}
    if kind is OptionKind.SWITCH:
        if described.stands_for:
            return flag(name, described.help, **settings)
        both = f"{name}/--no-{name.removeprefix('--')}"
        return flag(both, described.help, default=described.default, show_default=True, **settings)
    if kind is OptionKind.CHOICE:
        settings["type"] = Choice(described.choices)
    elif described.metavar == "SIZE":
        settings["type"] = Size()
    elif kind is OptionKind.WHOLE and limits.least > float("-inf"):
        settings["type"] = Integer(int(limits.least), None if limits.most == float("inf") else int(limits.most))
    elif kind in (OptionKind.WHOLE, OptionKind.NUMBER):
        settings["type"] = int if kind is OptionKind.WHOLE else float
    elif kind is OptionKind.BY_MEMBER:
        settings |= {"multiple": True, "callback": numbers(described.called)}
    text, default = described.help, described.default
    if default in (None, {}) or described.default_with or described.group:
        text, default = f"{text} [default: {described.default_text}]", None
    return option(f"{name} {described.metavar}", text, default=default, **settings)


experts_option = option("--experts A,B@2,…", "The members, in any order.", multiple=True)
"""--experts, which a file of `--recipe` can replace."""
base_option = option("--base NAME[@V]", "The base model, for recipes that need one.")


def recipe_options(*without: str) -> Decorator:
    """Return a decorator that adds `--recipe` and every option of a recipe but some; `asked` reads their values."""
    text = "Read experts, base model and recipe from a YAML file or a composition.json; options win over it."
    fields = [_option(described) for name, described in FIELDS.items() if name not in without]
    return options(option("--recipe FILE", text, "recipe_path", type=file_path), *fields)


def asked(
    session: Session, experts: Sequence[str], base: str | None, settings: dict[str, Any], *, checks_base: bool = True
) -> Asked:
    """Return what the options and the file of `--recipe` ask for.

    What cannot be composed is refused before anything is imported that takes seconds; the base model is looked up too
    with `checks_base`. `settings` are the values of `recipe_options` and --from-base. UsageError: an option has no part
    in what is made, or no expert is named. RegError: the file is not a recipe, or an expert or the recipe cannot be.
    """
    path: Path | None = settings.pop("recipe_path")
    given = {name: value for name, value in settings.items() if name in FIELDS and is_typed(name)}
    file = None if path is None else composition.read_recipe(path)
    if copies := _copies(experts, settings, file):
        return _asked_copies(session, base, copies, given, file)
    _check_options(given, {} if file is None else file.values)
    if file is not None:
        file = _resolved(session, file, members=not experts, base=not base)
    refs = split(experts) if experts else list(file.experts if file else ())
    if not (experts or refs):
        raise click.UsageError("give --experts A,B, or a --recipe that names them")
    check_members(session, refs)
    if base is not None and checks_base:
        check_members(session, [base], kind="base")
    if file is None:
        return Asked(refs, Recipe.of_fields(given), base)
    values = overlay(file.values, _of_members(file, refs) | given if experts else given)
    if "to" not in settings and values.get("to", OUTPUTS.default.name) != OUTPUTS.default.name:
        raise InvalidInputError(
            f"{_this_command()} is for mixtures, and the recipe in {path} makes {values['to']}", "name another --recipe"
        )
    recipe = Recipe.of_fields(values, None if "coefficients" in given else file.fit)
    return Asked(refs, recipe, base or (file.base if recipe.needs_base else None))


def _copies(experts: Sequence[str], settings: Mapping[str, Any], file: composition.RecipeFile | None) -> int | None:
    """Return how many copies of a base model the experts are to be; None where they are versions of their own."""
    count: int | None = settings.get("from_base")
    if experts and count is not None:
        raise click.UsageError("--from-base and --experts exclude one another: the experts are copies of --base.")
    if experts or count is not None or file is None or file.from_base is None:
        return count
    if "from_base" not in settings:
        raise InvalidInputError(
            f"{_this_command()} compares experts, and the recipe in {file.path} has copies of a base model, "
            "which no text tells apart",
            "name some: --experts A,B",
        )
    return file.from_base


def _asked_copies(
    session: Session, base: str | None, count: int, given: dict[str, Any], file: composition.RecipeFile | None
) -> Asked:
    by_member = {} if file is None else _of_members(file, ())
    known = {} if file is None else {name: one for name, one in file.values.items() if name not in by_member}
    values = overlay(of_copies() | known, given)
    if problem := problem_of_copies(count, values):
        raise problem.error()
    _check_options(given, values)
    if file is not None and base is None:
        base = _resolved(session, file, members=False, base=True).base
    check_members(session, [base] if base else [], kind="base")
    return Asked([], Recipe.of_fields(values), base, count)


def _resolved(session: Session, file: composition.RecipeFile, *, members: bool, base: bool) -> composition.RecipeFile:
    """Return a recipe file with its members or its base model looked up; what the options name is not."""
    file = replace(file, members=file.members if members else (), base_member=file.base_member if base else None)
    if not (file.members or file.base_member):
        return file
    with session.registry() as registry:
        return file.resolved(registry.catalog)


def check_members(session: Session, refs: Sequence[str], *, kind: Kind | None = None) -> None:
    """Check that versions can be composed, none of a name twice (or are of the `kind`); not without a registry yet."""
    from store.ownership import check_owner

    if kind is None:
        check_distinct([Reference.parse(ref).name for ref in refs])
    with ExitStack() as stack:
        try:
            registry = stack.enter_context(session.registry())
        except RegError:
            return
        check_owner(registry.catalog, registry.arrays)
        for ref in refs:
            registry.resolve(ref, kind=kind)


def _check_options(given: dict[str, Any], file_values: Any) -> None:
    merged = {**file_values, **given}
    for name in sorted(given):
        if found := obstacle(FIELDS[name], merged):
            other, method = found
            fitting = FIELDS[name].outputs if other == "to" else FIELDS[name].only_with.get(other, ())
            raise no_part(FIELDS[name].option, other, method, fitting)
    if problem := target_of(merged).unwanted(merged):
        raise click.UsageError(f"{problem.message}: {problem.hint.replace('trunk', '--trunk')}.")
    if given.get("host") and given.get("remote_code"):
        raise click.UsageError("--host and --remote-code exclude one another.")


def no_part(option: str, other: str, method: str | None, fitting: Sequence[str]) -> click.UsageError:
    """Return the error of an option without a part, as another field has none of the `fitting` values."""
    hint = f" It goes with {FIELDS[other].option} {' or '.join(fitting)}." if fitting else ""
    if method is None:
        return click.UsageError(f"{without_trunk(option)}.{hint}")
    if other == "to":
        return click.UsageError(f"{option} has no part in what --to {method} makes.{hint}")
    return click.UsageError(f"{option} has no part in {FIELDS[other].option} {method}.{hint}")


def _of_members(file: composition.RecipeFile, refs: Sequence[str]) -> dict[str, Any]:
    """Return the file's numbers by member without those of members that --experts leaves out."""
    names = {Reference.parse(ref).name for ref in refs}
    return {
        name: {member: number for member, number in value.items() if member in names}
        for name, value in file.values.items()
        if FIELDS[name].kind is OptionKind.BY_MEMBER
    }


def _this_command() -> str:
    return f"reg {click.get_current_context().info_name}"
