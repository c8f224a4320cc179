"""Proves: `reg preview` prints what is foretold, in a table and as JSON, and refuses what has no part in it."""

import json

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import Registry
from registry.composition.preview import Preview, PreviewedMember


def run(registry: Registry, *words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["--home", str(registry.home.path), "preview", *words])
    assert result.exit_code == code, result.output
    return result


def test_tables_and_json_hold_the_same_figures(filled: Registry) -> None:
    words = ("--experts", "german,code", "--router", "ridge", "--top-k", "1")
    document = json.loads(run(filled, *words, "--json").stdout)
    assert [member["ref"] for member in document["members"]] == ["code@1", "german@1"]
    accuracy = [member["accuracy"] for member in document["members"]]
    assert [row[n] for n, row in enumerate(document["confusion"])] == accuracy
    tables = [table.splitlines() for table in run(filled, *words).stdout.split("\n\n")]
    assert tables[0][0].split() == ["expert", "tokens", "weight", "in", "the", "solve", "routing", "accuracy", "load"]
    assert tables[0][1].split()[3] == f"{accuracy[0]:.1%}"
    assert tables[1][2].split()[-1] == f"{accuracy[1]:.1%}"
    assert tables[2][0].split() == ["accuracy", "in", "layer", "0", "1"]
    assert tables[3][1].split()[:2] == ["code@1", "german@1"]
    assert filled.compositions() == []


def test_warnings_are_printed(filled: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    members = (
        PreviewedMember("a@1", 10, 0.9, 0.9, 0.8, None),
        PreviewedMember("b@1", 1, 0.1, 0.3, 0.2, "it brings 10.0% of what the routers are solved from"),
    )
    matrix = ((0.9, 0.1), (0.7, 0.3))
    found = Preview(members, (0,), (matrix,), {("a@1", "b@1"): 0.8}, ("half of it was looked at",))
    monkeypatch.setattr(Registry, "preview", lambda *_, **__: found)
    result = run(filled, "--experts", "code,math")
    assert "b@1 is drowned out: it brings 10.0%" in result.stdout
    assert "a@1 and b@1: routers can hardly separate their tokens" in result.stdout
    assert "half of it was looked at" in result.stderr


def test_refusals(filled: Registry) -> None:
    assert (
        "domain-embedding has no router that can be predicted from the experts' statistics"
        in run(filled, "--experts", "code,math", "--router", "domain-embedding", code=1).stderr
    )
    assert "there is no option --to" in run(filled, "--experts", "code", "--to", "dense", code=2).stderr
    assert "there is no expert 'cod'; did you mean 'code'?" in run(filled, "--experts", "cod", code=1).stderr
