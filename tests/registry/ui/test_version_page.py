"""Proves: the page of a version shows what it is and was used for, and nothing of what was opted out stays."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from registry import Registry
from registry.composition.context_routing.predicted_routing import OVERLAP_OF_TOKEN_COUNTS
from registry.opt_out.receipt import read_receipt
from registry.registration.expert_overlap import OVERLAP_OF_ACTIVATIONS
from tests.conftest import Zoo
from tests.pages import Pages
from tests.registry.ui.examples import composed, evaluation


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
    assert ("Overlap of activations" in overlap, "Overlap of activations" in lineage) == (True, False)


@pytest.mark.check
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


def test_a_version_names_others_of_the_same_content(filled: Registry, pages: Pages, zoo: Zoo, tmp_path: Path) -> None:
    filled.add_expert("twin", zoo.experts["math"])
    composed(filled, tmp_path / "moe", "twin", "code")
    (tmp_path / "moe").mkdir(exist_ok=True)
    assert "The same content is also registered as math@1 :" in pages.read("versions", "twin@1").text
    assert "The same content" not in pages.read("versions", "code@1").text
    filled.opt_out("twin")
    left = pages.read("versions", "twin@1").text
    assert "Its content is still stored: reg opt-out --purge deletes it." in left
    assert f"These folders may still contain it: {tmp_path / 'moe'}" in left
    filled.opt_out("twin@1", purge=True)
    gone = pages.read("versions", "twin@1").text
    assert "The same content is still stored as math@1 : a purge deletes no bytes that another version needs." in gone
    assert "Its content is still stored:" not in gone


@pytest.mark.check(after=1)
@pytest.mark.parametrize("purge", [False, True], ids=["withdrawn", "purged"])
def test_an_opted_out_version_says_how_its_receipt_is_written_and_verified(
    filled: Registry, pages: Pages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, purge: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "receipt verify" not in pages.read("versions", "math@1").text + pages.read("log").text
    (withdrawn,) = filled.opt_out("math", purge=purge).versions
    page, log = pages.read("versions", "math@1"), pages.read("log").text
    assert f"It was opted out at {str(withdrawn.withdrawn_at)[:16].replace('T', ' ')} UTC" in page.text
    assert "“opt-out” is when a version was withdrawn" in log
    assert "It proves what the registry holds and what a folder is made of, not that nobody made a copy." in page.text
    assert "It is kept only in the file that you name: the registry has no list of receipts." in page.text
    commands = [value for _, name, value in page.attributes if name == "data-copy" and value]
    for words in ("opt-out math@1 --receipt receipt.json", "receipt verify receipt.json"):
        assert f"reg {words}" in commands
        assert f"reg {words}" in log
        done = CliRunner().invoke(main, ["--home", str(filled.home.path), *words.split()], input="y\n")
        assert done.exit_code == 0, done.output
    assert "receipt confirmed" in done.stdout
    assert bool(read_receipt(Path("receipt.json")).arrays) == purge


def test_a_purge_is_not_held_up_by_pages(filled: Registry, pages: Pages) -> None:
    for name in ("math", "code", "law"):
        pages.read("versions", f"{name}@1", "comparison")
    with Registry(filled.home.path) as other:
        assert other.opt_out("law", purge=True).remains == ()


def test_an_expert_shows_its_text_and_its_own_perplexity(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code")
    math, code = filled.resolve("math"), filled.resolve("code")
    text = pages.read("versions", "math@1").text
    assert "math.train.jsonl : 512 tokens" in text.partition("The text of its statistics")[2]
    assert "No stored evaluation of a composition scored text of its domain, math" in text
    found = evaluation("math.test.jsonl") | {"experts": {"math": math.digest, "code": "0" * 64}}
    filled.catalog.record_evaluation(digest, "1" * 64, found)
    own = pages.read("versions", "math@1")
    # a score of 88 at a perplexity of 6: the expert's own is 0.88 · 6
    assert "math.test.jsonl 5.28 – 6.00 1,234 moe" in own.text.partition("Its own perplexity")[2]
    assert f"/compositions/{digest}" in own.links
    base = {"name": "base base@1", "perplexity": {"math": 9.5}}
    filled.catalog.record_evaluation(digest, "2" * 64, found | {"single_models": [base]})
    text = pages.read("versions", "math@1").text.partition("Its own perplexity")[2]
    assert "math.test.jsonl 5.28 9.50 base@1 6.00 1,234 moe" in text
    assert "License: not given" in pages.read("versions", "math@1").text
    other = pages.read("versions", f"code@{code.number}").text  # that was evaluated against another expert
    assert "No stored evaluation of a composition scored text of its domain, code" in other


def test_an_expert_and_a_base_model_say_what_opting_them_out_would_change(
    filled: Registry, pages: Pages, tmp_path: Path
) -> None:
    digest = composed(filled, tmp_path / "moe", "math", "code", "law")
    composed(filled, tmp_path / "other", "code", "law")
    assert "/versions/math@1/opt-out" in pages.read("versions", "math@1").links
    assert "opt-out math@1" not in pages.read("versions", "math@1").text  # the commands stand beside what they change
    page = pages.read("versions", "math@1", "opt-out")
    assert "1 composition made from it stays listed, and cannot be made again." in page.text
    assert "1 folder still holds its weights until you delete it" in page.text
    assert str(tmp_path / "moe") in page.text
    assert str(tmp_path / "other") not in page.text
    (heirs,) = filled.opt_out("math", dry_run=True).heirs
    assert (heirs.composition, set(heirs.shares)) == (digest, {"code", "law"})
    for name, share in heirs.shares.items():
        assert f"{name} {100 * share:.1f} %" in page.text
    assert "What remains to use: 4 other expert versions to compose, and 1 composition without it." in page.text
    assert "are deleted too, and all scores of the composition made from it . Its name, digests and times" in page.text
    assert "opt-out math@1 --purge --receipt receipt.json" in page.text
    assert "<html" not in pages.ask("/versions/math@1/opt-out?part=opt-out").text
    assert filled.resolve("math").state == "active"
    base = pages.read("versions", "base@1", "opt-out").text
    assert "All experts come from it." in base
    assert "What remains to use: 5 expert versions to compose" in base
    filled.opt_out("math")
    assert "opted out already" in pages.read("versions", "math@1", "opt-out").text


def test_the_lineage_of_a_base_model_names_its_experts(filled: Registry, pages: Pages) -> None:
    text = pages.read("versions", "base@1", "comparison").text
    found = text[text.index("Experts from it") : text.index("Composed into")]
    assert found.count("@1 distance") == 4
    assert "and 1 more" in found
    assert "nothing with its own weights" in text
    assert "Experts from it" not in pages.read("versions", "math@1", "comparison").text


@pytest.mark.check
def test_overlaps_say_how_they_were_found(filled: Registry, pages: Pages) -> None:
    found = pages.read("versions", "math@1", "comparison").text
    assert f"Overlap of activations. {OVERLAP_OF_ACTIVATIONS} 0 % means separate text" in found
    found = pages.read("compose", "preview", e=["math", "code"]).text
    assert f"Overlap of token counts {OVERLAP_OF_TOKEN_COUNTS}" in found
    found = pages.read("compose", "preview", e=["math", "code"], router="ridge").text
    assert f"Overlap of activations {OVERLAP_OF_ACTIVATIONS}" in found
    assert "token counts" not in found


def test_events_say_who_ran_the_command(filled: Registry, pages: Pages) -> None:
    (event, *_) = filled.log(filled.resolve("math").ref)
    assert event.actor
    for path in (("log",), ("versions", "math@1")):
        assert f"math@1 by {event.actor}" in pages.read(*path).text
    assert "“by” names the account that ran the command" in pages.read("log").text
