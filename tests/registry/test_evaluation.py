"""Proves: perplexity is what plain cross-entropy gives, and the normalised score is 100 for a domain's own expert."""

import math
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from registry import Registry, TestSettings
from registry.calibration import Corpus
from registry.errors import CalibrationError, CheckpointError, InvalidInputError
from registry.evaluation import perplexities, test_windows
from registry.loading import load_tokenizer, quiet_transformers
from registry.progress import silent
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint, train_tokenizer

SETTINGS = TestSettings(windows=4, seq_len=32, batch_size=3)


def test_perplexity_is_the_exponential_of_the_mean_loss(zoo: Zoo) -> None:
    windows = test_windows({"code": [zoo.test["code"]]}, zoo.base, SETTINGS)
    found = perplexities("base", zoo.base, windows, SETTINGS, silent)["code"]
    with quiet_transformers(), torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(zoo.base, dtype=torch.float32)
        ids = windows["code"].ids.long()
        logits = model(input_ids=ids).logits
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).double(), ids[:, 1:].flatten())
    assert len(ids) == 4
    assert math.isclose(found, math.exp(loss.item()), rel_tol=1e-5)  # sums of float32 losses, batch by batch


def test_padding_is_not_scored(zoo: Zoo, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("def return self import")
    windows = test_windows({"code": [tmp_path / "short.txt"]}, zoo.base, SETTINGS)
    found = perplexities("base", zoo.base, windows, SETTINGS, silent)["code"]
    tokenizer = load_tokenizer(zoo.base)
    ids = torch.tensor([[0, *tokenizer("def return self import")["input_ids"]]])
    with quiet_transformers(), torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(zoo.base, dtype=torch.float32)(input_ids=ids).logits
    loss = F.cross_entropy(logits[0, :-1], ids[0, 1:])
    assert math.isclose(found, math.exp(loss.item()), rel_tol=1e-4)


def test_rows_and_scores(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    filled.compose(["code", "math"], tmp_path / "moe")
    filled.compose(["code"], tmp_path / "alone")
    data = {name: [zoo.test[name]] for name in ("code", "math")}
    rows = filled.evaluate([tmp_path / "moe", tmp_path / "alone"], data, SETTINGS, baselines=True)
    by_name = {row.name: row for row in rows}
    assert list(by_name) == ["base base@1", "expert code", "expert math", "average", "moe", "alone"]
    assert by_name["expert code"].score["code"] == 100.0
    assert by_name["expert math"].score["math"] == 100.0
    # a composition of one expert is that expert: equal logits, equal perplexity
    assert by_name["alone"].perplexity["code"] == by_name["expert code"].perplexity["code"]
    for row in rows:
        assert row.average == sum(row.score.values()) / 2
        for domain in data:
            own = by_name[f"expert {domain}"].perplexity[domain]
            assert row.score[domain] == 100 * own / row.perplexity[domain]
    plain = filled.evaluate([tmp_path / "moe"], data, SETTINGS)
    assert plain == [by_name["moe"]]


def test_score_needs_the_member_itself(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    filled.compose(["code", "math"], tmp_path / "moe")
    filled.add_expert("math", zoo.experts["law"])  # the newest math is not the one in the folder
    data = {name: [zoo.test[name]] for name in ("code", "math", "german")}
    (row,) = filled.evaluate([tmp_path / "moe"], data, SETTINGS)
    assert set(row.score) == {"code", "math", "german"}
    filled.opt_out("math@1")
    filled.opt_out("german", purge=True)
    (row,) = filled.evaluate([tmp_path / "moe"], data, SETTINGS)
    assert set(row.score) == {"code"}
    assert row.average is None


def test_experts_and_bases_with_another_tokenizer_take_no_part(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    folder = save_checkpoint(make_model("llama", 101), tmp_path / "stranger", train_tokenizer(seed=1))
    filled.add_base("stranger", folder)
    rows = filled.evaluate([zoo.base], {"code": [zoo.test["code"]]}, SETTINGS, baselines=True)
    assert [row.name for row in rows] == ["base base@1", "expert code", "base"]
    (row,) = filled.evaluate([folder], {"code": [zoo.test["code"]]}, SETTINGS)
    assert row.score == {}


def test_folders_of_one_name_are_told_apart(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    twin = shutil.copytree(zoo.base, tmp_path / "base")
    rows = registry.evaluate([zoo.base, twin], {"x": [zoo.test["code"]]}, SETTINGS)
    assert [row.name for row in rows] == [str(zoo.base), str(twin)]
    assert rows[0].perplexity == rows[1].perplexity


def test_domain_nobody_registered_has_no_score(registry: Registry, zoo: Zoo) -> None:
    (row,) = registry.evaluate([zoo.base], {"cooking": [zoo.test["law"]]}, SETTINGS)
    assert row.score == {}
    assert row.average is None
    assert row.perplexity["cooking"] > 1


def test_what_cannot_be_evaluated_is_told(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="there is nothing to evaluate"):
        registry.evaluate([], {})
    with pytest.raises(CalibrationError, match="is not a file"):
        registry.evaluate([zoo.base], {"x": [tmp_path / "absent.txt"]})
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(CalibrationError, match="hold no text"):
        registry.evaluate([zoo.base], {"x": [tmp_path / "empty.txt"]})
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        registry.evaluate([tmp_path], {"x": [zoo.test["law"]]})


def test_test_text_is_shuffled_and_spread(zoo: Zoo) -> None:
    windows = test_windows({"code": [zoo.test["code"]]}, zoo.base, SETTINGS)["code"]
    tokenizer = load_tokenizer(zoo.base)
    first = next(iter(Corpus([zoo.test["code"]], tokenizer)))
    assert windows.ids[0, 1:20].tolist() != tokenizer(first.text)["input_ids"][:19]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("block_sparse_moe.gate", "its keys do not match its architecture: {'missing_keys'"),
        ("w1.weight", "cannot be loaded by transformers"),
    ],
)
def test_folder_whose_names_are_wrong_is_refused(
    filled: Registry, zoo: Zoo, tmp_path: Path, wrong: str, message: str
) -> None:
    filled.compose(["code", "math"], tmp_path / "moe")
    path = tmp_path / "moe" / "model.safetensors"
    renamed = {name.replace(wrong, "wrong"): tensor for name, tensor in load_file(path).items()}
    save_file(renamed, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=message):
        filled.evaluate([tmp_path / "moe"], {"code": [zoo.test["code"]]}, SETTINGS)
