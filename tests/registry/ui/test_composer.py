"""Proves: the Compose page suggests a folder, offers changes that mend, and shows a soup's experts without tokens."""

from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.composition.recipe.recipe_field_type import FieldKind
from registry.ui.composer.choices import BASICS, CHOICES, GROUPS, OPTIONS, WORDS, default_text, select_values
from registry.ui.composer.composing import beside_latest, suggested_folder
from registry.ui.site import url
from tests.conftest import Zoo
from tests.pages import Page, Pages, served
from tests.registry.ui.examples import composed
from tests.registry.ui.test_trained_together import OF_ALL
from tests.store.test_catalog import new


@pytest.fixture
def twice(filled: Registry, zoo: Zoo) -> Registry:
    """A registry with a second version of an expert, with other text."""
    filled.add_expert("math", zoo.experts["code"])
    return filled


def offered(pages: Pages, **query: Any) -> list[str]:
    """Return the addresses of the changes that mend a choice, in their order."""
    text = pages.ask(url("compose", **query)).text
    return [part.partition('"')[0].replace("&amp;", "&") for part in text.split('<a class="button" href="')[1:]
            if " data-apply" in part.partition(">")[0]]  # fmt: skip


def test_every_field_of_the_form_is_in_one_group() -> None:
    shown = [*BASICS, *(one for fields in GROUPS.values() for one in fields)]
    assert sorted(one.name for one in shown) == sorted(one.name for one in CHOICES)
    assert {one.name for one in BASICS} >= {"to", "trunk", "router"}
    assert tuple(WORDS) == CHOICES[0].choices


def test_what_is_left_empty_is_called_the_same_everywhere(pages: Pages) -> None:
    text = pages.ask("/compose").text
    assert "if empty" not in text
    assert "as the members</option>" not in text
    for one in CHOICES:
        if one.kind is FieldKind.SWITCH or default_text(one):
            continue
        begin = text.index(f'id="field-{one.name}"')
        if select_values(one):
            assert '<option value="" selected>by default</option>' in text[begin : text.index("</select>", begin)]
        else:
            assert 'placeholder="by default"' in text[begin : text.index(">", begin)]
        assert "by default" in one.note, one.name


def test_choices_say_in_plain_words_what_they_do(pages: Pages) -> None:
    text = pages.ask("/compose").text
    assert all(set(OPTIONS[one.name]) == set(one.choices) for one in CHOICES if one.name in OPTIONS)
    for option in ("anchored: routers trained with the experts", "regmean: nearest to what each expert computes"):
        assert f">{option}</option>" in text
    shown = Page(text).text
    assert "combines the experts’ weights outside the MLPs" in shown
    assert "decides which experts a token goes to" in shown
    assert "hetero: members of several architectures share one embedding and head" in shown
    assert '<p class="help unseen"' not in text
    assert len({one.note for one in CHOICES}) == len(CHOICES)


def test_a_group_is_folded_until_one_of_its_fields_is_changed(filled: Registry) -> None:
    with served(filled) as pages:
        folded = pages.ask("/compose").text
        opened = pages.ask("/compose?router=ridge&lam=0.1").text
    assert "<details data-group open>" not in folded
    assert opened.count("<details data-group open>") == 1


def test_folders_are_named_after_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert suggested_folder(["code", "math"], "moe") == "code-math/"
    assert suggested_folder(["code", "math"], "dense") == "code-math-dense/"
    assert suggested_folder(list("abcdefg"), "moe") == "a-b-c-d-and-3/"
    assert suggested_folder(["x" * 100, "y"], "moe") == "x" * 100 + "-and-1/"
    assert suggested_folder(["code"], "moe", ["code/", str(tmp_path / "code-2")]) == "code-3/"
    (tmp_path / "code").write_text("")
    assert suggested_folder(["code"], "moe") == "code-2/"
    assert suggested_folder(["code"], "moe", beside=tmp_path) == f"{tmp_path}/code-2/"


def test_a_folder_is_suggested_beside_the_one_composed_last(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "models" / "moe").mkdir(parents=True)
    assert beside_latest(filled.compositions()) is None
    composed(filled, Path("../models/moe"), "math", "code")
    assert beside_latest(filled.compositions()) == tmp_path / "models"
    composed(filled, tmp_path / "deleted", "math", "law")
    assert beside_latest(filled.compositions()) == tmp_path / "models"
    (tmp_path / "work" / "here").mkdir()
    composed(filled, tmp_path / "work" / "here", "code", "law")
    assert beside_latest(filled.compositions()) is None


def test_a_typed_folder_is_in_the_command_and_nobody_learns_whether_it_is_there(
    filled: Registry, tmp_path: Path
) -> None:
    with served(filled) as pages:
        there = pages.read("compose", e=["math", "code"], out=str(tmp_path)).text
        absent = pages.read("compose", e=["math", "code"], out=str(tmp_path) + "/no").text
        assert f"--out {tmp_path}" in there
        assert there == absent.replace(f"{tmp_path}/no", str(tmp_path))
        assert str(Path.cwd()) not in pages.read("compose").text  # which only the browser with the secret is told


@pytest.mark.check
def test_what_was_made_before_is_opened_first(filled: Registry, tmp_path: Path) -> None:
    done = filled.compose(["math", "code"], tmp_path / "moe")
    opening = f'<a class="button primary" href="/compositions/{done.digest}">Open it</a>'
    with served(filled, may_write=True) as pages:
        made = pages.ask("/compose?e=math&e=code&out=a", headers=pages.cookie).text
        assert made.index(opening) < made.index('<button type="submit">Compose again into a</button>')
        assert 'class="primary">Compose' not in made
        new = pages.ask("/compose?e=math&e=law&out=a", headers=pages.cookie).text
        assert '<button type="submit" class="primary">Compose into a</button>' in new
        assert "Open it" not in new
        read_only = pages.ask("/compose?e=math&e=code").text
        assert opening in read_only
        assert "Compose again" not in read_only


def test_what_the_default_router_adds_is_said(filled: Registry) -> None:
    added = "of the parameters are added for context routing"
    with served(filled) as pages:
        text = pages.read("compose", e=["math", "code"]).text
        assert added in text
        assert "so far, and to bring the shared head" in text
        shared = pages.read("compose", e=["math", "code"], vocabulary="shared").text
        assert added in shared
        assert "so far, and to bring the shared head" not in shared
        assert added not in pages.read("compose", e=["math", "code"], router="ridge").text


@pytest.mark.check
def test_two_versions_of_one_expert_are_refused_with_a_choice(twice: Registry) -> None:
    assert twice.resolve("math").ref == "math@2"
    with served(twice, may_write=True) as pages:
        query: dict[str, Any] = {"e": ["code@1", "math@1", "math@2", "law@1"]}
        page = pages.read("compose", **query)
        assert "math is named more than once: a composition holds one version of an expert" in page.text
        assert "Keep math@1, drop math@2" in page.text
        assert "Keep math@2, drop math@1" in page.text
        assert "Go on without math@" not in page.text  # which would be the same
        assert len(set(offered(pages, **query))) == len(offered(pages, **query))
        assert "Keep math@2 once" in pages.read("compose", e=["math", "math@2", "code"]).text
        assert "e=code%401&e=math%401&e=law%401" in offered(pages, **query)[0].replace("@", "%40")
        refused = pages.send("/jobs", **query)
        assert refused.status == 400
        assert "math is named more than once" in refused.text
        for address in offered(pages, **query)[:2]:
            assert "--experts code@1,law@1,math@" in Page(pages.ask(address).text).text


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    ("query", "label"),
    [
        ({"e": ["math", "mth"]}, "Go on without it"),
        ({"e": ["math", "code"], "top_k": "9"}, "Put “Experts per token” back"),
        ({"e": ["math", "code"], "router": "ridge", "lam": "nan"}, "Put “Ridge strength” back"),
        ({"e": ["base", "law"]}, "Go on without base"),
        ({"e": ["math", "code"], "to": "<b>"}, "Make a mixture"),
        ({"e": ["math", "code"], "refine": "1"}, "Use the ridge router"),
    ],
    ids=str,
)
def test_a_choice_without_a_plan_has_changes_with_one(filled: Registry, query: dict[str, Any], label: str) -> None:
    with served(filled) as pages:
        assert label in pages.read("compose", **query).text
        found = offered(pages, **query)
        assert 1 <= len(found) <= 3
        for address in found:
            assert "reg compose --experts" in Page(pages.ask(address).text).text, address


def test_who_is_unknown_is_only_left_out(filled: Registry) -> None:
    with served(filled) as pages:
        for query, rest in (
            ({"e": ["math", "nope@1", "code"]}, "/compose?e=math&e=code"),
            ({"e": ["math", "nope@1"], "to": "dense", "trunk": "base"}, "/compose?e=math&to=dense&trunk=base"),
            ({"e": "nope@1"}, "/compose"),
        ):
            assert offered(pages, **query) == [rest]
            assert "Go on without it" in pages.read("compose", **query).text


@pytest.mark.check
def test_what_routes_badly_has_changes_with_which_it_routes_better(filled: Registry) -> None:
    found = filled.preview(["math", "code", "law"], Recipe(router="ridge"))
    better = filled.preview(["math", "code", "law"], Recipe())
    assert found.indistinct
    assert better.accuracy > found.accuracy
    with served(filled) as pages:
        page = pages.read("compose", "preview", e=["math", "law", "code"], router="ridge")
        assert f"Use the context router {100 * better.accuracy:.1f} %" in page.text
        assert "What would mend it" not in pages.read("compose", "preview", e=["math", "law", "code"]).text


def test_what_takes_long_to_predict_is_not_predicted_again(filled: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.ui.composer.remedies.SECONDS", -1.0)
    with served(filled) as pages:
        assert (
            "What would mend it" not in pages.read("compose", "preview", e=["math", "law", "code"], router="ridge").text
        )


def test_a_soups_experts_are_shown_without_tokens(tmp_path: Path) -> None:
    with Registry(tmp_path / "home") as registry:
        add = registry.catalog.add_version
        add(new("mix-1", "1", content=OF_ALL | {"soup": {"soup": "a" * 64, "number": 1}}))
        add(new("found-1", "2", content=OF_ALL | {"simoe": {"delta": "d" * 64, "number": 1}}))
        add(new("code", "3", content=OF_ALL))
        with served(registry) as pages:
            text = pages.read("compose").text
    assert "code@1 100 tokens" in text
    assert "mix-1@1 of a soup" in text
    assert "found-1@1 of a SIMoE" in text
