"""Proves: every page answers for every kind of composition and version, and for names of 100 characters."""

import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from registry import EnsembleRecipe, HeteroRecipe, MixtureTraining, Recipe, Registry, SimoeRecipe, SimoeTraining
from registry.composition.compose import used_versions
from registry.ui.describing import MADE, difference, kind, sentences, stated
from store.catalog import CompositionRecord
from tests.conftest import Zoo
from tests.pages import Pages, served
from tests.registry.ui.examples import composed, evaluation
from tests.store.test_catalog import new

LONG = "an-expert-with-a-long-name-" * 3 + "and-a-number-of-999"
HOSTS = ("mixtral", "qwen2_moe", "qwen3_moe", "flex_olmo", "granitemoe", "granitemoe_swa", "cohere2_moe", "mellum")

RECIPES: list[Any] = [
    Recipe(),
    Recipe(vocabulary="shared", top_k=2, context_window=0),
    Recipe(router="ridge", lam="auto", balance="tokens"),
    Recipe(router="ridge", refine=1),
    Recipe(router="ridge", refine_mlp=True),
    Recipe(refine_trunk=True),
    Recipe(router="ridge", token_weight="advantage"),
    Recipe(router="domain-embedding", normalize=True),
    Recipe(router="random", trunk="mean", gating="softmax-topk", dtype="bfloat16", host="remote-code"),
    Recipe(trunk="ties", combine="sum", weights={"math": 2.0}),
    Recipe(trunk="dare"),
    Recipe(host="remote-code"),
    Recipe(to="dense", trunk="mean"),
    Recipe(to="dense", trunk="regmean"),
    Recipe(to="dense", trunk="task-arithmetic", coefficients={"code": 0.5, "math": 0.25}),
    EnsembleRecipe(),
    EnsembleRecipe(routing="perplexity", temperature=2.0, top_k=1),
    EnsembleRecipe(routing="prompt-perplexity", routing_tokens=8),
    EnsembleRecipe(routing="task-vector", routing_tokens=8, trunk="ties", combine="sum"),
    EnsembleRecipe(routing="task-vector"),
    EnsembleRecipe(trunk="regmean"),
    EnsembleRecipe(mixing="logits", trunk="mean"),
]
PARTS = 4
"""Into which recipes and hosts are parted: their pages, reports and comparisons are many."""


def evaluated(folder: str) -> dict[str, Any]:
    """Return what an evaluation found, with all that a report reads."""
    found = evaluation()
    shares = {"code": {"code": [0.75], "math": [0.25]}, "math": {"code": [0.5], "math": [0.5]}}
    sizes = {"tokens": {"code": 1234, "math": 1234}, "parameters": 1000, "active_parameters": 500}
    of_all = {"accuracy": {"code": [0.75], "math": [0.5]}, "load": {"code": [0.6], "math": [0.4]}} | sizes
    figures = found["figures"] | of_all | {"name": folder, "routing": shares, "weights": shares}
    oracle = found["oracle"] | of_all | {"name": f"{folder} oracle", "perplexity": figures["perplexity"]}
    return found | {"figures": figures, "oracle": oracle | {"overall_accuracy": {}, "overall_load": {}}}


def landmarks(text: str) -> list[str]:
    """Return the names of a page's sections and regions."""
    headings = {
        own: re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", said)).strip()
        for own, said in re.findall(r'<h2 id="([^"]*)">(.*?)</h2>', text, re.DOTALL)
    }
    named = re.findall(r'<section[^>]* aria-labelledby="([^"]*)"', text)
    labels = re.findall(r'(?:<section| role="region")[^>]* aria-label="([^"]*)"', text)
    return [*(headings[own] for own in named), *labels]


def answer(pages: Pages, registry: Registry, report: bool = True) -> None:
    """Open every page of a registry: each is well formed, answers 200 and gives its sections names of their own."""
    pages.read()
    pages.read(all=1)
    pages.read("compositions")
    pages.read("log")
    for version in registry.versions(everything=True):
        pages.read("versions", version.ref)
        pages.read("versions", version.ref, "comparison")
        pages.read("compositions", of=version.ref)
    everything = registry.compositions()
    for at in range(0, len(everything), 3):
        pages.read("compositions", "compare", c=[one.digest for one in (everything[0], *everything[at : at + 3])])
    for record in everything:
        page = pages.read("compositions", record.digest)
        for link in page.links:
            if link.startswith("/compose?"):
                assert pages.ask(link).status == 200, link
        if report:
            answered = pages.ask(f"/compositions/{record.digest}/report")
            assert answered.status == 200, answered.text
            pages.asked.append(f"/compositions/{record.digest}/report")
    for path in pages.asked:
        names = landmarks(pages.ask(path).text)
        assert len(set(names)) == len(names), (path, names)


def recorded(registry: Registry, plan: Any, folder: str, **changes: Any) -> str:
    """Record the composition of a plan, with changes of its document, and return its digest."""
    document = plan.document | changes
    digest = sha256(repr(document).encode()).hexdigest() if changes else plan.digest
    registry.catalog.record_composition(digest, document, used_versions(plan), folder)
    return str(digest)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_method_has_its_pages(filled: Registry, part: int) -> None:
    pytest.importorskip("vl_convert")
    for number, recipe in enumerate(RECIPES[part::PARTS]):
        plan = filled.plan(["math", "code"], recipe)
        digest = recorded(filled, plan, f"out-{number}")
        if number % 2:
            filled.catalog.record_evaluation(digest, "1" * 64, evaluated(f"out-{number}"))
            filled.catalog.record_evaluation(digest, "2" * 64, evaluated(f"out-{number}"))
    with served(filled) as pages:
        answer(pages, filled)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_host_and_origin_has_its_page(filled: Registry, zoo: Zoo, tmp_path: Path, part: int) -> None:
    plan = filled.plan(["math", "code", "law"])
    for host in HOSTS[part::PARTS]:
        recorded(filled, plan, f"on-{host}", host=host)
    filled.compose([], tmp_path / "copies", from_base=3)
    settings = MixtureTraining("all", tokens=128, batch_size=2, seq_len=32, lr=0.01, device="cpu")
    trained = filled.train(tmp_path / "copies", tmp_path / "trained", [str(zoo.train["code"])], settings)
    filled.add_expert("math", zoo.experts["law"], allow_unrelated=True)
    filled.alias("math", "stable")
    composed(filled, tmp_path / "replaced", "math", "code", "law")
    for name, purge in (("german", False), ("law", True)):
        filled.opt_out(name, purge=purge)
    with served(filled) as pages:
        answer(pages, filled, report=False)
        page = pages.read("compositions", trained.digest).text
        assert "trained further" in page
        assert "Trained from copies" in page
        assert "3 copies on base@1" in page
        home = pages.read().text
        assert "1 opted-out version not purged, still stored: german@1" in home
        assert "reg opt-out german@1 --purge" in home
        assert "the log is intact" in home
        assert "math@2" in home
        assert "also math@1" in home


@pytest.mark.check
def test_members_of_several_architectures_have_their_pages(filled: Registry) -> None:
    plan = filled.plan(["math", "code"], HeteroRecipe(routing_tokens=4))
    digest = recorded(filled, plan, "hetero")
    with served(filled) as pages:
        answer(pages, filled, report=False)
        assert "2 experts of several architectures" in pages.read("compositions", digest).text


@pytest.mark.check
def test_experts_of_a_simoe_have_their_pages(zoo: Zoo, tmp_path: Path) -> None:
    settings = SimoeTraining(
        experts=2, prompt_tokens=8, tokens=4 * 2 * 32, batch_size=2, seq_len=32, lr=3e-3, device="cpu", dtype="float32"
    )
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", zoo.base)
        registry.train_simoe("mix", "base", [zoo.train["code"], zoo.train["math"]], settings)
        recorded(registry, registry.plan(["mix-1", "mix-2"], SimoeRecipe()), "simoe")
        with served(registry) as pages:
            answer(pages, registry)


@pytest.mark.check
def test_names_of_100_characters_have_their_pages(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    assert len(LONG) == 100
    filled.add_expert(LONG, zoo.experts["law"], allow_unrelated=True, tags={"t" * 90: "v" * 200})
    digest = composed(filled, tmp_path / ("f" * 200), LONG, "code")
    with served(filled) as pages:
        answer(pages, filled)
        assert "f" * 200 in pages.read("compositions", digest).text


def test_a_registry_of_rows_alone_has_its_pages(tmp_path: Path) -> None:
    """Versions without content, statistics or arrays, as tests of the catalog make them."""
    with Registry(tmp_path / "home") as registry:
        registry.catalog.add_version(new("a", "1", arrays="", content=None, statistics=()))
        with served(registry) as pages:
            assert pages.read("versions", "a@1").text.startswith("a@1")
            pages.read()


def record_of(recipe: Any, names: tuple[str, ...], folder: str, **document: Any) -> CompositionRecord:
    """Return the record of a composition that was never made."""
    members = [{"name": name} for name in names]
    document = {"recipe": recipe.document(names), "members": members, "host": "mixtral"} | document
    return CompositionRecord(folder * 8, document, "2026-01-01", tuple(f"{name}@1" for name in names), (folder,))


def test_differences_are_said_in_words() -> None:
    plain = record_of(Recipe(), ("code", "math"), "plain")
    cases: list[tuple[CompositionRecord, list[str] | None]] = [
        (
            record_of(Recipe(router="ridge"), ("code", "math"), "a"),
            ["router ridge", "2 experts per token instead of 1"],
        ),
        (record_of(Recipe(trunk="mean"), ("code", "math"), "b"), ["trunk mean"]),
        (record_of(Recipe(top_k=2), ("code", "math"), "c"), ["top k 2"]),
        (record_of(Recipe(), ("code", "law", "math"), "d"), ["with law@1 added"]),
        (record_of(Recipe(), ("code",), "e"), ["without math@1"]),
        (
            replace(record_of(Recipe(), ("code", "math"), "f"), members=("code@2", "math@1")),
            ["code@2 in place of code@1"],
        ),
        (record_of(EnsembleRecipe(), ("code", "math"), "g"), ["an ensemble"]),
        (record_of(Recipe(weights={"math": 2.0}), ("code", "math"), "h"), ["weights code 1, math 2"]),
        (record_of(Recipe(), ("law", "german"), "i"), None),
        (record_of(Recipe(), ("code", "math"), "j", parent=plain.digest, training={}), ["trained further"]),
    ]
    for record, words in cases:
        found = difference(record, [plain])
        assert (None if found is None else list(found.words)) == words, record.folders
        assert found is None or found.title == "plain"
    ridge = record_of(Recipe(router="ridge"), ("code", "math"), "ridge")
    nearest = difference(record_of(Recipe(router="ridge", lam=1.0), ("code", "math"), "k"), [plain, ridge])
    assert nearest is not None
    assert (nearest.title, list(nearest.words)) == ("ridge", ["lam 1"])


@pytest.mark.parametrize("recipe", RECIPES, ids=range(len(RECIPES)))
def test_every_recipe_has_words(recipe: Any) -> None:
    names = ["code", "math"]
    document = {"recipe": recipe.document(names), "members": [{"name": name} for name in names]}
    assert sentences(document)[0].startswith(("A sparse mixture of 2 experts", "One dense model", "An ensemble of 2"))
    assert kind(document)
    assert stated(document)["to"] in MADE
