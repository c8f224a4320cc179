"""Proves: the Compose page plans what its command makes, says why there is no plan, and predicts the routing."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.main import main
from registry import ExpertTraining, Recipe, Registry
from registry.composition.compose import used_versions
from registry.composition.recipe.recipe_fields import FIELDS
from registry.ui.composer.choices import Choices
from registry.ui.describing import sentences
from registry.ui.site import url
from registry.ui.wording import size
from tests.conftest import Zoo
from tests.pages import Page, Pages

RECIPES: list[dict[str, Any]] = [
    {},
    {"trunk": "mean", "router": "ridge", "top_k": "1", "normalize": "1"},
    {"trunk": "ties", "router": "ridge", "lam": "auto", "temperature": "0.1", "dtype": "bfloat16"},
    {"router": "random", "balance": "tokens", "base": "base@1", "trunk": "dare"},
    {"router": "ridge", "refine": "1", "refine_mlp": "1"},
    {"refine_trunk": "1", "top_k": "1"},
    {"refine_mlp": "1", "vocabulary": "shared"},
    {"router": "domain-embedding", "lam": "1"},
    {"router": "context", "context_window": "16"},
    {"trunk": "ties", "combine": "sum", "gating": "softmax-topk", "router": "ridge", "remote_code": "1"},
    {"combine": "sum", "gating": "softmax-topk"},  # neither has a part in it
    {"router": "random", "lam": "1"},  # lam has no part in it
    {"remote_code": "1"},
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
    for figure in (
        f"{plan.parameters:,}",
        f"{plan.active_parameters:,}",
        f"{plan.nbytes:,} bytes",
        f"{plan.peak_bytes:,} bytes",
    ):
        assert any(
            value is not None and value.startswith(figure) for _, name, value in page.attributes if name == "title"
        )
    assert "; ".join(sentences(plan.document)) in page.text  # a router may bring its own number of experts per token
    assert f"Written for transformers as a model of type {plan.model_type}" in page.text
    assert f"To run the model takes at least its {size(plan.nbytes)}" in page.text  # memory to compose may be less
    command = next(value for _, name, value in page.attributes if name == "data-copy" and value)
    words = command.split()
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
        ({"e": "math", "router": "ridge", "lam": "nan"}, "is not a finite number or auto"),
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
    offered = Page(pages.ask("/compose?e=math&q=cod&part=experts").text)
    values = [value for tag, name, value in offered.attributes if (tag, name) == ("input", "value")]
    assert values == ["math@1", "code@1"]  # who is ticked stays


def test_the_trunks_that_drop_changes_say_how_many_stay(pages: Pages) -> None:
    stays = FIELDS["density"].default
    text = pages.read("compose").text.replace(" %", "%")
    assert f"ties: base model, plus the largest {stays:.0%} of changes of each tensor, where they agree in sign" in text
    assert f"dare: base model, plus a random {stays:.0%} of the changes" in text


@pytest.mark.check
def test_the_composer_offers_the_base_model_where_it_can_be_an_expert(filled: Registry, pages: Pages, zoo: Zoo) -> None:
    def offered(**query: Any) -> list[str]:
        page = Page(pages.ask(url("compose", part="experts", **query)).text)
        return [value for tag, name, value in page.attributes if (tag, name) == ("input", "value") and value]

    assert "base@1" not in offered()
    assert "base@1" not in offered(router="ridge")
    assert "base@1" not in offered(router="anchored", to="dense")
    assert "base@1" in offered(router="anchored")
    assert "base@1" in offered(to="ensemble")
    assert "base@1" in offered(router="random", trunk="mean")
    recipe = Recipe(router="random", trunk="mean")
    page = pages.read("compose", e=["base", "law"], router="random", trunk="mean").text
    assert filled.plan(["base", "law"], recipe).digest[:12] in page
    assert offered(e="base", q="nobody") == ["base@1"]  # what is ticked can be unticked
    settings = ExpertTraining(tokens=64, batch_size=2, seq_len=32, coordinate=True, device="cpu")
    for name in ("code", "math"):
        filled.train_expert(f"beside-{name}", "base", [zoo.train[name]], settings)
    experts = ["base", "beside-code", "beside-math"]
    page = pages.read("compose", e=experts, router="anchored", trunk="base").text
    plan = filled.plan(experts, Recipe(trunk="base", router="anchored"))
    assert plan.digest[:12] in page
    filled.catalog.record_composition(plan.digest, plan.document, used_versions(plan), "moe")
    again = next(link for link in pages.read("compositions", plan.digest).links if link.startswith("/compose?"))
    assert plan.digest[:12] in Page(pages.ask(again).text).text  # with the public expert


@pytest.mark.check
def test_the_preview_is_what_the_registry_predicts(filled: Registry, pages: Pages) -> None:
    found = filled.preview(["math", "code", "law"], Recipe(router="ridge"))
    page = pages.read("compose", "preview", e=["math", "law", "code"], router="ridge")
    for member in found.members:
        assert f"{100 * member.accuracy:.1f} %" in page.text
    assert f"{100 * found.accuracy:.1f} %" in page.text
    assert found.means in page.text
    assert page.text.count("It says where tokens go, not how good the model is") == 1
    assert "within 3 points of it" in found.means
    assert "no router" in pages.read("compose", "preview", e=["math", "law"], to="dense", status=400).text


@pytest.mark.check
def test_preview_of_context_routing_is_by_tokens_read(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    found = filled.preview(["math", "code", "law"])
    page = pages.read("compose", "preview", e=["math", "law", "code"])
    assert f"{100 * found.accuracy:.1f} %" in page.text
    assert "Accuracy by tokens read" in page.text
    assert "Weight in the solve" not in page.text
    assert found.notes[0] in page.text
    assert found.means in page.text
    assert "An estimate, not a bound" in found.means
    plan = filled.compose(["math", "code"], tmp_path / "moe")
    assert "context window" in pages.read("compositions", plan.digest).text
