"""Proves: `--sites counts` registers by counting tokens alone, and what needs statistics of a site says so."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from registry import PassSettings, Recipe, Registry
from registry.errors import CheckpointError, IncompatibleError, InvalidInputError
from registry.families.sites import CONTENT_COUNTS, MLP_INPUT, PAIR_COUNTS, TOKEN_COUNTS
from registry.io.safetensors_file import read_header
from registry.report import ReportData
from registry.statistics.collect import collect_to
from registry.ui.versions import compare
from tests.catalogs import in_files
from tests.cli.conftest import Reg
from tests.conftest import SETTINGS, Zoo, copy_home, files_of, opened_copy
from tests.pages import served
from tests.remarks import Remarks

COUNTS = PassSettings(tokens=512, seq_len=32, batch_size=4, sites="counts")
SAMPLED = PassSettings(tokens=64, seq_len=16, batch_size=4, sites="counts")
MEAN = Recipe(trunk="mean", router="random")
COUNTED, EVIDENCE = ("statistics", TOKEN_COUNTS), ("statistics", CONTENT_COUNTS)
PAIRED = ("statistics", PAIR_COUNTS)


@contextmanager
def without_model() -> Iterator[None]:
    """Fail if a model is loaded."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a model was loaded")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("registry.statistics.collect.load_for_pass", refuse)
        yield


@pytest.fixture
def no_model() -> Iterator[None]:
    with without_model():
        yield


@pytest.fixture(scope="module")
def _counted_home(_filled_home: Path, zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("counted")
    bare = shutil.copytree(zoo.experts["code"], root / "bare", ignore=shutil.ignore_patterns("statistics.*"))
    with without_model(), in_files(), Registry(copy_home(_filled_home, root / "home")) as registry:
        for name in ("counted", "kept"):
            data = [zoo.train["code"]]
            registry.add_expert(name, bare, data=data, settings=COUNTS, keep_calibration=name == "kept")
    return root / "home"


@pytest.fixture
def counted(_counted_home: Path, tmp_path: Path) -> Iterator[Registry]:
    """A registry with an expert `counted` of token counts alone, and `kept` with its calibration tokens too.

    No model was loaded for them.
    """
    with opened_copy(_counted_home, tmp_path / "home") as opened:
        yield opened


def links(registry: Registry, ref: str) -> dict[tuple[str, str], str]:
    return {(link.role, link.name): link.digest for link in registry.arrays_of(registry.resolve(ref))}


# -- registering ----------------------------------------------------------------------------------------------------


@pytest.mark.check
def test_counts_are_those_of_every_forward_pass(counted: Registry, bare: Path, zoo: Zoo) -> None:
    whole, alone = counted.resolve("code"), counted.resolve("counted")
    statistics = {key for key in links(counted, "counted") if key[0] == "statistics"}
    assert statistics == {COUNTED, EVIDENCE, PAIRED}
    (record,) = alone.statistics
    assert (record.site, record.tokens, record.saturated) == (TOKEN_COUNTS, 512, 0)
    assert {(record.calibration_digest, record.calibration_label)} == {
        (other.calibration_digest, other.calibration_label) for other in whole.statistics
    }
    assert alone.content is not None
    assert alone.content["computed"].keys() == {"sites", "evidence", "evidence_text", "evidence_pairs"}
    member = counted.member(alone)
    assert member.tokens == counted.member(whole).tokens == int(member.token_counts.sum()) == 512
    assert links(counted, "kept")["calibration", "ids"] == links(counted, "code")["calibration", "ids"]
    assert counted.verify().problems == ()
    settings = PassSettings(tokens=512, seq_len=32, batch_size=4, sites="router")
    counted.add_expert("routed", bare, data=[zoo.train["code"]], settings=settings)
    for other in ("code", "routed"):
        for counts in (COUNTED, EVIDENCE, PAIRED):
            assert links(counted, other)[counts] == links(counted, "counted")[counts]
        assert counted.resolve(other).statistics[0].site != TOKEN_COUNTS  # rows are as they were


@pytest.mark.check(after=1)
@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("keep", [False, True])
def test_same_counts_are_the_same_version(registry: Registry, bare: Path, zoo: Zoo, tmp_path: Path, keep: bool) -> None:
    """Collected counts register as direct ones do, and settings of a model do not matter."""
    data = [zoo.train["code"]]
    direct = registry.add_expert("code", bare, data=data, settings=COUNTS, keep_calibration=keep)
    other = replace(COUNTS, batch_size=7, dtype="float16", device="cuda:9")
    again = registry.add_expert("code", bare, data=data, settings=other, keep_calibration=keep)
    assert (direct.added, again.added, again.version) == (True, False, direct.version)
    _, collected = collect_to(bare, bare, data=data, settings=COUNTS, keep_calibration=keep)
    assert (collected.sites, collected.tokens) == ({}, 512)
    assert not registry.add_expert("code", bare).added
    told = Remarks()
    with Registry(tmp_path / "other", progress=told) as elsewhere:
        carried = elsewhere.add_expert("code", bare)
        assert "carries statistics" not in told.text
        assert carried.version.digest == direct.version.digest
        assert carried.version.statistics == direct.version.statistics
        assert not carried.self_sampled
        assert links(elsewhere, "code") == links(registry, "code")
        elsewhere.add_expert("code", bare, data=data, settings=COUNTS)
        assert "carries statistics, in whose place new ones are made of --data" in told.text


@pytest.mark.check
def test_expert_that_samples_its_own_text_keeps_it(registry: Registry, bare: Path) -> None:
    """The same text as for all sites; the counts depend on what the text depends on."""
    alone = registry.add_expert("alone", bare, settings=SAMPLED)
    whole = registry.add_expert("whole", bare, settings=replace(SAMPLED, sites="all"))
    assert alone.self_sampled
    for key in (("calibration", "ids"), ("calibration", "lengths"), COUNTED):
        assert links(registry, "alone")[key] == links(registry, "whole")[key]
    records = {record.calibration_label for each in (alone, whole) for record in each.version.statistics}
    assert len(records) == 1
    assert alone.version.content is not None
    model = {"dtype", "batch_size", "device", "sites"}
    assert set(alone.version.content["computed"]) == model | {"evidence", "evidence_pairs"}
    assert not registry.add_expert("alone", bare, settings=SAMPLED).added


@pytest.mark.check
@pytest.mark.usefixtures("no_model")
def test_registered_and_opted_out_is_never_registered(filled: Registry, bare: Path, zoo: Zoo, tmp_path: Path) -> None:
    stored = set(filled.arrays.digests())
    filled.compose(["law", "math"], tmp_path / "before")
    filled.add_expert("counted", bare, data=[zoo.train["code"]], settings=replace(COUNTS, tokens=300))
    assert set(filled.arrays.digests()) > stored
    filled.opt_out("counted", purge=True)
    assert set(filled.arrays.digests()) == stored
    filled.compose(["law", "math"], tmp_path / "after")
    assert files_of(tmp_path / "after") == files_of(tmp_path / "before")
    assert filled.verify().problems == ()


def rewritten(path: Path, edit: Callable[[dict[str, Any], dict[str, torch.Tensor]], object]) -> None:
    tensors, document = load_file(path), json.loads(read_header(path).metadata["expert-registry"])
    edit(document, tensors)
    save_file(tensors, path, metadata={"expert-registry": json.dumps(document)})


NOT_COUNTS = "its token counts are not those of 320 tokens"
FORGED: dict[str, tuple[Callable[[dict[str, Any], dict[str, torch.Tensor]], object], str]] = {
    "zeros": (lambda d, t: t["token_counts"].zero_(), NOT_COUNTS),
    "negative": (lambda d, t: t["token_counts"][3].fill_(-1), NOT_COUNTS),
    "other vocabulary": (lambda d, t: t.update(token_counts=torch.ones(321, dtype=torch.int64)), NOT_COUNTS),
    "sum that wraps around": (lambda d, t: t["token_counts"].fill_(2**62).add_(1), NOT_COUNTS),
    "more than can be": (lambda d, t: t["token_counts"][0].fill_(2**53), NOT_COUNTS),
    "no counts": (
        lambda d, t: (t.pop("token_counts"), t.update({"calibration.lengths": torch.ones(1, dtype=torch.int32)})),
        "must have token counts alone",
    ),
    "announced as a pass": (lambda d, t: d["computed"].update(sites="router"), "computed has no key 'dtype'"),
    "pass without statistics": (
        lambda d, t: d.update(computed={"dtype": "float32", "batch_size": 4, "device": "cpu", "sites": "all"}),
        "has 0 layers of mlp_input, the checkpoint has 2",
    ),
}


@pytest.mark.parametrize("case", sorted(FORGED))
def test_counts_that_cannot_be_are_refused(registry: Registry, bare: Path, zoo: Zoo, case: str) -> None:
    edit, message = FORGED[case]
    path, _ = collect_to(bare, bare, data=[zoo.train["code"]], settings=COUNTS)
    rewritten(path, edit)
    with pytest.raises(CheckpointError, match=message):
        registry.add_expert("code", bare)
    assert registry.versions() == []


def test_statistics_may_not_announce_counts_alone(registry: Registry, bare: Path, zoo: Zoo) -> None:
    shutil.copy(zoo.experts["code"] / "statistics.safetensors", bare)
    rewritten(bare / "statistics.safetensors", lambda d, t: d["computed"].update(sites="counts"))
    with pytest.raises(CheckpointError, match="must have token counts alone"):
        registry.add_expert("code", bare)
    path, _ = collect_to(bare, bare, data=[zoo.train["code"]], settings=COUNTS)
    rewritten(path, lambda d, t: t["token_counts"].zero_()[7].fill_(1))  # counts of one token are accepted
    assert registry.add_expert("code", bare).version.statistics[0].tokens == 1


# -- using ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe(), "mlp_input, which trunk method 'regmean' needs"),
        (Recipe(router="ridge"), "mlp_input, which router method 'ridge' and trunk method 'regmean' need"),
        (Recipe(trunk="mean", router="ridge"), "mlp_input, which router method 'ridge' needs"),
        (Recipe(to="dense"), "mlp_input, which trunk method 'regmean' needs"),
    ],
)
def test_recipe_that_needs_a_site_is_refused(counted: Registry, tmp_path: Path, recipe: Recipe, message: str) -> None:
    with pytest.raises(IncompatibleError) as caught:
        counted.compose(["counted", "math"], tmp_path / "moe", recipe)
    assert caught.value.message == f"counted@1 has no statistics of {message}"
    assert "reg add-expert counted CKPT --data FILE" in str(caught.value.hint)
    assert ("--trunk mean" in str(caught.value.hint)) == (recipe.trunk == "regmean")
    assert ("--router context" in str(caught.value.hint)) == ("ridge" in message)
    assert not (tmp_path / "moe").exists()


@pytest.mark.check
@pytest.mark.parametrize("recipe", [MEAN, Recipe(trunk="mean", to="dense")], ids=["mixture", "dense"])
def test_recipe_that_needs_no_site_composes(counted: Registry, tmp_path: Path, recipe: Recipe) -> None:
    """To the same bits as with all statistics, but for random routers, which depend on the members' digests."""
    for name, experts in (("alone", ["counted", "math"]), ("whole", ["code", "math"])):
        counted.compose(experts, tmp_path / name, recipe)
    counted.reproduce(tmp_path / "alone")
    found, expected = tensors(tmp_path / "alone"), tensors(tmp_path / "whole")
    differing = {name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)}
    assert all("gate.weight" in name for name in differing)
    if recipe == MEAN:
        report: ReportData = counted.report(tmp_path / "alone")
        assert [member.tokens for member in report.members] == [512, 512]
        lacking = "counted@1 has no statistics of mlp_input, which a preview needs"
        assert f"its routing is not predicted: {lacking}" in report.notes


def tensors(folder: Path) -> dict[str, bytes]:
    found = load_file(folder / "model.safetensors")
    return {name: tensor.flatten().view(torch.uint8).numpy().tobytes() for name, tensor in found.items()}


@pytest.mark.check
@pytest.mark.trust(after=1)
def test_kept_tokens_take_the_place_of_statistics(counted: Registry, tmp_path: Path) -> None:
    """Passes of kept tokens collect what routers need, to the same bits as with stored statistics."""
    recipe = Recipe(trunk="mean", router="ridge", refine=1)
    counted.compose(["kept", "math"], tmp_path / "alone", recipe)
    counted.compose(["code", "math"], tmp_path / "whole", recipe)
    assert tensors(tmp_path / "alone") == tensors(tmp_path / "whole")


def test_what_needs_statistics_says_so(counted: Registry, zoo: Zoo) -> None:
    member = counted.member(counted.resolve("counted"))
    assert member.has_statistics(TOKEN_COUNTS)
    assert not member.has_statistics(MLP_INPUT)
    refined = Recipe(trunk="mean", router="ridge", refine=1)
    lacking = "counted@1 has no statistics of mlp_input"
    for action, message in (
        (lambda: member.statistics(MLP_INPUT, 0), lacking),
        (lambda: counted.preview(["counted", "math"], MEAN), f"{lacking}, which a preview needs"),
        (lambda: counted.preview(["kept", "math"], refined), "kept@1 has no statistics of mlp_input, which a preview"),
        (lambda: counted.likeness(["counted", "math"], [zoo.test["code"]]), f"{lacking}, which the comparison with"),
        (lambda: counted.plan(["counted", "math"], refined.replace(refine=0)), f"{lacking}, which router method"),
        (lambda: counted.plan(["counted", "math"], refined), "counted@1 kept no calibration tokens"),
    ):
        with pytest.raises(IncompatibleError, match=message):
            action()
    with pytest.raises(IncompatibleError) as caught:
        counted.plan(["kept", "math"], Recipe(router="ridge"))
    assert str(caught.value.hint).endswith("; or choose --refine 1 --trunk mean")
    counted.plan(["kept", "math"], refined)


@pytest.mark.check
def without_counts(document: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Leave out what files of before counts lack."""
    for name in (TOKEN_COUNTS, CONTENT_COUNTS, PAIR_COUNTS):
        del tensors[name]
    for name in ("evidence", "evidence_text", "evidence_pairs"):
        del document["computed"][name]


def test_router_of_counts_needs_them_and_no_site(counted: Registry, bare: Path, zoo: Zoo) -> None:
    routed = Recipe(trunk="mean", router="context")
    path, _ = collect_to(bare, bare, data=[zoo.train["code"]], settings=SETTINGS)
    rewritten(path, without_counts)
    counted.add_expert("old", bare)
    counted.plan(["counted", "math"], routed)
    counted.plan(["old"], routed)  # one expert has no router to make
    message = "old@1 has no token counts, which router method 'context' needs"
    with pytest.raises(IncompatibleError, match=message) as caught:
        counted.plan(["old", "math"], routed)
    assert str(caught.value.hint).endswith("; or choose --router ridge")


@pytest.mark.check
def test_overlaps_leave_it_out_without_a_remark(counted: Registry, zoo: Zoo, bare: Path) -> None:
    counted.progress = told = Remarks()
    registration = counted.add_expert("again", zoo.experts["code"])
    assert {overlap.ref for overlap in registration.overlaps} == {f"{name}@1" for name in zoo.experts}
    assert "not compared" not in told.text
    report = counted.check(bare, data=[zoo.train["code"]], settings=COUNTS)
    assert report.overlaps is None
    assert compare(counted, counted.resolve("counted")) == ([], [])
    assert "counted@1" not in {each.ref for each in compare(counted, counted.resolve("code"))[0]}


@pytest.mark.check
def test_pages_show_it(counted: Registry) -> None:
    with served(counted) as pages:
        page = pages.read("versions", "counted@1").text
        assert "token counts 512 – code.train.jsonl" in page
        lacking = "registered by its token counts alone"
        assert lacking in pages.read("versions", "counted@1", "comparison").text
        assert lacking not in pages.read("versions", "code@1", "comparison").text
        assert "counted@1 has no statistics of mlp_input" in pages.read("compose", e=["counted@1", "math@1"]).text


# -- the command line -----------------------------------------------------------------------------------------------


@pytest.mark.check
def test_commands(filled: Registry, zoo: Zoo, bare: Path, tmp_path: Path) -> None:
    reg = Reg(filled.home.path)
    words = ("--data", zoo.train["code"], "--sites", "counts", "--seq-len", 32, "--tokens", 512)
    assert "not known: it needs statistics: --sites all" in reg("check", bare, *words).stdout
    added = reg("add-expert", "counted", bare, *words, "--device", "cuda:9").stdout
    assert "  counts of 512 tokens: code.train.jsonl" in added.splitlines()
    shown = [line.split(maxsplit=1) for line in reg("show", "counted").stdout.splitlines()]
    assert ["statistics", "token_counts: 512 tokens"] in shown
    (listed,) = [line.split() for line in reg("list").stdout.splitlines() if line.startswith("counted@1")]
    assert listed[4] == "512"
    printed = reg("collect", bare, *words, "--out", tmp_path / "out").stdout
    assert "token_counts on 512 tokens: code.train.jsonl" in printed
    document = reg.json("collect", bare, *words, "--out", tmp_path / "out")
    assert document["tokens"] == {"token_counts": 512}
    plan = reg("compose", "--experts", "counted,math", "--trunk", "mean", "--router", "random", "--plan").stdout
    assert "512" in plan
    with pytest.raises(InvalidInputError, match="sites 'none' is not one of all, router, counts"):
        PassSettings(sites="none")
