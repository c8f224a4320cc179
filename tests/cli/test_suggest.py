"""Proves: `reg suggest` prints whom to compose for a text and the next command, and refuses contradictions."""

from pathlib import Path

from registry import Registry
from tests.cli.conftest import Reg
from tests.conftest import Zoo
from tests.models import sentences, write_jsonl


def test_table_json_and_next_command(reg: Reg, filled: Registry, tmp_path: Path) -> None:
    text = write_jsonl(tmp_path / "text.jsonl", sentences("code", 40, seed=9) + sentences("german", 20, seed=9))
    document = reg.json("suggest", "--like", text)
    assert [one["ref"] for one in document["experts"]] == ["code@1", "german@1"]
    result = reg("suggest", "--like", text)
    header, first, second = result.stdout.splitlines()
    assert header.split()[0] == "expert"
    assert first.split() == ["code@1", f"{document['experts'][0]['share']:.0%}", *first.split()[2:]]
    assert second.split()[0] == "german@1"
    assert "next: reg --home" in result.stderr
    assert "compose --experts code@1,german@1 --out" in result.stderr
    assert reg("suggest", "--like", text, "--budget", 1, "-q").stdout.split() == ["code@1"]
    assert filled.compositions() == []


def test_experts_of_counts_alone_are_composed_by_a_trunk_that_needs_no_more(reg: Reg, zoo: Zoo, bare: Path) -> None:
    reg("add-expert", "counted", bare, "--data", zoo.train["code"], "--sites", "counts")
    result = reg("suggest", "--like", zoo.test["code"], "--without", "code")
    assert result.stdout.splitlines()[1].split()[0] == "counted@1"
    assert "compose --experts counted@1 --trunk mean --out" in result.stderr


def test_nobodys_text(reg: Reg, zoo: Zoo) -> None:
    result = reg("suggest", "--like", zoo.test["law"], "--without", "law,code")
    assert "nobody knows this text" in result.stdout
    assert f"train-expert NAME --base base --data {zoo.test['law']}" in result.stderr


def test_refusals(reg: Reg, zoo: Zoo) -> None:
    like = ("--like", zoo.test["law"])
    assert "exclude one another" in reg("suggest", *like, "--budget", 2, "--max-bytes", "1GB", code=2).stderr
    assert "--like is missing" in reg("suggest", code=2).stderr
    assert (
        "to be chosen and to be left out" in reg("suggest", *like, "--must", "law", "--without", "law", code=1).stderr
    )
    assert "fit into" in reg("suggest", *like, "--max-bytes", "1KB", code=1).stderr
