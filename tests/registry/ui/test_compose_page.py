"""Proves: the Compose page plans what its command makes, says why there is no plan, and predicts the routing.

It suggests a folder and offers changes that mend. Its fields are options of the command, and a recipe is read back.
"""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cli.main import main
from registry import ExpertTraining, Recipe, Registry
from registry.composition.option import OptionKind
from registry.composition.recipe.fields import FIELDS
from registry.io.display import size
from registry.methods.moe.preview import OVERLAP_OF_TOKEN_COUNTS
from registry.registration.expert_overlap import OVERLAP_OF_ACTIVATIONS
from registry.ui.composer.choices import BASICS, CHOICES, GROUPS, OPTIONS, Choices, select_values
from registry.ui.composer.composing import beside_latest, suggested_folder
from registry.ui.describing import sentences
from registry.ui.site import url
from tests.conftest import Zoo
from tests.pages import Page, Pages, served
from tests.registry.ui.examples import commands, composed, recorded, shown, values

RECIPES: list[dict[str, Any]] = [
    {},
    {"trunk": "mean", "router": "ridge", "top_k": "1", "normalize": "1"},
    {"trunk": "ties", "router": "ridge", "lam": "0.5", "temperature": "0.1", "dtype": "bfloat16"},
    {"router": "random", "balance": "tokens", "base": "base@1", "trunk": "dare"},
    {"router": "ridge", "refine": "1"},
    {"vocabulary": "shared"},
    {"router": "domain-embedding", "lam": "1"},
    {"router": "context", "context_window": "16"},
    {"trunk": "ties", "combine": "sum", "gating": "softmax-topk", "router": "ridge", "remote_code": "1"},
    {"combine": "sum", "gating": "softmax-topk"},  # neither has a part in it
    {"router": "random", "lam": "1"},  # lam has no part in it
    {"to": "dense", "trunk": "mean", "router": "random", "top_k": "7"},  # fields without a part in it
    {"to": "ensemble", "routing": "perplexity", "temperature": "2", "lam": "x"},
    {"to": "ensemble", "routing": "task-vector", "trunk": "ties", "combine": "sum"},
]


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize("fields", RECIPES, ids=str)
def test_the_command_makes_what_the_composer_shows(filled: Registry, pages: Pages, fields: dict[str, Any]) -> None:
    page = pages.read("compose", e=["math@1", "code"], **fields)
    plan = filled.plan(["math", "code"], Choices.of_query(fields).recipe(), base=fields.get("base"))
    assert plan.digest[:12] in page.text
    titles = [value or "" for _, name, value in page.attributes if name == "title"]
    counts = (f"{plan.parameters:,}", f"{plan.active_parameters:,}", f"{plan.nbytes:,} bytes")
    for figure in (*counts, f"{plan.peak_bytes:,} bytes"):
        assert any(title.startswith(figure) for title in titles)
    assert "; ".join(sentences(plan.document)) in page.text  # a router may bring its own number of experts per token
    assert f"Written for transformers as a model of type {plan.model_type}" in page.text
    assert f"To run the model takes at least its {size(plan.nbytes)}" in page.text  # memory to compose may be less
    words = commands(page)[0].split()
    assert words[:2] == ["reg", "compose"]
    done = CliRunner().invoke(main, ["--home", str(filled.home.path), *words[1:], "--plan", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["digest"] == plan.digest


@pytest.mark.check
def test_the_composer_tells_why_there_is_no_plan(filled: Registry, pages: Pages) -> None:
    assert "Tick experts" in pages.read("compose").text
    for query, why in (
        ({"e": "mth"}, "did you mean"),
        ({"e": ["base", "law"]}, "base@1 is a base model, which has no token counts"),
        ({"e": ["math", "math@1"]}, "named more than once"),
        ({"e": "math", "top_k": "9"}, "top-k is 9"),
        ({"e": "math", "top_k": "٣"}, "is not a whole number"),
        ({"e": "math", "router": "ridge", "lam": "nan"}, "is not a finite number"),
        ({"e": ["math", "code"], "refine": "1"}, "made from counts of tokens"),
        ({"e": "math", "to": "<b>"}, "is not one of"),
        ({"e": "math", "trunk": "<b>"}, "<b>"),
        ({"e": "math", "to": "dense", "trunk": "base"}, "is the base model itself"),
        ({"e": "<script>"}, "<script>"),
    ):
        assert why in pages.read("compose", **query).text, query
    part = pages.ask("/compose?e=math&e=code&part=result").text
    assert "<form" not in part
    assert "reg compose --experts code@1,math@1" in part
    assert "of the parameters</strong> are added for context routing" in part
    assert _offered(pages, e="math", q="cod") == ["math@1", "code@1"]  # who is ticked stays


def _offered(pages: Pages, **query: Any) -> list[str]:
    return values(Page(pages.ask(url("compose", part="experts", **query)).text))


def test_the_form_says_in_plain_words_what_its_fields_do(pages: Pages) -> None:
    text = pages.ask("/compose").text
    assert all(set(OPTIONS[one.name]) == set(one.choices) for one in CHOICES if one.name in OPTIONS)
    assert ">anchored: routers trained with the experts</option>" in text
    stays = f"{FIELDS['density'].default:.0%}".replace("%", "\u00a0%")
    assert f">ties: base model, plus the largest {stays} of changes of each tensor" in text
    assert "combines the experts’ weights outside the MLPs" in Page(text).text
    assert 'placeholder="by default"' in text
    assert len({one.note for one in CHOICES}) == len(CHOICES)
    assert "<details data-group open>" not in text  # a group is folded until one of its fields is changed
    assert pages.ask("/compose?router=ridge&lam=0.1").text.count("<details data-group open>") == 1


@pytest.mark.check
def test_the_composer_offers_the_base_model_where_it_can_be_an_expert(filled: Registry, pages: Pages, zoo: Zoo) -> None:
    assert "base@1" not in _offered(pages)
    assert "base@1" not in _offered(pages, router="ridge")
    assert "base@1" not in _offered(pages, router="anchored", to="dense")
    assert "base@1" in _offered(pages, router="anchored")
    assert "base@1" in _offered(pages, to="ensemble")
    assert "base@1" in _offered(pages, router="random", trunk="mean")
    assert _offered(pages, e="base", q="nobody") == ["base@1"]  # what is ticked can be unticked
    settings = ExpertTraining(tokens=64, batch_size=2, seq_len=32, coordinate=True, device="cpu")
    filled.train_expert("beside", "base", [zoo.train["code"]], settings)
    plan = filled.plan(["base", "beside"], Recipe(trunk="base", router="anchored"))
    page = pages.read("compose", e=["base", "beside"], router="anchored", trunk="base").text
    assert plan.digest[:12] in page
    digest = recorded(filled, plan, "moe")
    again = next(link for link in pages.read("compositions", digest).links if link.startswith("/compose?"))
    assert digest[:12] in Page(pages.ask(again).text).text  # with the public expert


@pytest.mark.check
def test_the_preview_is_what_the_registry_predicts(filled: Registry, pages: Pages) -> None:
    experts = ["math", "code", "law"]
    found = filled.preview(experts, Recipe(router="ridge"))
    text = pages.read("compose", "preview", e=experts, router="ridge").text
    shares = [f"{100 * share:.1f} %" for share in (found.accuracy, *(member.accuracy for member in found.members))]
    for said in (*shares, found.means, f"Overlap of activations {OVERLAP_OF_ACTIVATIONS}"):
        assert said in text
    assert text.count("It says where tokens go, not how good the model is") == 1
    found = filled.preview(experts)
    text = pages.read("compose", "preview", e=experts).text
    told = [f"{100 * found.accuracy:.1f} %", "Accuracy by tokens read", found.notes[0], found.means]
    for said in (*told, f"Overlap of token counts {OVERLAP_OF_TOKEN_COUNTS}"):
        assert said in text
    assert "Weight in the solve" not in text
    assert "no router" in pages.read("compose", "preview", e=["math", "law"], to="dense", status=400).text


def mending(pages: Pages, **query: Any) -> list[str]:
    """Return the addresses of the changes that mend a choice, in their order."""
    text = pages.ask(url("compose", **query)).text
    return [part.partition('"')[0].replace("&amp;", "&") for part in text.split('<a class="button" href="')[1:]
            if " data-apply" in part.partition(">")[0]]  # fmt: skip


def test_a_folder_is_suggested_that_is_free_and_named_after_members(work: Path) -> None:
    assert suggested_folder(["code", "math"], "moe") == "code-math/"
    assert suggested_folder(["code", "math"], "dense") == "code-math-dense/"
    assert suggested_folder(list("abcdefg"), "moe") == "a-b-c-d-and-3/"
    assert suggested_folder(["x" * 100, "y"], "moe") == "x" * 100 + "-and-1/"
    assert suggested_folder(["code"], "moe", ["code/", str(work / "code-2")]) == "code-3/"
    (work / "code").write_text("")
    assert suggested_folder(["code"], "moe") == "code-2/"
    assert suggested_folder(["code"], "moe", beside=work) == f"{work}/code-2/"
    (work / "code-2").symlink_to("nowhere")
    assert suggested_folder(["code"], "moe") == "code-3/"


def test_a_folder_is_suggested_beside_the_one_composed_last(filled: Registry, tmp_path: Path, work: Path) -> None:
    (tmp_path / "models" / "moe").mkdir(parents=True)
    (work / "here").mkdir()
    assert beside_latest(filled.compositions()) is None
    for folder, experts, beside in (
        (Path("../models/moe"), ("math", "code"), tmp_path / "models"),
        (tmp_path / "deleted", ("math", "law"), tmp_path / "models"),
        (work / "here", ("code", "law"), None),
    ):
        composed(filled, folder, *experts)
        assert beside_latest(filled.compositions()) == beside


def test_nobody_learns_whether_a_typed_folder_is_there(writable: Pages, work: Path) -> None:
    there = writable.read("compose", e=["math", "code"], out=str(work)).text
    absent = writable.read("compose", e=["math", "code"], out=f"{work}/no").text
    assert f"--out {work}" in there
    assert there == absent.replace(f"{work}/no", str(work))
    own = shown(writable, "compose", e=["math", "code"], out="../moe").text
    assert f"a path is relative to {work} , where it was started." in own
    assert "Compose into ../moe" in own
    assert str(work) not in writable.read("compose").text  # which only the browser with the secret is told


@pytest.mark.check
def test_what_was_made_before_is_opened_first(writable: Pages, digest: str) -> None:
    opening = f'<a class="button primary" href="/compositions/{digest}">Open it</a>'
    made = writable.ask("/compose?e=math&e=code&out=a", headers=writable.cookie).text
    assert made.index(opening) < made.index('<button type="submit">Compose again into a</button>')
    assert 'class="primary">Compose' not in made
    unmade = writable.ask("/compose?e=math&e=law&out=a", headers=writable.cookie).text
    assert '<button type="submit" class="primary">Compose into a</button>' in unmade
    assert "Open it" not in unmade
    read_only = writable.ask("/compose?e=math&e=code").text
    assert opening in read_only
    assert "Compose again" not in read_only


@pytest.mark.check
def test_two_versions_of_one_expert_are_refused_with_a_choice(filled: Registry, writable: Pages, zoo: Zoo) -> None:
    filled.add_expert("math", zoo.experts["code"])
    query: dict[str, Any] = {"e": ["code@1", "math@1", "math@2", "law@1"]}
    page, changes = writable.read("compose", **query), mending(writable, **query)
    assert "math is named more than once: a composition holds one version of an expert" in page.text
    assert "Keep math@1, drop math@2" in page.text
    assert "Go on without math@" not in page.text  # which would be the same
    assert len(set(changes)) == len(changes)
    assert "Keep math@2 once" in writable.read("compose", e=["math", "math@2", "code"]).text
    for number, address in enumerate(changes[:2], start=1):
        assert f"--experts code@1,law@1,math@{number}" in Page(writable.ask(address).text).text
    refused = writable.send("/jobs", **query)
    assert refused.status == 400
    assert "math is named more than once" in refused.text


@pytest.mark.check
def test_a_choice_without_a_plan_has_changes_with_one(pages: Pages) -> None:
    choices: list[tuple[dict[str, Any], str]] = [
        ({"e": ["math", "code"], "top_k": "9"}, "Put “Experts per token” back"),
        ({"e": ["base", "law"]}, "Go on without base"),
        ({"e": ["math", "code"], "to": "<b>"}, "Make a sparse mixture"),
        ({"e": ["math", "code"], "refine": "1"}, "Use the ridge router"),
    ]
    for query, label in choices:
        assert label in pages.read("compose", **query).text
        found = mending(pages, **query)
        assert 1 <= len(found) <= 3
        for address in found:
            assert "reg compose --experts" in Page(pages.ask(address).text).text, address
    for query, rest in (
        ({"e": ["math", "nope@1", "code"]}, "/compose?e=math&e=code"),
        ({"e": ["math", "nope@1"], "to": "dense", "trunk": "base"}, "/compose?e=math&to=dense&trunk=base"),
        ({"e": "nope@1"}, "/compose"),
    ):
        assert mending(pages, **query) == [rest]  # who is unknown is only left out
        assert "Go on without it" in pages.read("compose", **query).text


@pytest.mark.check
def test_what_routes_badly_has_changes_that_mend_it(filled: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    experts = ["math", "code", "law"]
    found, better = filled.preview(experts, Recipe(router="ridge")), filled.preview(experts, Recipe())
    assert found.indistinct
    assert better.accuracy > found.accuracy
    with served(filled) as pages:
        page = pages.read("compose", "preview", e=experts, router="ridge")
        assert f"Use the context router {100 * better.accuracy:.1f} %" in page.text
        assert "What would mend it" not in pages.read("compose", "preview", e=experts).text
    monkeypatch.setattr("registry.ui.composer.remedies.SECONDS", -1.0)
    with served(filled) as pages:  # what takes long to predict is not predicted again
        assert "What would mend it" not in pages.read("compose", "preview", e=experts, router="ridge").text


def test_every_choice_of_the_form_is_an_option_of_compose_and_in_one_group() -> None:
    command = main.get_command(click.Context(main), "compose")
    assert command is not None
    options = {name: option for option in command.params for name in option.opts}
    for choice in CHOICES:
        option = options[choice.option]
        assert bool(getattr(option, "is_flag", False)) == (choice.kind is OptionKind.SWITCH)
        listed = getattr(option.type, "choices", ())
        assert tuple(one for one in select_values(choice) if one) == tuple(listed)
    shown = [*BASICS, *(one for fields in GROUPS.values() for one in fields)]
    assert sorted(one.name for one in shown) == sorted(one.name for one in CHOICES)
    assert tuple(OPTIONS["to"]) == CHOICES[0].choices


def test_the_choices_of_a_recipe_are_read_back_and_leave_defaults_out() -> None:
    names = ["a", "b", "c"]
    read: list[tuple[Any, dict[str, str] | None]] = [
        (Recipe(), {}),
        (Recipe(trunk="mean", router="ridge", lam=0.5), {"trunk": "mean", "router": "ridge", "lam": "0.5"}),
        (Recipe(to="ensemble"), {"to": "ensemble"}),
        (Recipe(to="ensemble", top_k=2), {"to": "ensemble", "top_k": "2"}),
        (Recipe(weights={"a": 2.0}), None),  # which the form does not have
        (Recipe(seed=3, router="random"), None),
    ]
    for recipe, query in read:
        document = {"recipe": recipe.document(names), "members": [{"name": name} for name in names]}
        choices = Choices.of_document(document)
        assert (None if choices is None else choices.query) == query
        if choices is not None:
            made: Any = choices.recipe()
            assert made.document(names) == document["recipe"]
