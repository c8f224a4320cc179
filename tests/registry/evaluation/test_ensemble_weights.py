"""Proves: evaluations store, and commands print, the weights of an ensemble's members as the routing of one layer.

The weights are computed here from the dense models alone.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner, Result
from torch import Tensor

from cli.main import main
from registry import Recipe, Registry, TestSettings
from registry.composition.route import route
from registry.evaluation.benchmark import TokenizerSource, make_benchmark
from registry.evaluation.scoring import Tally
from registry.io.model_folder import MARKER
from registry.methods.ensemble.output import ROUTINGS
from registry.progress import silent
from registry.report import page
from registry.runtime.gates import RoutingRecord, expert_count, record_routing
from registry.runtime.loading import load_model, load_tokenizer
from tests.conftest import Zoo
from tests.models import logits
from tests.registry.composition.test_ensemble import by_first
from tests.registry.evaluation.conftest import Data

PAIR = ("code", "math")
SETTINGS = TestSettings(windows=3, seq_len=24, batch_size=2, device="cpu")


def run(home: Registry | None, *words: object, code: int = 0) -> Result:
    before = [] if home is None else ["--home", str(home.home.path)]
    result = CliRunner().invoke(main, [*before, *map(str, words)])
    assert result.exit_code == code, result.output
    return result


def posterior(zoo: Zoo, tokens: list[int], temperature: float) -> Tensor:
    """Return w_j ∝ p_j(x_<=t)^(1/T) at each token t (BTM, §2, eq. 2), a column for each member."""
    ids, sums = torch.tensor([tokens]), []
    for name in PAIR:
        scores = logits(zoo.experts[name], ids)[0, :-1].double().log_softmax(-1)
        sums.append(
            F.pad(scores.gather(1, ids[0, 1:, None])[:, 0].cumsum(0), (1, 0))
        )  # at the first there is no evidence
    return torch.softmax(torch.stack(sums, dim=1) / temperature, dim=1)


@pytest.mark.check
def test_weights_and_first_choices_are_stored_by_domain(filled: Registry, zoo: Zoo, data: Data, tmp_path: Path) -> None:
    filled.compose(PAIR, tmp_path / "mixed", Recipe(to="ensemble", temperature=20.0))
    (row,) = filled.evaluate([tmp_path / "mixed"], data, SETTINGS)
    (made,) = filled.compositions()
    (stored,) = filled.evaluations(made)
    assert stored.document["figures"] == row.document()
    everything = []
    for domain, texts in windows_of(data, tmp_path / "mixed").items():
        weights = torch.cat([posterior(zoo, text, 20.0) for text in texts])
        best = (weights == weights.amax(dim=1, keepdim=True)).double()
        first = (best / best.sum(dim=1, keepdim=True)).mean(dim=0)  # before there is evidence both are
        for index, name in enumerate(PAIR):
            assert row.weights[domain][name] == [pytest.approx(float(weights[:, index].mean()), abs=1e-5)]
            assert row.routing[domain][name] == [pytest.approx(float(first[index]), abs=1e-9)]
        everything.append(weights)
        assert row.accuracy[domain] == row.routing[domain][domain]
        assert row.accuracy_by_tokens[domain]["1"] == 0.5
    load = torch.cat(everything).mean(dim=0).tolist()
    assert [row.load[name][0] for name in PAIR] == [pytest.approx(share, abs=1e-5) for share in load]
    assert row.overall_accuracy["code"] > 0.5


def windows_of(data: Data, folder: Path) -> dict[str, list[list[int]]]:
    """Return the test windows of each domain as an evaluation makes them, without their padding."""
    benchmark = make_benchmark([TokenizerSource.of_folder(folder, "mixed")], data, [], SETTINGS, silent)
    return {
        domain: [row[keep].tolist() for row, keep in zip(windows.ids, windows.keep, strict=True)]
        for domain, windows in benchmark.windows.items()
    }


@pytest.mark.check(after=2)
@pytest.mark.trust(after=4)
@pytest.mark.parametrize("recipe", [*(by_first(name, 4) for name in ROUTINGS), {"mixing": "logits"}], ids=str)
def test_one_record_of_every_routing(filled: Registry, tmp_path: Path, recipe: dict[str, Any]) -> None:
    filled.compose(["code", "law", "math"], tmp_path / "mixed", Recipe(to="ensemble", **recipe, top_k=2))
    model = load_model(tmp_path / "mixed", "float32", "cpu")
    ids = torch.arange(2, 22).view(2, 10)
    with torch.no_grad(), record_routing(model) as records:
        inside = model(input_ids=ids).logits
    (record,) = records
    weights = record.weights[-1]
    assert expert_count(model) == 3
    assert weights.shape == record.chosen[-1].shape == (20, 3)
    assert torch.allclose(weights.sum(-1), torch.ones(20))
    assert torch.equal(weights, weights.sort(dim=-1, descending=True).values)
    assert torch.equal(record.logits[-1].exp().gather(1, record.chosen[-1]), weights)
    assert record.logits[-1][9].isfinite().sum() == 2  # two are kept
    assert weights[0].tolist() == [weights[0, 0]] * 3  # all are, before there is evidence
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, inside)  # it changes nothing, and it ends
    assert "_weigh" not in vars(model)
    assert len(record.weights) == 1


def test_shared_first_choices_add_up() -> None:
    weights = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.4, 0.3, 0.3]])
    chosen = torch.tensor([[0, 1, 2], [2, 0, 1], [1, 0, 2]])
    tally, names = Tally(1, 3), ["a", "b", "c"]
    record = RoutingRecord(0, chosen=[chosen], weights=[weights], shares_ties=True)
    tally.add("b", [record], torch.ones(1, 3, dtype=torch.bool))
    assert tally.routing(names) == {"b": {"a": [0.5 / 3], "b": [1.5 / 3], "c": [1 / 3]}}
    assert tally.figures(names)["accuracy"] == {"b": [0.5]}
    assert tally.figures(names)["accuracy_by_tokens"] == {"b": {"1": 0.5, "2": 0.0, "4": 1.0}}
    expected = {"a": [(0.5 + 0.3) / 3], "b": [(0.5 + 0.4) / 3], "c": [(1 + 0.3) / 3]}
    for name, found in tally.figures(names)["weights"]["b"].items():
        assert found == pytest.approx(expected[name])


@pytest.mark.check
def test_commands_print_what_was_measured(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    folder, data = tmp_path / "mixed", [f"--data={name}={zoo.test[name]}" for name in PAIR]
    options = ("--windows", 3, "--seq-len", 24, "--device", "cpu")
    recipe = ("--routing", "prompt-perplexity", "--routing-tokens", 8, "--top-k", 1, "--mixing", "logits")
    run(filled, "compose", "--experts", "code,math", "--to", "ensemble", *recipe, "--out", folder)
    notes = filled.report(folder).notes
    assert "the weights of an ensemble are measured on text, never predicted: no evaluation is stored" in notes
    assert not any("predicted from statistics" in note for note in notes)
    (row,) = json.loads(run(filled, "evaluate", folder, *data, *options, "--json").stdout)
    printed = run(filled, "evaluate", folder, *data, *options).stdout
    for domain in PAIR:
        assert f"{row['overall_accuracy'][domain]:.1%}" in printed
    assert row["experts_per_token"] is None
    whole = sum(weight.numel() for weight in load_model(folder, "float32", "cpu").members[0].parameters())
    assert row["active_parameters"] == whole < row["parameters"]
    (made,) = filled.compositions()
    assert made.document["recipe"]["mixing"] == "logits"
    shown = run(filled, "show", made.digest).stdout
    for domain in PAIR:
        told = ", ".join(f"{name} {row['weights'][domain][name][0]:.1%}" for name in PAIR)
        assert f"mean weights on {domain}  {told}" in shown
    figures = filled.report(made.digest)
    assert figures.routing is not None
    assert figures.routing.measured
    assert figures.routing.layers == (0,)
    assert figures.routing.shares == row["routing"]
    assert figures.routing.weights == row["weights"]
    assert figures.routing.load == row["load"]
    text = page(figures)
    assert "Weights by domain" in text
    assert f'<td class="num">{100 * row["weights"]["code"]["math"][0]:.1f}\u00a0%</td>' in text


def test_route_prints_the_weights_at_each_token(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    folder, text = tmp_path / "mixed", "def return self\timport"
    filled.compose(PAIR, folder, Recipe(to="ensemble", temperature=30.0))
    tokens = load_tokenizer(folder)(text)["input_ids"]
    expected = posterior(zoo, tokens, 30.0)
    routed = route(folder, text, "cpu")
    assert (routed.experts, routed.layers, routed.is_alike) == (PAIR, 1, False)
    for token, weights in zip(routed.tokens, expected.tolist(), strict=True):
        assert token.weights[0] == pytest.approx(dict(zip(PAIR, weights, strict=True)), abs=1e-5)
    lines = run(None, "route", folder, text, "--weights", "--device", "cpu").stdout.splitlines()
    assert lines[0].split() == ["token", *PAIR]
    assert len(lines) == 1 + len(tokens)
    for line, token in zip(lines[1:], routed.tokens, strict=True):
        assert line.startswith(repr(token.text))
        assert line.split()[-2:] == [f"{token.weights[0][name]:.1%}" for name in PAIR]
    assert "\t" not in "".join(lines)
    assert "[a]" in run(None, "route", folder, text, "--device", "cpu").stdout
    assert run(None, "route", folder, text, "--layer", 1, code=1).stderr.startswith("error: there is no layer 1")


@pytest.mark.check
def test_whole_prompts_have_no_perplexity(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    chat, data = tmp_path / "chat", f"--data=code={zoo.test['code']}"
    whole = Recipe(to="ensemble", routing="prompt-perplexity", routing_tokens=0, top_k=1)
    filled.compose(PAIR, chat, whole)
    for command in (("evaluate", chat), ("report", chat, "--out", tmp_path / "report.html")):
        told = run(filled, *command, data, code=1).stderr
        assert f"{chat} has no perplexity: its routing tokens are 0" in told
        hint = f"reg compose --recipe {chat / MARKER} --routing-tokens 32 --out DIR"
        assert hint in told
    (made,) = filled.compositions()
    assert filled.evaluations(made) == []
    run(filled, *hint.replace("DIR", str(tmp_path / "scored")).split()[1:])
    config = json.loads((tmp_path / "scored" / "config.json").read_text())
    assert (config["routing"], config["routing_tokens"], config["routing_top_k"]) == ("prompt-perplexity", 32, 1)
    run(filled, "evaluate", tmp_path / "scored", data, "--windows", 2, "--seq-len", 24, "--device", "cpu")
    routed = route(chat, "def return self", "cpu")
    assert len({tuple(token.weights[0].items()) for token in routed.tokens}) == 1  # the whole text's, at each token
