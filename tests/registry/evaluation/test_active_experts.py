"""Proves: a folder scored with k active experts gives what the folder with `num_experts_per_tok` k gives, bit for bit.

On every host; nothing is written, the figures are stored, and what has no k experts is refused before it is scored.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

from registry import Recipe, Registry
from registry.errors import InvalidInputError
from registry.evaluation import Row
from registry.evaluation.model_folders import active_experts_of
from registry.runtime.gates import experts_per_token, gates
from tests.conftest import Shared, Zoo, files_of
from tests.registry.evaluation.conftest import PAIR, SETTINGS, Data
from tests.registry.hosts.test_hosts import IDS, load, shared_variant
from tests.registry.runtime.test_gates import ONE_EACH


@pytest.mark.check(after=2)
@pytest.mark.trust(after=4)
@pytest.mark.parametrize("host", sorted(ONE_EACH))
def test_every_host_takes_the_number(host: str, tmp_path: Path, shared: Shared) -> None:
    with shared_variant(ONE_EACH[host], tmp_path, shared) as variant:
        variant.registry.compose(["code", "math"], tmp_path / "moe", variant.recipe(trunk="base", top_k=1))
        two = shutil.copytree(tmp_path / "moe", tmp_path / "two")
        config = json.loads((two / "config.json").read_text())
        assert config["num_experts_per_tok"] == 1
        (two / "config.json").write_text(json.dumps(config | {"num_experts_per_tok": 2}))
        moe, other = load(tmp_path / "moe"), load(two)
        with torch.no_grad():
            before, wanted = moe(input_ids=IDS).logits, other(input_ids=IDS).logits
            with experts_per_token(moe, 2):
                assert torch.equal(moe(input_ids=IDS).logits, wanted)
                assert {gate.top_k for gate in gates(moe, every=True)} == {2}
            assert torch.equal(moe(input_ids=IDS).logits, before)
            assert not torch.equal(wanted, before)
        for count in (0, 3):
            with pytest.raises(InvalidInputError, match=f"{count} experts per token"), experts_per_token(moe, count):
                pass


def figures(row: Row) -> tuple[object, ...]:
    return row.perplexity, row.score, row.active_parameters, row.parameters, row.experts_per_token


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("recipe", [Recipe(top_k=2), Recipe(router="ridge", top_k=2)], ids=["context", "ridge"])
def test_rows_are_those_of_folders_with_that_number(filled: Registry, zoo: Zoo, tmp_path: Path, recipe: Recipe) -> None:
    data = {name: [zoo.test[name]] for name in ("code", "law", "math")}
    moe = tmp_path / "moe"
    filled.compose(list(data), moe, recipe)
    files = files_of(moe)
    rows = filled.evaluate([moe], data, SETTINGS, active_experts="all")
    assert [row.name for row in rows] == ["moe", "moe top-1", "moe top-2", "moe top-3"]
    assert [row.experts_per_token for row in rows] == [2, 1, 2, 3]
    assert files_of(moe) == files
    filled.evaluate([moe], data, SETTINGS)  # stored beside those with numbers
    plain, stored = filled.evaluations(filled.compositions()[0])
    assert stored.document["active_experts"] == [row.document() for row in rows[1:]]
    assert stored.document["figures"] == rows[0].document() == plain.document["figures"]
    assert "active_experts" not in plain.document
    assert figures(rows[2]) == figures(rows[0])
    assert [(row.load, row.accuracy, row.routing, row.accuracy_by_tokens) for row in rows[1:]] == [({}, {}, {}, {})] * 3
    for row in rows[1:]:
        folder = shutil.copytree(moe, tmp_path / row.name)
        config = json.loads((folder / "config.json").read_text()) | {"num_experts_per_tok": row.experts_per_token}
        (folder / "config.json").write_text(json.dumps(config))
        (made,) = filled.evaluate([folder], data, SETTINGS)
        assert figures(made) == figures(row)
    sizes = [row.active_parameters or 0 for row in rows[1:]]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == rows[0].parameters
    rows = filled.evaluate([moe], data, SETTINGS, active_experts=[3, 1, 3])
    assert [row.name for row in rows] == ["moe", "moe top-1", "moe top-3"]


@pytest.mark.check
def test_what_has_no_such_experts_is_refused_first(
    filled: Registry, moe: Path, zoo: Zoo, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.compose(PAIR, tmp_path / "btm", Recipe(to="ensemble"))
    monkeypatch.setattr("registry.evaluation.service.make_benchmark", lambda *_: pytest.fail("nothing is scored"))
    for folder in (zoo.base, tmp_path / "btm"):
        with pytest.raises(InvalidInputError, match="it is no mixture"):
            filled.evaluate([moe, folder], data, SETTINGS, active_experts="all")
    for count in (3, 0, -1):
        with pytest.raises(InvalidInputError, match=f"{count} active experts are asked for, .*moe has 2") as caught:
            filled.evaluate([moe], data, SETTINGS, active_experts=[1, count])
        assert caught.value.hint == "give --active-experts from 1 to 2, or all"
    with pytest.raises(InvalidInputError, match="active experts need a folder"):
        filled.evaluate([], data, SETTINGS, experts=["code"], methods=["context"], active_experts=[1])
    with pytest.raises(InvalidInputError, match="active_experts must be a list"):
        filled.evaluate([moe], data, SETTINGS, active_experts="1,2")  # type: ignore[arg-type]


@pytest.mark.parametrize(("number", "count"), [(10**12, 1024), ("2", None), (None, None), (0, None)])
def test_number_of_experts_in_a_file_is_bounded(tmp_path: Path, number: object, count: int | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"num_local_experts": number}))
    if count is not None:
        assert len(active_experts_of(tmp_path, "all")) == count
        return
    with pytest.raises(InvalidInputError, match="it is no mixture"):
        active_experts_of(tmp_path, "all")
