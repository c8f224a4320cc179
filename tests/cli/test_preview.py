"""Proves: `reg preview` prints what is foretold, in a table and as JSON, and refuses what has no part in it."""

import pytest

from registry import Registry
from registry.composition.preview import Preview, PreviewedMember
from registry.registration.expert_overlap import INDISTINCT
from tests.cli.conftest import PAIR, Reg


def test_tables_and_json_hold_the_same_figures(reg: Reg, filled: Registry) -> None:
    words = ("preview", "--experts", "german,code", "--router", "ridge", "--top-k", "1")
    document = reg.json(*words)
    assert [member["ref"] for member in document["members"]] == ["code@1", "german@1"]
    accuracy = [member["accuracy"] for member in document["members"]]
    assert [row[n] for n, row in enumerate(document["confusion"])] == accuracy
    tables = [table.splitlines() for table in reg(*words).stdout.split("\n\n")]
    assert tables[0][0].split() == ["expert", "tokens", "weight", "in", "the", "solve", "routing", "accuracy", "load"]
    assert tables[0][1].split()[3] == f"{accuracy[0]:.1%}"
    assert tables[1][2].split()[-1] == f"{accuracy[1]:.1%}"
    assert tables[2][0].split() == ["accuracy", "in", "layer", "0", "1"]
    assert tables[3][1].split()[:2] == ["code@1", "german@1"]
    assert filled.compositions() == []


def test_warnings_are_printed(reg: Reg, monkeypatch: pytest.MonkeyPatch) -> None:
    members = (
        PreviewedMember("a@1", 10, 0.9, 0.9, 0.8, None),
        PreviewedMember("b@1", 1, 0.1, 0.3, 0.2, "it brings 10.0% of what the routers are solved from"),
    )
    matrix = ((0.9, 0.1), (0.7, 0.3))
    found = Preview(
        members, (0,), (matrix,), {("a@1", "b@1"): 0.8}, ("half of it was looked at",), indistinct_from=INDISTINCT
    )
    monkeypatch.setattr(Registry, "preview", lambda *_, **__: found)
    result = reg("preview", *PAIR)
    assert "b@1 is drowned out: it brings 10.0%" in result.stdout
    assert "a@1 and b@1: routers can hardly separate their tokens" in result.stdout
    assert "half of it was looked at" in result.stderr


def test_refusals(reg: Reg) -> None:
    refused = reg("preview", *PAIR, "--router", "domain-embedding", code=1).stderr
    assert "domain-embedding has no router that can be predicted from the experts' statistics" in refused
    assert "there is no option --to" in reg("preview", "--experts", "code", "--to", "dense", code=2).stderr
