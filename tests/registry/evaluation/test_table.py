"""Proves: perplexity is what plain cross-entropy gives, and the normalised score is 100 for a domain's own expert."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from registry import Registry, TestSettings
from registry.calibration import Calibration, Corpus
from registry.errors import CalibrationError, CheckpointError, IncompatibleError, InvalidInputError, first_line
from registry.evaluation import text_windows
from registry.evaluation.scoring import losses_of, open_model
from registry.names.reference import require_list
from registry.progress import silent
from registry.runtime.loading import load_model, load_tokenizer, quiet_transformers
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint, train_tokenizer
from tests.registry.doctor.broken import Tensors, tensors
from tests.registry.evaluation.conftest import Data
from tests.remarks import Remarks

SETTINGS = TestSettings(windows=4, seq_len=32, batch_size=3)


@pytest.mark.parametrize("text", [None, "def return self import"])
def test_perplexity_is_the_exponential_of_the_mean_loss_without_padding(
    zoo: Zoo, tmp_path: Path, text: str | None
) -> None:
    file = zoo.test["code"]
    if text is not None:
        file = tmp_path / "short.txt"
        file.write_text(text)
    windows = text_windows({"code": [file]}, zoo.base, SETTINGS)
    found = losses_of(open_model("base", zoo.base, SETTINGS), windows, SETTINGS, silent)["code"].perplexity
    ids = windows["code"].ids.long()
    assert len(ids) == (4 if text is None else 1)
    if text is not None:
        ids = torch.tensor([[0, *load_tokenizer(zoo.base)(text)["input_ids"]]])
    with quiet_transformers(), torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(zoo.base, dtype=torch.float32)(input_ids=ids).logits
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).double(), ids[:, 1:].flatten())
    assert math.isclose(found, math.exp(loss.item()), rel_tol=1e-5)  # sums of float32 losses, batch by batch


@pytest.mark.check
def test_rows_and_scores(filled: Registry, moe: Path, data: Data, tmp_path: Path) -> None:
    filled.compose(["code"], tmp_path / "alone")
    rows = filled.evaluate([moe, tmp_path / "alone"], data, SETTINGS, baselines=True)
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
            assert row.score[domain] == 100 * (own / row.perplexity[domain])
        assert row.average_interval is not None
        assert row.average_interval[0] <= row.average <= row.average_interval[1]
        for domain, (low, high) in row.interval.items():
            assert low <= row.score[domain] <= high
    assert by_name["expert code"].interval["code"] == [100.0, 100.0]
    assert by_name["base base@1"].interval["code"][0] < by_name["base base@1"].interval["code"][1]
    low, high = by_name["moe"].ahead_of_average or (0.0, 0.0)
    assert low < (by_name["moe"].average or 0) - (by_name["average"].average or 0) < high
    assert by_name["alone"].ahead_of_average is None  # averaged weights have an expert that it has not
    plain = filled.evaluate([moe], data, SETTINGS)
    assert plain == [replace(by_name["moe"], ahead_of_average=None)]


def test_folders_of_one_name_are_told_apart(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    twin = shutil.copytree(zoo.base, tmp_path / "base")
    rows = registry.evaluate([zoo.base, twin], {"x": [zoo.test["code"]]}, SETTINGS)
    assert [row.name for row in rows] == [str(zoo.base), str(twin)]
    assert rows[0].perplexity == rows[1].perplexity


def test_what_cannot_be_evaluated_is_told(
    registry: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("empty", ""), ("one", "a")):
        (tmp_path / f"{name}.txt").write_text(text)
    with pytest.raises(InvalidInputError, match="there is nothing to evaluate"):
        registry.evaluate([], {})
    for file, told in (("absent", "is not a file"), ("empty", "hold no text")):
        with pytest.raises(CalibrationError, match=told):
            registry.evaluate([zoo.base], {"x": [tmp_path / f"{file}.txt"]})
    one_token = Calibration(torch.zeros(1, 2, dtype=torch.int32), torch.ones(1, dtype=torch.int32), "one.txt")
    with monkeypatch.context() as patch:
        patch.setattr("registry.evaluation.benchmark.evenly_spaced", lambda *_, **__: one_token)
        with pytest.raises(CalibrationError, match=r"domain x \(one.txt\) is a single token"):
            registry.evaluate([zoo.base], {"x": [tmp_path / "one.txt"]})
    with pytest.raises(CheckpointError, match=r"is not a checkpoint: it has no config\.json"):
        registry.evaluate([tmp_path], {"x": [zoo.test["law"]]})
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config\.json is refused by transformers: Unrecognized model"):
        registry.evaluate([tmp_path], {"x": [zoo.test["law"]]})


def test_test_text_is_shuffled_and_spread(zoo: Zoo) -> None:
    windows = text_windows({"code": [zoo.test["code"]]}, zoo.base, SETTINGS)["code"]
    tokenizer = load_tokenizer(zoo.base)
    first = next(iter(Corpus([zoo.test["code"]], tokenizer)))
    assert windows.ids[0, 1:20].tolist() != tokenizer(first.text)["input_ids"][:19]


@pytest.mark.check(after=1)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("block_sparse_moe.gate", "its keys do not match its architecture: missing keys model.layers.0"),
        ("layers.", r"missing keys model\S+, model\S+, model\S+ and \d+ more"),
        ("w1.weight", "cannot be loaded by transformers"),
    ],
)
def test_folder_whose_names_are_wrong_is_refused(
    filled: Registry, moe: Path, data: Data, wrong: str, message: str
) -> None:
    def rename(found: Tensors) -> None:
        for name in [name for name in found if wrong in name]:
            found[name.replace(wrong, "wrong")] = found.pop(name)

    tensors(rename)(moe)
    with pytest.raises(CheckpointError, match=message):
        filled.evaluate([moe], data, SETTINGS)


def test_every_folder_must_be_there_before_anything_is_read(
    filled: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a checkout may hold a folder that is named alike
    absent = {"x": [tmp_path / "absent.txt"]}  # would be told if the text came first
    for name, hint in (
        ("moee", "name folders that hold a model: reg evaluate moe/ --data code=FILE"),
        ("math", "math@1 is registered: run: reg export math@1 --out DIR, then name DIR"),
        ("math@1", "math@1 is registered: run: reg export math@1 --out DIR, then name DIR"),
    ):
        with pytest.raises(CheckpointError) as caught:
            filled.evaluate([zoo.base, name], absent)
        assert (str(caught.value), caught.value.hint) == (f"{name} is not a folder", hint)


def test_one_text_in_place_of_a_list_is_refused(registry: Registry) -> None:
    with pytest.raises(InvalidInputError, match="folders must be a list, got the one str 'moe'") as caught:
        registry.evaluate("moe", {})
    assert caught.value.hint == "put it into a list: ['moe']"
    requests: list[Callable[[], object]] = [
        lambda: registry.evaluate([], {"code": "file.txt"}),
        lambda: registry.add_expert("x", "absent", data="file.txt"),
        lambda: registry.check("absent", data="file.txt"),
        lambda: require_list(Path("file"), "data"),
    ]
    for request in requests:
        with pytest.raises(InvalidInputError, match="data must be a list"):
            request()
    for refused in (registry.plan, lambda experts: registry.compose(experts, "out")):
        with pytest.raises(InvalidInputError, match="experts must be a list, got the one str 'math'"):
            refused("math")


def test_folders_of_different_tokenizers_are_refused(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    other = save_checkpoint(make_model("llama", 101), tmp_path / "other", train_tokenizer(seed=1))
    with pytest.raises(IncompatibleError, match=r"their tokenizers differ: token \d+ is '") as caught:
        filled.evaluate([zoo.base, other], {"code": [zoo.test["code"]]}, SETTINGS)
    assert caught.value.hint == "evaluate each with its own command"
    (other / "tokenizer.json").rename(other / "tokenizer.model")
    with pytest.raises(IncompatibleError, match=r"not both have a tokenizer\.json"):
        filled.evaluate([zoo.base, other], {"code": [zoo.test["code"]]}, SETTINGS)
    padded = shutil.copytree(zoo.base, tmp_path / "padded")
    document = json.loads((padded / "tokenizer.json").read_text())
    document["added_tokens"].append(document["added_tokens"][0] | {"id": 320, "content": "<more>"})
    (padded / "tokenizer.json").write_text(json.dumps(document))
    rows = filled.evaluate([zoo.base, padded], {"code": [zoo.test["code"]]}, SETTINGS)  # one knows a token more
    assert rows[0].perplexity == rows[1].perplexity
    (tmp_path / "more.txt").write_text("def return <more> import")
    with pytest.raises(CheckpointError, match="padded: the tokenizer gives token 320, the model knows 320"):
        filled.evaluate([padded], {"x": [tmp_path / "more.txt"]}, SETTINGS)


@pytest.mark.check
def test_averaged_weights_of_other_experts_are_not_stored_and_say_so(
    filled: Registry, zoo: Zoo, tmp_path: Path, remarks: Remarks
) -> None:
    pair = filled.compose(["code", "law"], tmp_path / "pair").digest
    three = filled.compose(["code", "law", "math"], tmp_path / "three").digest
    data = {name: [zoo.test[name]] for name in ("code", "law", "math")}
    rows = filled.evaluate([tmp_path / "pair", tmp_path / "three"], data, SETTINGS, baselines=True)
    assert "average" in {row.name for row in rows}
    said = "averaged weights are those of code, law, math, and pair has other experts: their row is not stored with it"
    assert remarks.sentences == [said]
    stored = {digest: filled.catalog.evaluations(digest)[0].document for digest in (pair, three)}
    assert "plain_average" in stored[three]
    assert "plain_average" not in stored[pair]


@pytest.mark.check
def test_a_score_needs_the_member_itself_and_what_has_none_or_no_row_says_why(
    filled: Registry, zoo: Zoo, tmp_path: Path, remarks: Remarks
) -> None:
    data = {name: [zoo.test[name]] for name in ("code", "law", "german")} | {"cooking": [zoo.test["law"]]}
    filled.compose(["code", "law"], tmp_path / "moe")
    filled.add_expert("law", zoo.experts["math"])  # the newest law is not the one in the folder
    (row,) = filled.evaluate([tmp_path / "moe"], data, SETTINGS)
    assert row.score.keys() == {"code", "law", "german"}
    assert (row.average, row.perplexity["cooking"] > 1) == (None, True)
    remarks.sentences.clear()
    filled.opt_out("law@1")
    filled.opt_out("base")
    filled.opt_out("german", purge=True)
    rows = filled.evaluate([tmp_path / "moe"], data, SETTINGS, baselines=True)
    assert [row.score.keys() for row in rows if row.name == "moe"] == [{"code"}]
    digest = next(v.digest for v in filled.versions(everything=True) if v.ref == "law@1")
    assert remarks.sentences[:-1] == [
        f"no normalised score for law: the version that moe was composed of ({digest[:12]}) is not an active one here",
        "no normalised score for german: no expert of that name is registered",
        "no normalised score for cooking: no expert of that name is registered",
        "no row for a base model: none is registered",
        "no row for averaged weights: they take experts of two domains, and there is one, code",
    ]
    last = remarks.sentences[-1]
    assert last.startswith("the figures of moe are not stored: it holds law@1, which was opted out at ")


def test_experts_and_bases_with_another_tokenizer_take_no_part(
    filled: Registry, zoo: Zoo, tmp_path: Path, remarks: Remarks
) -> None:
    folder = save_checkpoint(make_model("llama", 101), tmp_path / "stranger", train_tokenizer(seed=1))
    filled.add_base("stranger", folder)
    rows = filled.evaluate([zoo.base], {"code": [zoo.test["code"]]}, SETTINGS, baselines=True)
    assert [row.name for row in rows] == ["base base@1", "expert code", "base"]
    remarks.sentences.clear()
    (row,) = filled.evaluate([folder], {"code": [zoo.test["code"]]}, SETTINGS)
    assert row.score == {}
    (said,) = remarks.sentences
    assert said.startswith("no normalised score for code: code@1 has another tokenizer than stranger: token ")


def test_windows_are_no_longer_than_every_model_can_take(filled: Registry, zoo: Zoo, remarks: Remarks) -> None:
    data = {"code": [zoo.test["code"]]}
    (row,) = filled.evaluate([zoo.base], data, TestSettings(windows=2, seq_len=4096))
    assert remarks.sentences == ["windows have 128 tokens, not 4,096: base takes no more"]
    assert row.tokens == {"code": 2 * 127}
    remarks.sentences.clear()
    filled.evaluate([zoo.base], data, TestSettings(windows=2, seq_len=128))
    assert remarks.sentences == []


@pytest.mark.parametrize(("weight", "loss"), [(math.nan, "nan"), (1e38, "nan|inf"), (1e5, r"\d")])
def test_loss_that_gives_no_perplexity_is_told(
    filled: Registry, zoo: Zoo, tmp_path: Path, weight: float, loss: str
) -> None:
    broken = shutil.copytree(zoo.base, tmp_path / "broken")
    tensors(lambda found: found["lm_head.weight"].mul_(weight))(broken)
    with pytest.raises(CheckpointError, match=f"broken: its loss on domain law is ({loss})"):
        filled.evaluate([broken], {"law": [zoo.test["law"]]}, SETTINGS)


def test_text_of_other_libraries_is_cut_to_its_first_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nonsense"}')
    with pytest.raises(CheckpointError) as caught:
        load_model(tmp_path, "float32", "cpu")
    assert "\n" not in str(caught.value)
    assert first_line(ValueError("\n one \n two")) == "one"
    assert first_line(ValueError()) == "ValueError"
