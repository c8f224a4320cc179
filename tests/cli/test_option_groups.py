"""Proves: a command with many options has them under headings, each option once, and none in the wrong place."""

import click
import pytest

from cli.command_reference import commands
from cli.option_groups import COMMON, FEW, RECIPE, GroupedCommand, grouped


def _number(command: click.Command, own: click.Context) -> int:
    return sum(isinstance(one, click.Option) and not one.hidden for one in command.get_params(own))


EVERY = {own.command_path: (command, own) for command, own in commands() if isinstance(command, GroupedCommand)}
GROUPED = {path: (command, own) for path, (command, own) in EVERY.items() if _number(command, own) > FEW}
OF_RECIPES = [path for path, (command, _) in GROUPED.items() if command.headings is RECIPE]


def test_every_command_with_many_options_has_headings() -> None:
    assert set(EVERY) == {own.command_path for _, own in commands()}
    assert len(GROUPED) > 12
    for command, own in GROUPED.values():
        assert len(grouped(command.get_params(own), command.headings)) > 2
    for path in EVERY.keys() - GROUPED.keys():
        assert "\nOptions:\n" in EVERY[path][0].get_help(EVERY[path][1])


def test_every_command_with_a_recipe_has_its_headings() -> None:
    of_recipes = [own.command_path for command, own in commands() if {"trunk", "top_k", "alpha"} & _names(command)]
    assert set(of_recipes) - {"reg train-expert", "reg audit-extraction"} == set(OF_RECIPES)  # these have no recipe


@pytest.mark.parametrize("path", GROUPED)
def test_only_what_every_command_has_is_common(path: str) -> None:
    command, own = GROUPED[path]
    common = dict(grouped(command.get_params(own), command.headings)).get(COMMON, [])
    assert {option.opts[-1] for option in common} == {"--json", "--quiet", "--help"}


@pytest.mark.parametrize("path", GROUPED)
def test_every_option_stands_once(path: str) -> None:
    command, own = GROUPED[path]
    shown = [option for _, options in grouped(command.get_params(own), command.headings) for option in options]
    assert len(shown) == _number(command, own)
    text = command.get_help(own)
    assert all(f"\n  {option.opts[0]}" in text for option in shown)
    assert "\nOptions:" not in text


def test_headings_of_compose_follow_the_order_of_its_work() -> None:
    command, own = GROUPED["reg compose"]
    text = command.get_help(own)
    headings = [heading for heading, _ in grouped(command.get_params(own))]
    places = [text.index(f"\n{heading}:\n") for heading in headings]
    assert places == sorted(places)
    assert len(headings) == 9


def _names(command: click.Command) -> set[str]:
    return {str(option.name) for option in command.params if isinstance(option, click.Option)}
