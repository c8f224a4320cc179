"""Proves: the page of a version shows what it is and was used for, and nothing of what was opted out stays.

That of a version of a soup or a SIMoE says what it is in it, and what was trained together with it.
"""

from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from registry import Registry
from registry.opt_out.receipt import read_receipt
from registry.registration.expert_overlap import OVERLAP_OF_ACTIVATIONS
from tests.conftest import Zoo
from tests.pages import Pages, served
from tests.registry.ui.examples import CONTENT, commands, composed, record
from tests.store.test_catalog import new


def test_a_version_shows_what_it_is_and_was_used_for(filled: Registry, pages: Pages, digest: str) -> None:
    page, version = pages.read("versions", "math@1"), filled.resolve("math")
    said = ["mlp input", "512", "math.train.jsonl", "active", "add-expert", "family llama", "License: not given"]
    for text in (version.digest, *said):
        assert text in page.text, text
    assert f"/compositions/{digest}" in page.links
    assert "/compose?e=math@1" in page.links or "/compose?e=math%401" in page.links
    assert pages.ask("/versions/math").headers["location"] == "/versions/math@1"
    assert pages.read("versions", "base@1").text.count("Compose with it") == 0
    event = filled.log(version.ref)[0]
    assert event.actor
    for path in (("log",), ("versions", "math@1")):
        assert f"math@1 by {event.actor}" in pages.read(*path).text
    assert "“by” names the account that ran the command" in pages.read("log").text


def test_a_version_is_compared_with_others(filled: Registry, pages: Pages, digest: str) -> None:
    page = pages.read("versions", "math@1", "comparison")
    for other in ("base@1", "code@1", "law@1", "german@1", "biomed@1"):
        assert other in page.text
    assert f"/compositions/{digest}" in page.links
    assert "Experts from it" not in page.text
    assert f"Overlap of activations. {OVERLAP_OF_ACTIVATIONS} 0 % means separate text" in page.text
    whole, overlap, lineage = (
        pages.ask(f"/versions/math@1/comparison?part={name}").text for name in ("comparison", "overlap", "lineage")
    )
    assert "<html" not in whole
    assert ["same base" in part for part in (whole, overlap, lineage)] == [True, False, True]
    assert ["Overlap of activations" in part for part in (whole, overlap, lineage)] == [True, True, False]
    of_base = pages.read("versions", "base@1", "comparison").text
    found = of_base[of_base.index("Experts from it") : of_base.index("Composed into")]
    assert found.count("@1 distance") == 4
    assert "and 1 more" in found
    assert "nothing with its own weights" in of_base
    with Registry(filled.home.path) as other_program:  # a purge is not held up by pages
        assert other_program.opt_out("law", purge=True).remains == ()


@pytest.mark.check
def test_what_was_opted_out_says_so_and_nothing_of_it_stays(filled: Registry, pages: Pages, digest: str) -> None:
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
    (tmp_path / "moe").mkdir()
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


@pytest.mark.check
def test_an_opted_out_version_says_how_its_receipt_is_written(filled: Registry, pages: Pages, work: Path) -> None:
    assert "receipt verify" not in pages.read("versions", "math@1").text + pages.read("log").text
    for purge in (False, True):
        (withdrawn,) = filled.opt_out("math@1", purge=purge).versions
        page, log = pages.read("versions", "math@1"), pages.read("log").text
        assert f"It was opted out at {str(withdrawn.withdrawn_at)[:16].replace('T', ' ')} UTC" in page.text
        assert "It proves what the registry holds and what a folder is made of, not that nobody made a" in page.text
        assert "It is kept only in the file that you name: the registry has no list of receipts." in page.text
        for words in ("opt-out math@1 --receipt receipt.json", "receipt verify receipt.json"):
            assert f"reg {words}" in commands(page)
            assert f"reg {words}" in log
            done = CliRunner().invoke(main, ["--home", str(filled.home.path), *words.split()], input="y\n")
            assert done.exit_code == 0, done.output
        assert "receipt confirmed" in done.stdout
        assert bool(read_receipt(work / "receipt.json").arrays) == purge
        (work / "receipt.json").unlink()


def test_an_expert_shows_its_text_and_its_own_perplexity(filled: Registry, pages: Pages, digest: str) -> None:
    def own(name: str = "math@1") -> str:
        return pages.read("versions", name).text.partition("Its own perplexity")[2]

    text = pages.read("versions", "math@1").text
    assert "math.train.jsonl : 512 tokens" in text.partition("The text of its statistics")[2]
    assert "No stored evaluation of a composition scored text of its domain, math" in text
    experts = {"math": filled.resolve("math").digest, "code": "0" * 64}
    record(filled, digest, experts=experts)
    # a score of 88 at a perplexity of 6: the expert's own is 0.88 · 6
    assert "test.jsonl 5.28 – 6.00 1,234 moe" in own()
    base = {"name": "base base@1", "perplexity": {"math": 9.5}}
    record(filled, digest, asked="2", experts=experts, single_models=[base])
    assert "test.jsonl 5.28 9.50 base@1 6.00 1,234 moe" in own()
    # which was evaluated against another expert
    assert "No stored evaluation of a composition scored text of its domain, code" in own("code@1")


def test_versions_say_what_opting_them_out_would_change(filled: Registry, pages: Pages) -> None:
    digest = composed(filled, "/else/three", "math", "code", "law")
    composed(filled, "/else/other", "code", "law")
    assert "/versions/math@1/opt-out" in pages.read("versions", "math@1").links
    assert "opt-out math@1" not in pages.read("versions", "math@1").text  # the commands stand beside what they change
    page = pages.read("versions", "math@1", "opt-out")
    assert "1 composition made from it stays listed, and cannot be made again." in page.text
    assert "1 folder still holds its weights until you delete it" in page.text
    assert ("/else/three" in page.text, "/else/other" in page.text) == (True, False)
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


def test_versions_of_a_soup_and_a_simoe_name_those_that_were_trained_with_them(tmp_path: Path) -> None:
    soup = {"domains": ["code", "<b>law"], "experts": 2, "support": 2, "rank": None, "data": "0" * 64}
    with Registry(tmp_path / "home") as registry:
        add = registry.catalog.add_version
        add(new("mix", "a", kind="base", content=CONTENT | {"soup": soup}))
        for number in (1, 2):
            of_soup, of_simoe = {"soup": "a" * 64, "number": number}, {"delta": "d" * 64, "number": number}
            of_simoe |= {"base": "e" * 64, "experts": 2, "prompt_tokens": 32}
            add(new(f"mix-{number}", str(number), content=CONTENT | {"soup": of_soup}))
            add(new(f"found-{number}", str(number + 2), content=CONTENT | {"simoe": of_simoe}))
        add(new("code", "5", content=CONTENT))
        with served(registry) as pages:
            shared, expert, found = (pages.read("versions", f"{ref}@1").text for ref in ("mix", "mix-1", "found-2"))
            listed, alone = pages.read().text, pages.read("versions", "code@1").text
            composer = pages.read("compose").text
    assert (
        "soup shared weights of 2 experts; domains code, <b>law: reg instantiate Trained together with mix-1@1 mix-2@1 "
        in shared
    )
    assert (
        "soup expert 1 of aaaaaaaaaaaa, trained together with all of it Trained together with mix@1 mix-2@1 " in expert
    )
    assert (
        "SIMoE expert 2 of 2, router on 32 prompt tokens; shared weights dddddddddddd, trained together by all: "
        in found
    )
    assert "Calibration tokens" not in expert + found
    assert "Calibration tokens 100" in alone
    assert "Trained together" not in alone
    assert "code@1 6 parameters · 100 calibration tokens " in listed
    assert "mix-1@1 6 parameters " in listed
    assert "mix-1@1 6 parameters ·" not in listed
    for said in ("code@1 100 tokens", "mix-1@1 of a soup", "found-1@1 of a SIMoE"):
        assert said in composer
