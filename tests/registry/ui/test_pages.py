"""Proves: every page shows what the registry holds, in pages; names and tags inject nothing; nothing is written."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.main import main
from registry import ExpertTraining, Recipe, Registry
from registry.composition.compose import used_versions
from registry.ui.choices import Choices
from registry.ui.site import Site, url
from tests.conftest import Zoo, files_of
from tests.pages import Page, Pages, served
from tests.store.test_catalog import new

HOSTILE = (
    "<script>window.hacked=1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "' onfocus='window.hacked=1' autofocus='",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:window.hacked=1",
    "\u202e\x00\x1b[31m&lt;b&gt;",
)
"""Texts that somebody may write into a tag, an alias or a label."""

FIGURES = {
    "perplexity": {"code": 5.0, "math": 6.0},
    "score": {"code": 91.25, "math": 88.0},
    "average": 89.625,
    "overall_accuracy": {"code": 0.75},
    "overall_load": {"code": 0.6, "math": 0.4},
    "load": {"code": [0.5, 0.7], "math": [0.5, 0.3]},
}


def evaluation(label: str = "test.jsonl") -> dict[str, Any]:
    """Return what an evaluation found."""
    return {
        "data": {name: {"digest": "0" * 64, "label": label, "tokens": 1234} for name in ("code", "math")},
        "experts": {},
        "settings": {"windows": 4, "seq_len": 32, "batch_size": 4, "device": None, "dtype": "float32"},
        "figures": FIGURES,
        "oracle": {"score": {"code": 95.5, "math": 90.0}, "average": 92.75},
    }


def composed(registry: Registry, folder: Path, *experts: str) -> str:
    """Record a composition without writing it, and return its digest."""
    plan = registry.plan(experts)
    registry.catalog.record_composition(plan.digest, plan.document, used_versions(plan), str(folder))
    return plan.digest


@pytest.fixture
def pages(filled: Registry) -> Iterator[Pages]:
    with served(filled) as found:
        yield found


@pytest.fixture
def many(tmp_path: Path) -> Iterator[Pages]:
    """A registry of 120 versions, which are rows alone, of 12 experts."""
    with Registry(tmp_path / "home") as registry:
        for number in range(120):
            tags = {"third": "yes"} if number % 3 == 0 else {"number": str(number)}
            registry.catalog.add_version(
                new(f"expert-{number % 12:02}", str(number // 12), arrays="", tags=tags, parameters=number)
            )
        with served(registry) as found:
            yield found


def test_an_empty_registry_says_what_to_do(tmp_path: Path) -> None:
    with Registry(tmp_path / "home") as registry, served(registry, ("reg", "--home", "a b")) as pages:
        assert "reg --home 'a b' add-expert NAME CKPT" in pages.read().text
        assert "Nothing was composed yet" in pages.read("compositions").text
        assert "No expert is registered yet" in pages.read("compose").text
        assert "Nothing happened yet" in pages.read("log").text


def test_the_first_page_lists_searches_and_narrows(filled: Registry, pages: Pages) -> None:
    catalog = filled.catalog
    catalog.set_tags(filled.resolve("law"), {"team": "Courts", "language": "en"})
    catalog.set_alias(filled.resolve("code"), "stable")
    filled.opt_out("german")

    def refs(**query: Any) -> list[str]:
        links = pages.read(**query).links
        return list(dict.fromkeys(link.removeprefix("/versions/") for link in links if "/versions/" in link))

    assert refs() == ["base@1", "biomed@1", "code@1", "law@1", "math@1"]
    assert refs(all=1) == ["base@1", "biomed@1", "code@1", "german@1", "law@1", "math@1"]
    assert refs(kind="base") == ["base@1"]
    assert refs(tag="team=Courts") == refs(q="courts") == refs(q="TEAM=cour") == refs(q="la en") == ["law@1"]
    assert refs(q="stab") == refs(q="code@stable") == refs(q="code@1") == ["code@1"]
    assert refs(q=filled.resolve("math").digest[:9]) == ["math@1"]
    assert refs(q="math code") == refs(q="%") == refs(q="_") == refs(tag="team=x") == []
    assert refs(tag=["team=Courts", "language=en"], q="law", kind="expert") == ["law@1"]
    assert refs(kind="nonsense", page="-1", tag="no-equals") == refs()
    assert url(tag=["team=Courts"]) in pages.read().links  # a tag can be chosen,
    assert url() in pages.read(tag="team=Courts").links  # and dropped


def test_following_next_shows_everything_once(many: Pages) -> None:
    page, found = many.read(), list[str]()
    while True:
        found += dict.fromkeys(link for link in page.links if link.startswith("/versions/"))
        following = [link for link, rel in _links(page) if rel == "next"]
        if not following:
            break
        page = Page(many.ask(following[0]).text)
    assert len(found) == len(set(found)) == 120
    assert "101–120 of 120 versions Previous" not in page.text
    assert "Page 3 of 3" in page.text
    assert "Page 3 of 3" in many.read(page=99).text
    assert "Page 1 of 1" not in many.read(tag="third=yes").text
    assert "40 versions" in many.read(tag="third=yes").text


def _links(page: Page) -> list[tuple[str, str | None]]:
    rels = [value for tag, name, value in page.attributes if (tag, name) == ("a", "rel")]
    hrefs = [
        page.attributes[at + 1][2]
        for at, (tag, name, _) in enumerate(page.attributes)
        if (tag, name) == ("a", "rel") and page.attributes[at + 1][1] == "href"
    ]
    return [(href or "", rel) for href, rel in zip(hrefs, rels, strict=True)]


def test_a_version_shows_what_it_is_and_was_used_for(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    page = pages.read("versions", "math@1")
    version = filled.resolve("math")
    for text in (version.digest, "mlp input", "512", "math.train.jsonl", "active", "add-expert", "family llama"):
        assert text in page.text, text
    assert f"/compositions/{digest}" in page.links
    assert "/compose?e=math@1" in page.links or "/compose?e=math%401" in page.links
    assert pages.ask("/versions/math").headers["location"] == "/versions/math@1"
    assert pages.read("versions", "base@1").text.count("Compose with it") == 0
    compared = pages.read("versions", "math@1", "comparison").text
    for other in ("base@1", "code@1", "law@1", "german@1", "biomed@1"):
        assert other in compared
    assert "same base" in compared
    assert f"/compositions/{digest}" in pages.read("versions", "math@1", "comparison").links
    part = pages.ask("/versions/math@1/comparison?part=comparison").text
    assert "<html" not in part
    assert "same base" in part
    overlap, lineage = (pages.ask(f"/versions/math@1/comparison?part={name}").text for name in ("overlap", "lineage"))
    assert ("same base" in overlap, "same base" in lineage) == (False, True)
    assert ("Overlap of text" in overlap, "Overlap of text" in lineage) == (True, False)


def test_what_was_opted_out_says_so_and_nothing_of_it_stays(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    filled.catalog.set_tags(filled.resolve("math"), {"secret": "tag"})
    assert "math@1" in pages.read("versions", "code@1", "comparison").text
    filled.opt_out("math", purge=True)
    assert "math@1" not in pages.read("versions", "code@1", "comparison").text.partition("Overlap")[2]
    gone = pages.read("versions", "math@1").text
    assert "opted out at" in gone
    assert "purged" in gone
    assert "secret" not in gone
    assert "nothing to compare" in pages.read("versions", "math@1", "comparison").text
    assert "cannot be made again" in pages.read("compositions", digest).text
    assert "was opted out" in pages.read("compose", e="math@1").text


def test_a_purge_is_not_held_up_by_pages(filled: Registry, pages: Pages) -> None:
    for name in ("math", "code", "law"):
        pages.read("versions", f"{name}@1", "comparison")
    with Registry(filled.home.path) as other:
        assert other.opt_out("law", purge=True).remains == ()


def test_a_composition_shows_recipe_members_and_scores(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    assert "It was not evaluated yet" in pages.read("compositions", digest).text
    filled.catalog.record_evaluation(digest, "1" * 64, evaluation())
    page = pages.read("compositions", digest)
    for text in (
        "regmean",
        "mixtral",
        "91.25",
        "95.50",
        "89.62",
        "75.0 %",
        "60.0 %",
        str(tmp_path / "moe"),
        "missing",
    ):
        assert text in page.text, text
    assert pages.ask(f"/compositions/{digest[:8]}").headers["location"] == f"/compositions/{digest}"
    listed = pages.read("compositions")
    assert f"/compositions/{digest}" in listed.links
    assert "moe" in listed.text
    assert "89.6 on 2,468 tokens of 2 domains" in listed.text
    assert "1–1 of 1" in pages.read("compositions", of="math").text
    assert (
        "0 compositions" in pages.read("compositions", of="law").text
        or "Nothing" in pages.read("compositions", of="law").text
    )
    again = next(link for link in page.links if link.startswith("/compose?"))
    assert digest[:12] in Page(pages.ask(again).text).text


def test_a_composition_shows_its_audits(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    assert "Extraction" not in pages.read("compositions", digest).text
    audit = {
        "data": {"digest": "0" * 64, "label": "<b>law.jsonl", "documents": 1234},
        "experts": {},
        "settings": {"prefix": 8, "continued": 4},
        "extraction": {"extracted": 77, "rate": 0.0624, "similarity": 0.3125, "most": 0.875},
    }
    filled.catalog.record_evaluation(digest, "2" * 64, audit)
    page = pages.read("compositions", digest)
    (stored,) = filled.audits(filled.compositions(digest)[0])
    row = page.text[page.text.index("<b>law.jsonl") :]
    found = [row.index(text) for text in ("<b>law.jsonl", "1,234", "77", "6.2 %", "0.312", "0.875")]
    assert found == sorted(found)
    assert stored.evaluated_at[:10] in row
    assert "It was not evaluated yet" in page.text  # an audit is no score


def test_copies_of_a_base_model_are_counted(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    plan = filled.plan([], from_base=12)
    filled.catalog.record_composition(plan.digest, plan.document, used_versions(plan), str(tmp_path))
    page = pages.read("compositions", plan.digest)
    assert "12 copies on base@1" in page.text
    assert "A sparse mixture of 12 copies of the base model’s MLPs; 2 experts per token" in page.text
    assert "Compose again" not in page.text
    assert "12 copies on base@1" in pages.read("compositions").text


def test_a_composition_has_its_report(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    digest = composed(filled, tmp_path / "<b>moe", "math", "code")
    first, second = (pages.ask(f"/compositions/{digest}/report") for _ in range(2))
    assert first.status == 200, first.text
    assert first.text == second.text
    policy = first.headers["content-security-policy"]
    assert "script-src 'sha256-" in policy
    assert "script-src 'unsafe" not in policy
    assert "sandbox allow-scripts" in policy
    assert digest[:16] in first.text
    assert pages.ask(f"/compositions/{digest[:9]}/report").headers["location"] == f"/compositions/{digest}/report"
    assert pages.ask("/compositions/abcdef/report").status == 404


def test_the_log_goes_back_in_pages(filled: Registry, pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.ui.log.PAGE", 4)
    newest = pages.read("log")
    older = next(link for link in newest.links if "before=" in link)
    assert "law@1" not in newest.text or "base@1" not in newest.text
    rest = Page(pages.ask(older).text)
    assert "base@1" in rest.text
    assert not [link for link in rest.links if "before=" in link]


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
    assert plan.model_type in page.text
    command = next(value for _, name, value in page.attributes if name == "data-copy" and value)
    words = command.split()
    assert words[:2] == ["reg", "compose"]
    done = CliRunner().invoke(main, ["--home", str(filled.home.path), *words[1:], "--plan", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["digest"] == plan.digest


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


def test_commands_in_errors_are_on_the_same_registry(filled: Registry) -> None:
    with served(filled, ("reg", "--home", "/a b")) as pages:

        def commands(*path: str, status: int = 404, **query: Any) -> list[str]:
            found = pages.read(*path, status=status, **query).attributes
            return [value for _, name, value in found if name == "data-copy" and value]

        assert commands("versions", "nope") == ["reg --home '/a b' list"]
        assert commands("compositions", "abcdef") == ["reg --home '/a b' compositions"]
        assert commands("compose", status=200, e="nope") == ["reg --home '/a b' list"]
        text = pages.read("compose", e=["base", "law"]).text
        assert "reg --home '/a b' add-expert" in text


def test_a_hint_is_taken_apart_into_a_command_and_words(filled: Registry) -> None:
    site = Site(filled, ("reg", "--home", "/h"))
    assert site.next_step(None) == ("", "")
    assert site.next_step("see what reg evaluate shows") == ("", "see what reg evaluate shows")
    assert site.next_step("register it: reg add-base a B; those registered: reg list") == (
        "", "register it: reg --home /h add-base a B; those registered: reg --home /h list",
    )  # fmt: skip
    assert site.next_step("run: reg list --all, which shows the aliases there are") == (
        "reg --home /h list --all", "which shows the aliases there are",
    )  # fmt: skip
    assert site.next_step("run: reg show a; or reg compositions, which lists all") == (
        "reg --home /h show a", "or reg --home /h compositions, which lists all",
    )  # fmt: skip
    assert site.next_step("the first makes one: reg --home /x add-base a B")[1].endswith(": reg --home /x add-base a B")


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


def test_the_preview_is_what_the_registry_foretells(filled: Registry, pages: Pages) -> None:
    found = filled.preview(["math", "code", "law"], Recipe(router="ridge"))
    page = pages.read("compose", "preview", e=["math", "law", "code"], router="ridge")
    for member in found.members:
        assert f"{100 * member.accuracy:.1f} %" in page.text
    assert f"{100 * found.accuracy:.1f} %" in page.text
    assert "no router" in pages.read("compose", "preview", e=["math", "law"], to="dense", status=400).text


def test_preview_of_context_routing_is_by_tokens_read(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    found = filled.preview(["math", "code", "law"])
    page = pages.read("compose", "preview", e=["math", "law", "code"])
    assert f"{100 * found.accuracy:.1f} %" in page.text
    assert "Accuracy by tokens read" in page.text
    assert "Weight in the solve" not in page.text
    assert found.notes[0] in page.text
    plan = filled.compose(["math", "code"], tmp_path / "moe")
    assert "context window" in pages.read("compositions", plan.digest).text


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/nowhere", 404, "<strong>This page does not exist</strong>"),
        ("/versions/mth", 404, "did you mean &#39;math&#39;"),
        ("/versions/math@7", 404, "<strong>math has no version 7"),
        ("/versions/%3Cb%3E", 400, "&lt;b&gt;"),
        ("/compositions/abcdef", 404, "<strong>There is no composition"),
        ("/compositions/xyz", 404, "no composition"),
        ("/compose/preview?e=", 400, ""),
    ],
)
def test_errors_are_pages_with_a_way_on(pages: Pages, path: str, status: int, told: str) -> None:
    answer = pages.ask(path)
    assert (answer.status, told in answer.text) == (status, True), answer.text
    assert "Next: " in answer.text
    Page(answer.text)


def test_a_fault_shows_no_traceback(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("a <b>fault</b>")

    monkeypatch.setattr("registry.registry.Registry.count_versions", fail)
    answer = pages.ask("/")
    assert answer.status == 500
    assert "ValueError: a &lt;b&gt;fault&lt;/b&gt;" in answer.text
    assert "Traceback" not in answer.text
    assert "REG_DEBUG=1" in answer.text


def test_names_tags_and_labels_inject_nothing(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    catalog, content = filled.catalog, filled.resolve("math").content
    for text in HOSTILE:
        statistics = tuple(replace(one, calibration_label=text) for one in filled.resolve("math").statistics)
        plain = text.replace("\x00", "")
        added, _ = catalog.add_version(
            new("hostile", "f", content=content, arrays="", statistics=statistics, tags={plain[:90]: plain})
        )
        catalog.set_alias(added, plain[:90])
        catalog.set_tags(filled.resolve("code"), {"label": plain})
    digest = composed(filled, tmp_path / HOSTILE[1].replace("/", ""), "math", "code")
    catalog.record_evaluation(digest, "1" * 64, evaluation(HOSTILE[0]))
    for text in HOSTILE:
        pages.read(q=text)
        pages.read(tag=f"label={text}")
        pages.read("compose", q=text, e=text, trunk=text)
        pages.read("compositions", of="math")
    assert "{{ 7 * 7 }}{% raw %}" in pages.read("versions", "hostile@1").text
    pages.read("versions", "code@1")
    pages.read("compositions", digest)
    pages.read("compose", e="code")
    pages.read("log")
    for where in pages.asked:
        answer = pages.ask(where).text
        page = Page(answer)
        assert "<script>window" not in answer
        assert "<img" not in answer
        names = {name for _, name, _ in page.attributes}
        assert not {name for name in names if name.startswith("on")} | (names & {"autofocus", "style"})
        assert not [link for link in page.links if not link.startswith(("/", "#"))]


def test_nothing_in_the_home_changes(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    filled.catalog.record_evaluation(digest, "1" * 64, evaluation())
    before = _stable(filled.home.path)
    for path in ("/", "/versions/math@1", "/versions/math@1/comparison", "/compositions", f"/compositions/{digest}",
                 "/compose?e=math&e=code", "/compose/preview?e=math&e=code", "/log"):  # fmt: skip
        assert pages.ask(path).status == 200
    assert _stable(filled.home.path) == before


def _stable(home: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_of(home).items() if not name.endswith(("-wal", "-shm"))}
