"""Proves: every page answers for every kind of composition and version, and for names of 100 characters."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry import MixtureTraining, Recipe, Registry, SimoeTraining
from registry.composition.found import OUTPUTS
from registry.ui.describing import difference, kind, sentences, stated, title
from registry.ui.site import url
from store.catalog import CompositionRecord
from tests.conftest import Zoo
from tests.pages import Page, Pages, served
from tests.registry.ui.examples import composed, record, recorded
from tests.store.test_catalog import new

LONG = "an-expert-with-a-long-name-" * 3 + "and-a-number-of-999"
HOSTS = ("mixtral", "qwen2_moe", "qwen3_moe", "flex_olmo", "granitemoe", "granitemoe_swa", "cohere2_moe", "mellum")

RECIPES: list[Any] = [
    Recipe(),
    Recipe(router="ridge", lam=0.5, balance="tokens"),
    Recipe(router="random", trunk="mean", gating="softmax-topk", dtype="bfloat16", host="remote-code"),
    Recipe(trunk="ties", combine="sum", weights={"math": 2.0}),
    Recipe(to="dense", trunk="task-arithmetic", coefficients={"code": 0.5, "math": 0.25}),
    Recipe(to="ensemble"),
    Recipe(to="ensemble", routing="task-vector", routing_tokens=8, trunk="ties", combine="sum"),
    Recipe(to="hetero", routing_tokens=4),
    Recipe(vocabulary="shared", top_k=2, context_window=0),
    Recipe(router="ridge", refine=1),
    Recipe(router="domain-embedding", normalize=True),
    Recipe(trunk="dare"),
    Recipe(to="dense"),
    Recipe(to="ensemble", routing="perplexity", temperature=2.0, top_k=1),
    Recipe(to="ensemble", routing="prompt-perplexity", routing_tokens=8),
    Recipe(to="ensemble", mixing="logits", trunk="mean"),
]
FIRST = slice(0, 8), slice(8, None)
"""Recipes whose pages are looked at sooner, and the others: pages, reports and comparisons are many."""


def landmarks(text: str) -> list[str]:
    """Return the names of a page's sections and regions."""
    headings = {
        own: re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", said)).strip()
        for own, said in re.findall(r'<h2 id="([^"]*)"[^>]*>(.*?)</h2>', text, re.DOTALL)
    }
    named = re.findall(r'<section[^>]* aria-labelledby="([^"]*)"', text)
    labels = re.findall(r'(?:<section| role="region")[^>]* aria-label="([^"]*)"', text)
    return [*(headings[own] for own in named), *labels]


def answer(pages: Pages, registry: Registry, *, report: bool = True) -> None:
    """Open every page of a registry: each is well formed, answers 200 and gives its sections names of their own."""

    def look(path: str) -> Page:
        found = pages.ask(path)
        assert found.status == 200, (path, found.text)
        names = landmarks(found.text)
        assert len(set(names)) == len(names), (path, names)
        return Page(found.text)

    for path in ("/", "/?all=1", "/compositions", "/log"):
        look(path)
    for version in registry.versions(everything=True):
        for path in (url("versions", version.ref), url("versions", version.ref, "comparison")):
            look(path)
        look(url("compositions", of=version.ref))
    everything = registry.compositions()
    for at in range(0, len(everything), 3):
        look(url("compositions", "compare", c=[one.digest for one in (everything[0], *everything[at : at + 3])]))
    for made in everything:
        for link in look(url("compositions", made.digest)).links:
            if link.startswith("/compose?"):
                look(link)
        if report:
            look(url("compositions", made.digest, "report"))


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("part", FIRST, ids=str)
def test_every_method_has_its_pages(filled: Registry, pages: Pages, part: slice) -> None:
    pytest.importorskip("vl_convert")
    for number, recipe in enumerate(RECIPES[part]):
        digest = composed(filled, f"out-{number}", "math", "code", recipe=recipe)
        for asked in ("1", "2") if number % 2 else ():
            record(filled, digest, asked=asked)
    answer(pages, filled)


@pytest.mark.check
def test_every_host_and_origin_has_its_page(filled: Registry, pages: Pages, zoo: Zoo, tmp_path: Path) -> None:
    plan = filled.plan(["math", "code", "law"])
    for host in HOSTS:
        recorded(filled, plan, f"on-{host}", host=host)
    filled.compose([], tmp_path / "copies", from_base=3)
    settings = MixtureTraining("all", tokens=128, batch_size=2, seq_len=32, lr=0.01, device="cpu")
    trained = filled.train(tmp_path / "copies", tmp_path / "trained", [str(zoo.train["code"])], settings)
    filled.add_expert("math", zoo.experts["law"], allow_unrelated=True)
    filled.alias("math", "stable")
    composed(filled, tmp_path / "replaced", "math", "code", "law")
    assert len(LONG) == 100
    filled.add_expert(LONG, zoo.experts["law"], allow_unrelated=True, tags={"t" * 90: "v" * 200})
    long = composed(filled, tmp_path / ("f" * 200), LONG, "code")
    for name, purge in (("german", False), ("law", True)):
        filled.opt_out(name, purge=purge)
    answer(pages, filled, report=False)
    assert "f" * 200 in pages.read("compositions", long).text
    page = pages.read("compositions", trained.digest).text
    for said in ("trained further", "Trained from copies", "3 copies on base@1", "A sparse mixture of 3 copies of the"):
        assert said in page
    assert "3 copies on base@1" in pages.read("compositions").text
    home = pages.read().text
    assert "1 opted-out version not purged, still stored: german@1" in home
    assert "math@2" in home
    assert "also math@1" in home


@pytest.mark.check
def test_experts_of_a_simoe_have_their_pages(zoo: Zoo, tmp_path: Path) -> None:
    settings = SimoeTraining(
        experts=2, prompt_tokens=8, tokens=2 * 32, batch_size=2, seq_len=32, lr=3e-3, device="cpu", dtype="float32"
    )
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", zoo.base)
        registry.train_simoe("mix", "base", [zoo.train["code"], zoo.train["math"]], settings)
        composed(registry, "simoe", "mix-1", "mix-2", recipe=Recipe(to="simoe"))
        with served(registry) as pages:
            answer(pages, registry)


def test_a_registry_of_rows_alone_has_its_pages(tmp_path: Path) -> None:
    """Versions without content, statistics or arrays, as tests of the catalog make them."""
    with Registry(tmp_path / "home") as registry:
        registry.catalog.add_version(new("a", "1", arrays="", content=None, statistics=()))
        with served(registry) as pages:
            assert pages.read("versions", "a@1").text.startswith("a@1")
            pages.read()


def record_of(recipe: Any, folder: str, *names: str, **document: Any) -> CompositionRecord:
    """Return the record of a composition that was never made."""
    members = [{"name": name} for name in names]
    document = {"recipe": recipe.document(names), "members": members, "host": "mixtral"} | document
    return CompositionRecord(folder * 8, document, "2026-01-01", tuple(f"{name}@1" for name in names), (folder,))


def test_differences_are_said_in_words() -> None:
    pair = ("code", "math")
    plain, ridge = record_of(Recipe(), "plain", *pair), record_of(Recipe(router="ridge"), "ridge", *pair)
    cases: list[tuple[CompositionRecord, list[str] | None]] = [
        (ridge, ["router ridge", "2 experts per token instead of 1"]),
        (record_of(Recipe(trunk="mean"), "b", *pair), ["trunk mean"]),
        (record_of(Recipe(top_k=2), "c", *pair), ["top k 2"]),
        (record_of(Recipe(), "d", "code", "law", "math"), ["with law@1 added"]),
        (record_of(Recipe(), "e", "code"), ["without math@1"]),
        (replace(record_of(Recipe(), "f", *pair), members=("code@2", "math@1")), ["code@2 in place of code@1"]),
        (record_of(Recipe(to="ensemble"), "g", *pair), ["an ensemble"]),
        (record_of(Recipe(weights={"math": 2.0}), "h", *pair), ["weights code 1, math 2"]),
        (record_of(Recipe(), "i", "law", "german"), None),
        (record_of(Recipe(), "j", *pair, parent=plain.digest, training={}), ["trained further"]),
    ]
    for one, words in cases:
        found = difference(one, [plain])
        assert (None if found is None else list(found.words)) == words, one.folders
        assert found is None or title(found.other) == "plain"
    nearest = difference(record_of(Recipe(router="ridge", lam=1.0), "k", *pair), [plain, ridge])
    assert nearest is not None
    assert (title(nearest.other), list(nearest.words)) == ("ridge", ["lam 1"])


def test_every_recipe_has_words() -> None:
    names = ["code", "math"]
    kinds = ("A sparse mixture of 2 experts", "One dense model", "An ensemble of 2", "2 experts of several")
    for recipe in RECIPES:
        document = {"recipe": recipe.document(names), "members": [{"name": name} for name in names]}
        assert sentences(document)[0].startswith(kinds)
        assert kind(document)
        assert stated(document)["to"] in OUTPUTS
