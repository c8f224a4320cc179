"""Proves: `--sites counts` registers by counting tokens alone, and what needs statistics of a site says so."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors import safe_open
from safetensors.torch import save_file

from cli.main import main
from registry import PassSettings, Recipe, Registry
from registry.errors import CheckpointError, IncompatibleError, InvalidInputError
from registry.families.sites import MLP_INPUT, TOKEN_COUNTS
from registry.progress import silent
from registry.report import ReportData
from registry.statistics.collect import collect_to
from registry.ui.comparing import compare
from tests.conftest import SETTINGS, Zoo, files_of
from tests.pages import served

COUNTS = PassSettings(tokens=512, seq_len=32, batch_size=4, sites="counts")
SAMPLED = PassSettings(tokens=64, seq_len=16, batch_size=4, sites="counts")
MEAN = Recipe(trunk="mean", router="random")


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a model is loaded."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("registry.statistics.collect.load_for_pass", refuse)


@pytest.fixture
def counted(filled: Registry, bare: Path, zoo: Zoo) -> Registry:
    """A registry with an expert `counted` of token counts alone, and `kept` with its calibration tokens too."""
    for name in ("counted", "kept"):
        filled.add_expert(name, bare, data=[zoo.train["code"]], settings=COUNTS, keep_calibration=name == "kept")
    return filled


def run(home: Path, *arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["--home", str(home), *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def links(registry: Registry, ref: str) -> dict[tuple[str, str], str]:
    return {(link.role, link.name): link.digest for link in registry.arrays_of(registry.resolve(ref))}


# -- registering ----------------------------------------------------------------------------------------------------


@pytest.mark.check
@pytest.mark.usefixtures("no_model")
def test_counts_are_those_of_a_forward_pass_and_no_model_is_loaded(counted: Registry, zoo: Zoo) -> None:
    whole, alone = counted.resolve("code"), counted.resolve("counted")
    statistics = {key for key in links(counted, "counted") if key[0] == "statistics"}
    assert statistics == {("statistics", TOKEN_COUNTS)}
    assert links(counted, "counted")["statistics", TOKEN_COUNTS] == links(counted, "code")["statistics", TOKEN_COUNTS]
    (record,) = alone.statistics
    assert (record.site, record.tokens, record.saturated) == (TOKEN_COUNTS, 512, 0)
    assert {(record.calibration_digest, record.calibration_label)} == {
        (other.calibration_digest, other.calibration_label) for other in whole.statistics
    }
    assert alone.content is not None
    assert alone.content["computed"] == {"sites": "counts"}
    member = counted.member(alone)
    assert member.tokens == counted.member(whole).tokens == int(member.token_counts.sum()) == 512
    assert links(counted, "kept")["calibration", "ids"] == links(counted, "code")["calibration", "ids"]
    assert counted.verify().problems == ()


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("sites", ["all", "router"])
def test_every_pass_stores_the_same_counts(counted: Registry, bare: Path, zoo: Zoo, sites: str) -> None:
    settings = PassSettings(tokens=512, seq_len=32, batch_size=4, sites=sites)
    counted.add_expert("other", bare, data=[zoo.train["code"]], settings=settings)
    assert links(counted, "other")["statistics", TOKEN_COUNTS] == links(counted, "counted")["statistics", TOKEN_COUNTS]
    assert counted.resolve("other").statistics[0].site != TOKEN_COUNTS  # rows are as they were


@pytest.mark.usefixtures("no_model")
def test_settings_of_a_model_do_not_matter(registry: Registry, bare: Path, zoo: Zoo) -> None:
    first = registry.add_expert("code", bare, data=[zoo.train["code"]], settings=COUNTS)
    other = PassSettings(
        tokens=512, seq_len=32, batch_size=7, sites="counts", dtype="float16", device="cuda:9", folds=5
    )
    again = registry.add_expert("code", bare, data=[zoo.train["code"]], settings=other)
    assert (first.added, again.added) == (True, False)
    assert again.version == first.version


@pytest.mark.check(after=1)
@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("keep", [False, True])
def test_collected_counts_register_as_direct_ones_do(
    registry: Registry, bare: Path, zoo: Zoo, tmp_path: Path, keep: bool
) -> None:
    data = [zoo.train["code"]]
    direct = registry.add_expert("code", bare, data=data, settings=COUNTS, keep_calibration=keep)
    path, collected = collect_to(bare, tmp_path / "out", data=data, settings=COUNTS, keep_calibration=keep)
    assert (collected.sites, collected.tokens) == ({}, 512)
    path.rename(bare / path.name)
    assert not registry.add_expert("code", bare).added
    with Registry(tmp_path / "other") as other:
        carried = other.add_expert("code", bare)
        assert carried.version.digest == direct.version.digest
        assert carried.version.statistics == direct.version.statistics
        assert not carried.self_sampled
        assert links(other, "code") == links(registry, "code")


@pytest.mark.check
def test_expert_that_samples_its_own_text_keeps_it(registry: Registry, bare: Path) -> None:
    """The same text as for all sites; the counts depend on what the text depends on."""
    alone = registry.add_expert("alone", bare, settings=SAMPLED)
    whole = registry.add_expert("whole", bare, settings=PassSettings(tokens=64, seq_len=16, batch_size=4))
    assert alone.self_sampled
    for key in (("calibration", "ids"), ("calibration", "lengths"), ("statistics", TOKEN_COUNTS)):
        assert links(registry, "alone")[key] == links(registry, "whole")[key]
    records = {record.calibration_label for each in (alone, whole) for record in each.version.statistics}
    assert len(records) == 1
    assert alone.version.content is not None
    assert set(alone.version.content["computed"]) == {"dtype", "batch_size", "device", "sites"}
    assert not registry.add_expert("alone", bare, settings=SAMPLED).added


@pytest.mark.check
@pytest.mark.usefixtures("no_model")
def test_registered_and_opted_out_is_never_registered(filled: Registry, bare: Path, zoo: Zoo, tmp_path: Path) -> None:
    stored = set(filled.arrays.digests())
    filled.compose(["law", "math"], tmp_path / "before")
    filled.add_expert("counted", bare, data=[zoo.train["code"]], settings=PassSettings(sites="counts"))
    assert set(filled.arrays.digests()) > stored
    filled.opt_out("counted", purge=True)
    assert set(filled.arrays.digests()) == stored
    filled.compose(["law", "math"], tmp_path / "after")
    assert files_of(tmp_path / "after") == files_of(tmp_path / "before")
    assert filled.verify().problems == ()


def rewritten(path: Path, edit: Callable[[dict[str, Any], dict[str, torch.Tensor]], object]) -> None:
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        document = json.loads(file.metadata()["expert-registry"])
    edit(document, tensors)
    save_file(tensors, path, metadata={"expert-registry": json.dumps(document)})


FORGED: dict[str, tuple[Callable[[dict[str, Any], dict[str, torch.Tensor]], object], str]] = {
    "zeros": (lambda d, t: t["token_counts"].zero_(), "its token counts are not those of 320 tokens"),
    "negative": (lambda d, t: t["token_counts"][3].fill_(-1), "its token counts are not those of 320 tokens"),
    "other vocabulary": (
        lambda d, t: t.update(token_counts=torch.ones(321, dtype=torch.int64)),
        "its token counts are not those of 320 tokens",
    ),
    "sum that wraps around": (
        lambda d, t: t["token_counts"].fill_(2**62).add_(1),
        "its token counts are not those of 320 tokens",
    ),
    "more than can be": (lambda d, t: t["token_counts"][0].fill_(2**53), "its token counts are not those of 320"),
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


@pytest.mark.check(after=6)
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


def test_counts_of_one_token_are_accepted(registry: Registry, bare: Path, zoo: Zoo) -> None:
    path, _ = collect_to(bare, bare, data=[zoo.train["code"]], settings=COUNTS)
    rewritten(path, lambda d, t: t["token_counts"].zero_()[7].fill_(1))
    assert registry.add_expert("code", bare).version.statistics[0].tokens == 1


# -- using ----------------------------------------------------------------------------------------------------------


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe(), "mlp_input, which trunk method 'regmean' needs"),
        (Recipe(router="ridge"), "mlp_input, which router method 'ridge' and trunk method 'regmean' need"),
        (Recipe(trunk="mean", router="ridge"), "mlp_input, which router method 'ridge' needs"),
        (Recipe(router="random"), "mlp_input, which trunk method 'regmean' needs"),
        (Recipe(to="dense"), "mlp_input, which trunk method 'regmean' needs"),
        (Recipe(trunk="mean", router="ridge", lam="auto"), "mlp_input, which router method 'ridge' needs"),
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
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("recipe", [MEAN, Recipe(trunk="base", router="random"), Recipe(trunk="mean", to="dense")])
def test_recipe_that_needs_no_site_composes(counted: Registry, tmp_path: Path, recipe: Recipe) -> None:
    """To the same bits as with all statistics, but for random routers, which depend on the members' digests."""
    for name, experts in (("alone", ["counted", "math"]), ("whole", ["code", "math"])):
        counted.compose(experts, tmp_path / name, recipe)
    counted.reproduce(tmp_path / "alone")
    found, expected = tensors(tmp_path / "alone"), tensors(tmp_path / "whole")
    assert {n: t for n, t in found.items() if "gate.weight" not in n} == {
        n: t for n, t in expected.items() if "gate.weight" not in n
    }


def tensors(folder: Path) -> dict[str, bytes]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        names = file.keys()
        return {name: file.get_tensor(name).flatten().view(torch.uint8).numpy().tobytes() for name in names}


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("passes", [{"refine": 1}, {"refine_mlp": True}], ids=["refined", "refitted"])
def test_kept_tokens_take_the_place_of_statistics(counted: Registry, tmp_path: Path, passes: dict[str, Any]) -> None:
    """Passes of kept tokens collect what routers need, to the same bits as with stored statistics."""
    recipe = Recipe(trunk="mean", router="ridge", **passes)
    counted.compose(["kept", "math"], tmp_path / "alone", recipe)
    counted.compose(["code", "math"], tmp_path / "whole", recipe)
    assert tensors(tmp_path / "alone") == tensors(tmp_path / "whole")
    with pytest.raises(IncompatibleError, match=r"counted@1 kept no calibration tokens"):
        counted.plan(["counted", "math"], recipe)
    with pytest.raises(IncompatibleError, match="folds, 2 or more: kept@1 1, math@1 2"):
        counted.plan(["kept", "math"], Recipe(trunk="mean", router="ridge", refine=1, lam="auto"))


@pytest.mark.check
def test_hint_names_the_refinement_that_kept_tokens_allow(counted: Registry) -> None:
    with pytest.raises(IncompatibleError) as caught:
        counted.plan(["kept", "math"], Recipe(router="ridge"))
    assert str(caught.value.hint).endswith("; or choose --refine 1 --trunk mean")
    counted.plan(["kept", "math"], Recipe(router="ridge", refine=1, trunk="mean"))


@pytest.mark.check
def test_predictions_say_what_they_need(counted: Registry, zoo: Zoo) -> None:
    for action, user in (
        (lambda: counted.preview(["counted", "math"], MEAN), "a preview"),
        (lambda: counted.preview(["kept", "math"], Recipe(trunk="mean", router="ridge", refine=1)), "a preview"),
        (lambda: counted.likeness(["counted", "math"], [zoo.test["code"]]), "the comparison with documents"),
    ):
        with pytest.raises(IncompatibleError, match=f"has no statistics of mlp_input, which {user} needs"):
            action()
    with pytest.raises(IncompatibleError, match="has no statistics of mlp_input, which router method 'ridge' needs"):
        counted.lam_curve(["counted", "math"], Recipe(trunk="mean", router="ridge"))


@pytest.mark.check
def test_router_of_counts_needs_them_and_no_site(counted: Registry, bare: Path, zoo: Zoo) -> None:
    routed = Recipe(trunk="mean", router="context")
    path, _ = collect_to(bare, bare, data=[zoo.train["code"]], settings=SETTINGS)
    rewritten(path, lambda d, t: t.pop("token_counts"))
    counted.add_expert("old", bare)
    counted.plan(["counted", "math"], routed)
    counted.plan(["old"], routed)  # one expert has no router to make
    with pytest.raises(IncompatibleError, match="old@1 has no token counts, which router method 'context' needs"):
        counted.plan(["old", "math"], routed)
    with pytest.raises(IncompatibleError) as caught:
        counted.plan(["old", "math"], routed)
    assert str(caught.value.hint).endswith("; or choose --router ridge")
    with pytest.raises(IncompatibleError) as caught:
        counted.plan(["counted", "math"], Recipe(router="ridge"))
    assert str(caught.value.hint).endswith("; or choose --router context --trunk mean")


@pytest.mark.check
def test_overlaps_leave_it_out_without_a_remark(
    counted: Registry, zoo: Zoo, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: list[str] = []

    def noted(label: str, total: int, unit: str) -> Any:
        labels.append(label)
        return silent(label, total, unit)

    monkeypatch.setattr(counted, "progress", noted)
    registration = counted.add_expert("again", zoo.experts["code"])
    assert {overlap.ref for overlap in registration.overlaps} == {f"{name}@1" for name in zoo.experts}
    assert labels
    assert not [label for label in labels if "not compared" in label]
    report = counted.check(bare, data=[zoo.train["code"]], settings=COUNTS)
    assert report.overlaps is None
    comparison = compare(counted, counted.resolve("counted"))
    assert (comparison.overlaps, comparison.remarks) == ((), ())
    assert "counted@1" not in {each.ref for each in compare(counted, counted.resolve("code")).overlaps}


@pytest.mark.check
def test_report_of_a_composition_notes_what_it_lacks(counted: Registry, tmp_path: Path) -> None:
    counted.compose(["counted", "math"], tmp_path / "moe", MEAN)
    report: ReportData = counted.report(tmp_path / "moe")
    assert [member.tokens for member in report.members] == [512, 512]
    assert report.curves == ()
    assert any(
        note == "its routing is not predicted: counted@1 has no statistics of mlp_input, which a preview needs"
        for note in report.notes
    )


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
    home, words = filled.home.path, ("--data", zoo.train["code"], "--sites", "counts", "--tokens", 512, "--seq-len", 32)
    assert "not known: it needs statistics: --sites all" in run(home, "check", bare, *words).stdout
    added = run(home, "add-expert", "counted", bare, *words, "--device", "cuda:9", "--folds", 1).stdout
    assert "  counts of 512 tokens: code.train.jsonl" in added.splitlines()
    shown = [line.split(maxsplit=1) for line in run(home, "show", "counted").stdout.splitlines()]
    assert ["statistics", "token_counts: 512 tokens"] in shown
    (listed,) = [line.split() for line in run(home, "list").stdout.splitlines() if line.startswith("counted@1")]
    assert listed[4] == "512"
    printed = run(home, "collect", bare, *words, "--out", tmp_path / "out").stdout
    assert "token_counts on 512 tokens: code.train.jsonl" in printed
    document = json.loads(run(home, "collect", bare, *words, "--out", tmp_path / "out", "--json").stdout)
    assert document["tokens"] == {"token_counts": 512}
    plan = run(home, "compose", "--experts", "counted,math", "--trunk", "mean", "--router", "random", "--plan").stdout
    assert "512" in plan


def test_folds_of_counts_are_refused(filled: Registry, bare: Path, zoo: Zoo) -> None:
    words = ("--data", zoo.train["code"], "--sites", "counts")
    refused = run(filled.home.path, "add-expert", "counted", bare, *words, "--folds", 2, code=2)
    assert "2 folds need statistics of the MLP inputs, which --sites counts does not collect" in refused.stderr
    with pytest.raises(InvalidInputError, match="sites 'none' is not one of all, router, counts"):
        PassSettings(sites="none")


def test_counts_are_no_statistics_of_a_site(counted: Registry) -> None:
    member = counted.member(counted.resolve("counted"))
    assert member.has_statistics(TOKEN_COUNTS)
    assert not member.has_statistics(MLP_INPUT)
    with pytest.raises(IncompatibleError, match="counted@1 has no statistics of mlp_input"):
        member.statistics(MLP_INPUT, 0)
