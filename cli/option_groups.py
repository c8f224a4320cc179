"""Help of a command with many options, grouped by what the options belong to."""

from collections.abc import Iterable

import click

from registry.composition.recipe.recipe_fields import DENSE, ENSEMBLE, FIELDS, HETERO, MOE, TRUNK_OPTIONS, RecipeField

EXPERTS, OUTPUT, TRUNK, FIT, ROUTER, REFINEMENT, ENSEMBLES, TEXT, HUB, COMMON = (
    "Experts",
    "Output",
    "Trunk",
    "Fit of coefficients to text",
    "Router",
    "Refinement, on kept tokens",
    f"Whole members, with --to {ENSEMBLE} or {HETERO}",
    "Test text",
    "Hub",
    "Common",
)
"""Headings, in the order of the help."""

_BY_NAME = {
    EXPERTS: ("experts", "schedule", "recipe_path", "base", "from_base", "public", "like", "weights"),
    OUTPUT: ("out", "to", "dtype", "host", "remote_code", "save_recipe", "plan_only", "check", "force"),
    FIT: ("fit", "fit_tokens", "fit_steps", "fit_lr", "fit_seed", "fit_device"),
    ROUTER: ("top_k", "temperature"),
    REFINEMENT: ("token_weight", "refine", "refine_mlp", "refine_trunk", "device"),
    TEXT: ("data", "windows", "seq_len", "batch_size"),
    HUB: ("repo", "private", "license_id"),
}
_HEADINGS = {name: heading for heading, names in _BY_NAME.items() for name in names}


class GroupedCommand(click.Command):
    """A command whose help lists its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        for heading, options in grouped(self.get_params(ctx)):
            records = [record for option in options if (record := option.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def grouped(parameters: Iterable[click.Parameter]) -> list[tuple[str, list[click.Parameter]]]:
    """Return each heading and its options, in the order of the help; headings without an option are left out."""
    found: dict[str, list[click.Parameter]] = {}
    for parameter in parameters:
        if isinstance(parameter, click.Option):
            found.setdefault(heading_of(str(parameter.name)), []).append(parameter)
    order = (EXPERTS, OUTPUT, TRUNK, FIT, ROUTER, REFINEMENT, ENSEMBLES, TEXT, HUB, COMMON)
    return [(heading, found[heading]) for heading in order if heading in found]


def heading_of(name: str) -> str:
    """Return the heading of an option, by its parameter's name; that of a recipe's field follows from the field."""
    if name in _HEADINGS:
        return _HEADINGS[name]
    return _heading_of_field(FIELDS[name]) if name in FIELDS else COMMON


def _heading_of_field(field: RecipeField) -> str:
    if field.name == "trunk" or field.group == TRUNK_OPTIONS or "trunk" in field.only_with:
        return TRUNK
    if set(field.outputs) <= {ENSEMBLE, HETERO}:
        return ENSEMBLES
    return ROUTER if MOE in field.outputs else TRUNK if DENSE in field.outputs else COMMON
