"""Help of the commands that compose: options under headings."""

import click
import pytest

from cli.command_reference import commands
from cli.option_groups import COMMON, GroupedCommand, grouped
from registry.composition.recipe.recipe_fields import FIELDS

GROUPED = {own.command_path: (command, own) for command, own in commands() if isinstance(command, GroupedCommand)}


def test_every_command_with_a_recipe_is_grouped() -> None:
    of_recipes = [own.command_path for command, own in commands() if {"trunk", "top_k", "alpha"} & _names(command)]
    assert set(of_recipes) - {"reg train-expert", "reg audit-extraction"} == set(GROUPED)  # these have no recipe


@pytest.mark.parametrize("path", GROUPED)
def test_every_option_stands_once(path: str) -> None:
    command, own = GROUPED[path]
    shown = [option for _, options in grouped(command.get_params(own)) for option in options]
    assert len(shown) == len(command.get_params(own)) - len(_arguments(command))
    text = command.get_help(own)
    assert all(f"\n  {option.opts[0]}" in text for option in shown)
    assert "\nOptions:" not in text


@pytest.mark.parametrize("path", GROUPED)
def test_no_option_of_a_recipe_is_common(path: str) -> None:
    command, own = GROUPED[path]
    common = dict(grouped(command.get_params(own))).get(COMMON, [])
    assert not {str(option.name) for option in common} & set(FIELDS)


def test_headings_of_compose_follow_the_order_of_its_work() -> None:
    command, own = GROUPED["reg compose"]
    text = command.get_help(own)
    headings = [heading for heading, _ in grouped(command.get_params(own))]
    places = [text.index(f"\n{heading}:\n") for heading in headings]
    assert places == sorted(places)
    assert len(headings) == 9


def _names(command: click.Command) -> set[str]:
    return {str(option.name) for option in command.params if isinstance(option, click.Option)}


def _arguments(command: click.Command) -> list[click.Parameter]:
    return [parameter for parameter in command.params if not isinstance(parameter, click.Option)]
