"""Proves: statistics that a composition takes are those taken by hand in the same models, and the cache is only
that: what it holds is found again, what is damaged is made again, and opting out empties it."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from registry import Recipe, Registry
from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError, IncompatibleError
from registry.families.sites import MLP_INPUT
from registry.maths.statistics import Statistics
from registry.methods.moe import passes as passes_module
from registry.progress import silent
from registry.runtime.gates import gates
from registry.runtime.layerwise import watched
from registry.runtime.loading import load_model
from registry.statistics import file as statistics_file
from registry.statistics.cache import PREFIXES
from registry.statistics.collect import collect_to
from registry.statistics.forward_pass import take_statistics
from registry.statistics.scales import scales
from registry.statistics.settings import PassSettings
from tests.conftest import SETTINGS, Zoo, files_of
from tests.models import write_jsonl
from tests.registry.composition.composed import GATE, PAIR, tensors_of
from tests.registry.composition.test_vocabulary import grown
from tests.registry.maths.drawn import ridge

UNIT: dict[str, Any] = {"normalize": True, "temperature": 1.0}
BATCH = PassSettings().batch_size


def kept(zoo: Zoo, name: str) -> Calibration:
    calibration = statistics_file.load(zoo.experts[name] / "statistics.safetensors").calibration
    assert calibration is not None
    return calibration


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The checkpoint of every pass that runs."""
    ran: list[Any] = []

    def noted(*arguments: Any, **options: Any) -> Any:
        ran.append(arguments[0])
        return take_statistics(*arguments, **options)

    monkeypatch.setattr(passes_module, "take_statistics", noted)
    return ran


def forced_model(zoo: Zoo, composed: Path, name: str, folder: Path) -> Path:
    """Write the dense model of a composition's trunk and an expert's own MLPs."""
    own, trunk = tensors_of(zoo.experts[name]), tensors_of(composed)
    folder.mkdir()
    shutil.copy(zoo.experts[name] / "config.json", folder)
    save_file({key: own[key] if ".mlp." in key else trunk[key] for key in own}, folder / "model.safetensors")
    return folder


def seen_by(model: Any, modules: list[Any], calibration: Calibration) -> list[torch.Tensor]:
    """Return what each module is given for the tokens that count, one row a token, batch by batch of full size."""
    rows: list[list[torch.Tensor]] = [[] for _ in modules]
    for first in range(0, len(calibration.ids), BATCH):
        ids, keep = (part[first : first + BATCH] for part in (calibration.ids.long(), calibration.keep))
        filled = torch.cat([ids, ids[:1].expand(BATCH - len(ids), -1)])
        with torch.no_grad(), watched({str(at): module for at, module in enumerate(modules)}) as seen:
            model.base_model(input_ids=filled, use_cache=False)
        for number, into in enumerate(rows):
            into.append(seen[str(number)][0].view(*filled.shape, -1)[: len(ids)][keep])
    return [torch.cat(parts) for parts in rows]


@pytest.mark.check
def test_first_pass_is_that_of_the_experts_in_the_composed_trunk(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    """Every token forced to its expert (DUME eq. 7), in the dense model that this is."""
    weights = [3.0, 1.0]
    filled.compose(PAIR, tmp_path / "moe", Recipe(router="ridge", refine=1, lam=0.3, weights={"code": 3.0}, **UNIT))
    taken = []
    for name in PAIR:
        folder = forced_model(zoo, tmp_path / "moe", name, tmp_path / name)
        settings = PassSettings(sites="router", dtype="float32")
        model = load_model(folder, "float32", None)
        taken.append(take_statistics(Checkpoint(folder), "", model, kept(zoo, name), settings, progress=silent))
    for layer in range(2):
        expected = ridge([of.sites[MLP_INPUT][layer] for of in taken], weights, 0.3)
        assert torch.equal(tensors_of(tmp_path / "moe")[GATE.format(layer)], expected.float())
    filled.compose(PAIR, tmp_path / "own", Recipe(router="ridge", lam=0.3, weights={"code": 3.0}))
    own, refined = tensors_of(tmp_path / "own"), tensors_of(tmp_path / "moe")
    assert [name for name in own if not torch.equal(own[name], refined[name])] == [GATE.format(0), GATE.format(1)]


@pytest.mark.check
def test_second_pass_is_that_of_the_routed_model(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    filled.compose(PAIR, tmp_path / "once", Recipe(router="ridge", refine=1, **UNIT))
    filled.compose(PAIR, tmp_path / "twice", Recipe(router="ridge", refine=2, **UNIT))
    model = load_model(tmp_path / "once", "float32", None)
    exponents = scales(
        Checkpoint(forced_model(zoo, tmp_path / "once", "code", tmp_path / "dense")), MLP_INPUT
    ).exponents
    found = [seen_by(model, [gate.module for gate in gates(model)], kept(zoo, name)) for name in PAIR]
    for layer in range(2):
        statistics = [Statistics.of(rows[layer], exponents[layer]) for rows in found]
        gate = tensors_of(tmp_path / "twice")[GATE.format(layer)]
        assert torch.equal(gate, ridge(statistics, [1.0, 1.0], 0.01).float())
    # What the first layer sees no router has touched yet; what the second sees one has.
    once, twice = tensors_of(tmp_path / "once"), tensors_of(tmp_path / "twice")
    assert [name for name in once if not torch.equal(once[name], twice[name])] == [GATE.format(1)]


@pytest.mark.check
def test_domain_embedding_is_the_mean_feature_in_the_base_model(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    filled.compose(PAIR, tmp_path / "moe", Recipe(router="domain-embedding", temperature=1.0))
    base = load_model(zoo.base, "float32", None)
    for number, name in enumerate(PAIR):
        rows = seen_by(base, [layer.mlp for layer in base.model.layers], kept(zoo, name))
        for layer in range(2):
            row = tensors_of(tmp_path / "moe")[GATE.format(layer)][number]
            assert torch.allclose(row, rows[layer].mean(dim=0), atol=1e-3)  # 16 bits of a bound of some 10


RECIPES = {
    "forced": Recipe(router="ridge", refine=1),
    "routed": Recipe(router="ridge", refine=2),
    "base features": Recipe(router="domain-embedding"),
}


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("name", RECIPES)
def test_what_was_taken_once_is_not_taken_again(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A pass that fails leaves nothing."""
    with monkeypatch.context() as patch:
        patch.setattr(passes_module, "take_statistics", refusing)
        with pytest.raises(CalibrationError, match="a pass runs"):
            filled.compose(PAIR, tmp_path / "moe", RECIPES[name])
    assert list(filled.home.work.iterdir()) == []
    assert all(path.name.startswith(PREFIXES) for path in filled.home.cache.glob("*"))
    assert not (tmp_path / "moe").exists()
    assert filled.compositions() == []
    filled.compose(PAIR, tmp_path / "first", RECIPES[name])
    assert list(filled.home.work.iterdir()) == []
    monkeypatch.setattr(passes_module, "take_statistics", refusing)
    filled.compose(PAIR[::-1], tmp_path / "second", RECIPES[name])
    assert files_of(tmp_path / "second") == files_of(tmp_path / "first")


def refusing(*_arguments: Any, **_options: Any) -> Any:
    raise CalibrationError("a pass runs", "it should not")


def test_damaged_cache_is_found_out_and_made_again(filled: Registry, tmp_path: Path, passes: list[Any]) -> None:
    filled.compose(PAIR, tmp_path / "first", Recipe(router="ridge", refine=1))
    assert len(passes) == 2
    whole = files_of(filled.home.cache)
    name = min(name for name in whole if not name.startswith(PREFIXES))
    damaged = bytearray(whole[name])
    damaged[-5] ^= 1
    (filled.home.cache / name).write_bytes(damaged)
    filled.compose(PAIR, tmp_path / "second", Recipe(router="ridge", refine=1))
    assert len(passes) == 3
    assert files_of(tmp_path / "second") == files_of(tmp_path / "first")
    assert files_of(filled.home.cache) == whole


@pytest.mark.check
def test_cache_knows_a_trunk_from_another(filled: Registry, tmp_path: Path, passes: list[Any]) -> None:
    for number, (recipe, runs) in enumerate(
        [
            (Recipe(router="ridge", refine=1), 2),
            (Recipe(router="ridge", refine=1, lam=1e3, temperature=0.5, top_k=2), 0),  # of routers no trunk is made
            (Recipe(router="ridge", refine=1, trunk_options={"alpha": 0.5}), 2),
            (Recipe(router="ridge", refine=1, weights={"code": 2.0}), 2),
            (Recipe(router="ridge", refine=1, dtype="bfloat16"), 2),
            (Recipe(router="ridge", refine=2), 2),  # the second pass alone
            (Recipe(router="ridge", refine=2, lam=1e3), 2),  # its routers route
        ]
    ):
        passes.clear()
        filled.compose(PAIR, tmp_path / str(number), recipe)
        assert len(passes) == runs, recipe


def test_opt_out_empties_the_cache_and_a_model_that_a_crash_left_is_garbage(filled: Registry, tmp_path: Path) -> None:
    filled.compose(PAIR, tmp_path / "moe", Recipe(router="ridge", refine=1))
    assert files_of(filled.home.cache)
    assert filled.gc(dry_run=True).cached == len(files_of(filled.home.cache))
    filled.opt_out("law")  # of whose statistics none is there: all go nevertheless
    assert not filled.home.cache.exists()
    for name, age in (("old", 2 * 24 * 3600), ("busy", 0)):
        (folder := filled.home.work / name).mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"weights")
        for path in (folder / "model.safetensors", folder):
            then = path.stat().st_mtime - age
            os.utime(path, (then, then))
    assert filled.gc(dry_run=True).work == 1
    assert (filled.gc().work, filled.gc().work) == (1, 0)
    assert [path.name for path in filled.home.work.iterdir()] == ["busy"]


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_member_without_kept_tokens_is_refused(
    filled: Registry, bare: Path, zoo: Zoo, tmp_path: Path, recipe: Recipe
) -> None:
    collect_to(bare, bare, data=[zoo.train["code"]], settings=SETTINGS)
    filled.add_expert("secret", bare)
    with pytest.raises(IncompatibleError, match="secret@1 kept no calibration tokens, which this recipe") as caught:
        filled.compose(("math", "secret"), tmp_path / "moe", recipe)
    assert "reg add-expert secret CKPT --data FILE --keep-calibration" in str(caught.value.hint)
    assert not (tmp_path / "moe").exists()
    assert not filled.home.work.exists()


def test_tokens_that_the_base_model_lacks_are_told(filled: Registry, tmp_path: Path) -> None:
    folder = grown(tmp_path / "agent", 111, "<call>")
    data = [write_jsonl(tmp_path / "calls.jsonl", ["<call> sum list " * 20] * 9)]
    filled.add_expert("agent", folder, data=data, settings=SETTINGS, keep_calibration=True)
    with pytest.raises(IncompatibleError, match=r"agent@1 was calibrated on token 320, and base@1, .* knows 320"):
        filled.compose(("agent", "code"), tmp_path / "moe", RECIPES["base features"])
    assert not (tmp_path / "moe").exists()
    assert list(filled.home.work.iterdir()) == []
