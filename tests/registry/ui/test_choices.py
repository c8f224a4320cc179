"""Proves: the composer's fields are options of the command, and a recipe is read back; a search is of plain text."""

from pathlib import Path

import click

from cli.main import main
from registry import EnsembleRecipe, Recipe, Registry
from registry.composition.recipe.recipe_field_type import FieldKind
from registry.ui.composer.choices import CHOICES, Choices, select_values
from store.catalog import Catalog
from tests.store.test_catalog import new


def test_every_choice_of_the_form_is_an_option_of_compose() -> None:
    command = main.get_command(click.Context(main), "compose")
    assert command is not None
    options = {name: option for option in command.params for name in option.opts}
    for choice in CHOICES:
        option = options[choice.option]
        assert bool(getattr(option, "is_flag", False)) == (choice.kind is FieldKind.SWITCH)
        listed = getattr(option.type, "choices", ())
        assert tuple(one for one in select_values(choice) if one) == tuple(listed)


def test_the_choices_of_a_recipe_are_read_back() -> None:
    for recipe in (
        Recipe(),
        Recipe(trunk="mean", router="ridge", top_k=1, lam="auto"),
        Recipe(weights={"a": 2.0}),
        Recipe(seed=3, router="random"),
    ):
        document = {"recipe": recipe.document(["a", "b"]), "members": [{"name": "a"}, {"name": "b"}]}
        choices = Choices.of_document(document)
        if recipe.weights or recipe.seed:  # which the form does not have
            assert choices is None
        else:
            assert choices is not None
            made = choices.recipe()
            assert isinstance(made, Recipe)
            assert made.document(["a", "b"]) == document["recipe"]


def test_choices_that_are_read_back_leave_defaults_out() -> None:
    members = [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    for recipe, query in (
        (Recipe(), {}),
        (Recipe(router="ridge", lam="auto"), {"router": "ridge", "lam": "auto"}),
        (EnsembleRecipe(), {"to": "ensemble"}),
        (EnsembleRecipe(top_k=2), {"to": "ensemble", "top_k": "2"}),
    ):
        choices = Choices.of_document({"recipe": recipe.document(["a", "b", "c"]), "members": members})
        assert choices is not None
        assert choices.query == query


def test_catalogs_search_takes_text_as_it_is(tmp_path: Path) -> None:
    with Registry(tmp_path / "home") as registry:
        catalog: Catalog = registry.catalog
        catalog.add_version(new("a", "1", tags={"share": "100%"}))
        catalog.add_version(new("b", "2", tags={"share": "1000"}))
        assert [one.ref for one in registry.versions(search="100%")] == ["a@1"]
        assert registry.count_versions(search="share=1") == 2
        assert [(one.key, one.value, one.versions) for one in registry.tag_counts(1)] == [("share", "100%", 1)]
        assert registry.versions(search="b@99999999999") == []
