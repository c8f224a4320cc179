"""Proves: every command does what the library does, prints it for people and as JSON, and keeps stdout for data."""

import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from registry import Recipe, Registry, demo
from registry.demo import DemoResult
from registry.evaluation import Row
from registry.statistics.site_sums import RunningSums
from store.catalog import schema
from tests.catalogs import Schemas
from tests.cli.conftest import PAIR, Reg, some_text
from tests.conftest import Zoo, array_folder, files_of, overwrite


@pytest.fixture
def new(tmp_path: Path) -> Reg:
    """The program on a registry that is not there yet."""
    return Reg(tmp_path / "home")


@pytest.mark.check
def test_add_expert_tells_what_was_registered(new: Reg, zoo: Zoo, bare: Path) -> None:
    result = new(
        "add-expert", "code", bare, "--data", zoo.train["code"], "--tokens", 256, "--seq-len", 32, "--batch-size", 4,
        "--tag", "team=a", "--tag", "run=7", "--license", "mit", "--alias", "stable", "--keep-calibration",
        "--dtype", "float32", "--device", "cpu",
    )  # fmt: skip
    lines = result.stdout.splitlines()
    assert lines[0].startswith("registered code@1  ")
    assert lines[1] == "  statistics on 256 tokens: code.train.jsonl"
    shown = new.json("show", "code@stable")
    assert shown["tags"] == {"run": "7", "team": "a"}
    assert shown["content"]["license"] == "mit"
    assert shown["content"]["calibration_kept"] is True
    assert shown["aliases"] == ["stable"]
    assert set(shown["bytes"]) == {"calibration", "file", "mlp", "statistics", "trunk"}
    assert new("add-expert", "code", zoo.experts["code"]).stdout.startswith("registered code@2")
    again = new("add-expert", "code", zoo.experts["code"])
    assert again.stdout == "code@2 already has this content; nothing was stored\n"


def test_add_expert_says_plainly_that_it_sampled(new: Reg, bare: Path) -> None:
    words = ("add-expert", "code", bare, "--tokens", 64, "--seq-len", 16, "--batch-size", 4)
    result = new(*words)
    assert "  no data was given, so the expert generated its own calibration text\n" in result.stdout
    assert result.stderr.startswith("no data was given: the expert writes its own calibration text; --data FILE is")
    found = new.json(*words)
    assert (found["ref"], found["added"], found["self_sampled"]) == ("code@1", False, True)


def test_collect_then_register_elsewhere(new: Reg, bare: Path, zoo: Zoo, tmp_path: Path) -> None:
    words = ("collect", bare, "--data", zoo.train["code"], "--seq-len", 32)
    path, sites = tmp_path / "stats" / "statistics.safetensors", "mlp_input, attention_input, attention_output"
    told = new(*words, "--tokens", 128, "--out", path.parent).stdout
    assert told == f"wrote {path}: {sites}, head_input on 128 tokens: code.train.jsonl\n"
    found = new.json(*words, "--tokens", 64, "--out", tmp_path / "other")
    assert (found["tokens"]["mlp_input"], found["file"]) == (64, str(tmp_path / "other" / path.name))
    assert not new.home.exists()  # no registry is needed
    path.rename(bare / path.name)
    taken = "  statistics on 128 tokens: code.train.jsonl, taken from the checkpoint's statistics.safetensors\n"
    assert taken in new("add-expert", "code", bare, "--tokens", 64).stdout


def test_collect_says_that_it_goes_on(
    new: Reg, bare: Path, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("collect", bare, "--data", zoo.train["code"], "--tokens", 128, "--seq-len", 32, "--batch-size", 1)
    add, calls = RunningSums.add, count(1)

    def interrupted(*arguments: Any) -> Any:
        if next(calls) == 15:  # the third window, first layer: of each window 2 layers × 3 sites, and the head's
            raise KeyboardInterrupt
        return add(*arguments)

    monkeypatch.setattr(RunningSums, "add", interrupted)
    new(*words, "--out", tmp_path, code=130)
    resuming = "resuming an interrupted pass: 64 of 128 tokens are counted already"
    assert new(*words, "--out", tmp_path).stderr.splitlines()[0] == resuming
    assert resuming not in new(*words, "--out", tmp_path).stderr


def test_compose_and_plan(reg: Reg, filled: Registry, tmp_path: Path) -> None:
    out = tmp_path / "moe"
    plan = reg("compose", "--experts", "math,code", "--plan").stdout
    for part in ("    0  code@1", "    1  math@1", "mixtral, float32", "peak memory"):
        assert part in plan
    as_json = reg.json("compose", "--experts", "math", "--experts", "code@1", "--plan")
    assert (as_json["versions"], as_json["out"]) == (["code@1", "math@1"], None)
    assert not out.exists()
    result = reg(
        "compose", "--experts", "math, code", "--out", out, "--trunk", "base", "--base", "base@1", "--router", "ridge",
        "--lam", "0.5", "--top-k", 2, "--temperature", "0.5", "--weights", "code=2,math=0.5", "--dtype", "bfloat16",
    )  # fmt: skip
    assert result.stdout.startswith(f"composed code@1, math@1 into {out}  ")
    recipe = Recipe(
        trunk="base",
        router="ridge",
        lam=0.5,
        top_k=2,
        temperature=0.5,
        weights={"code": 2.0, "math": 0.5},
        dtype="bfloat16",
    )
    filled.compose(["code", "math"], tmp_path / "same", recipe, base="base")
    assert files_of(out) == files_of(tmp_path / "same")
    before = files_of(out)
    assert reg.json("compose", "--experts", "code", "--out", out, "--force")["out"] == str(out)
    assert files_of(out) != before
    words = reg("compose", "--experts", "code", "--plan", "--trunk", "base").stdout.split()
    assert words[words.index("trunk") + 1] == "base"
    assert words[words.index("base@1") - 1] == "base"


def test_a_plan_names_what_it_makes_and_what_was_set(reg: Reg) -> None:
    def fields(*words: object) -> dict[str, str]:
        lines = reg("compose", *PAIR, "--plan", *words).stdout.splitlines()
        start = next(index for index, line in enumerate(lines) if line.startswith("composition"))
        width = len(lines[start]) - len(lines[start].split(maxsplit=1)[1])
        return {line[:width].strip(): line[width:] for line in lines[start + 1 :]}

    plain, always = fields(), {"host", "parameters", "bytes", "peak memory"}
    recipe = {"to": "moe", "trunk": "regmean", "router": "context", "top k": "1"}
    assert {key: value for key, value in plain.items() if key not in {*always, "context routing adds"}} == recipe
    ridge = fields("--router", "ridge", "--balance", "tokens", "--alpha", "0.9", "--temperature", "0.05", "--normalize")
    assert {key: value for key, value in ridge.items() if key not in always} == {
        **recipe, "alpha": "0.9", "router": "ridge", "lam": "0.01", "normalize": "yes", "top k": "2",
        "balance": "tokens",
    }  # fmt: skip
    ensemble = fields("--to", "ensemble")
    assert {key: value for key, value in ensemble.items() if key not in {*always, "note"}} == {
        "to": "ensemble", "routing": "posterior", "top k": "2",
    }  # fmt: skip


@pytest.mark.check
def test_list_show_compositions_log(reg: Reg, tmp_path: Path) -> None:
    reg("compose", *PAIR, "--trunk", "base", "--out", tmp_path / "moe")
    listed = reg("list").stdout.splitlines()
    assert listed[0].split() == ["version", "kind", "digest", "parameters", "tokens", "aliases", "tags", "state"]
    everyone = ["base@1", "biomed@1", "code@1", "german@1", "law@1", "math@1"]
    assert [line.split()[0] for line in listed[1:]] == everyone
    assert [version["ref"] for version in reg.json("list", "--kind", "expert")] == everyone[1:]
    shown = reg("show", "math").stdout
    for word in ("expert", "math@1", "llama, 2 layers, hidden size 32, float32", "mlp_input: "):
        assert word in shown
    assert "code@1,math@1  base model base@1\n" in shown
    (made,) = reg.json("compositions", "math")
    assert made["members"] == ["base@1", "code@1", "math@1"]  # all that it was made from
    header, row = reg("compositions").stdout.splitlines()
    assert header.split() == ["composition", "made", "members", "base", "trunk", "router", "top-k"]
    assert row.split()[0] == made["digest"][:12]
    assert row.split()[2:5] == ["code@1,math@1", "base@1", "base"]
    events = reg.json("log", "--limit", 2)
    assert [event["action"] for event in events] == ["compose", "add-expert"]
    assert reg("log").stdout.splitlines()[-1].endswith("  base@1 was registered as a base model")
    assert reg.json("log", "math")[0]["subject"] == "math@1"
    assert f"7 events, the last of digest {events[0]['digest']}" in reg("verify").stdout.splitlines()


def test_alias(reg: Reg, zoo: Zoo) -> None:
    assert reg("alias", "math", "good").stdout == "math@good is math@1\n"
    assert reg.json("alias", "math@1", "good") == {"alias": "math@good", "version": "math@1", "before": "math@1"}
    reg("add-expert", "math", zoo.experts["law"])
    assert reg("alias", "math@2", "good").stdout == "math@good is math@2 (was math@1)\n"
    assert reg("alias", "math", "good", "--delete").stdout == "deleted math@good\n"
    assert "math has no alias 'good'" in reg("show", "math@good", code=1).stderr
    assert reg("alias", "math@2", "stable", "--protect").stdout == "math@stable is math@2, protected\n"
    assert "stable (protected)" in reg("show", "math@2").stdout
    for words, line in (
        (("alias", "math@1", "stable"), "alias math@1 stable --force"),
        (("alias", "math", "stable", "--delete"), "alias math stable --delete --force"),
        (("add-expert", "math", zoo.experts["code"], "--alias", "stable"), "alias math@<number> stable --force"),
    ):
        refused = reg(*words, code=1).stderr
        assert "error: math@stable is protected" in refused
        assert line in refused
    assert "math has no version 3" in reg("show", "math@3", code=1).stderr
    assert reg("verify").stdout
    reg("add-expert", "math", zoo.experts["law"], "--alias", "stable")  # it points there
    assert reg("alias", "math@1", "stable", "--force").stdout == "math@stable is math@1, protected (was math@2)\n"
    assert reg.json("show", "math@stable")["protected"] == ["stable"]
    assert "exclude one another" in reg("alias", "math", "stable", "--delete", "--protect", code=2).stderr
    assert reg("alias", "math", "stable", "--delete", "--force").stdout == "deleted math@stable\n"


@pytest.mark.check
def test_opt_out_asks_and_lists(reg: Reg, tmp_path: Path) -> None:
    for out in ("moe", "again", "moe"):
        reg("compose", *PAIR, "--out", tmp_path / out, "--force")
    reg("compose", "--experts", "math", "--out", tmp_path / "alone")
    reg("compose", "--experts", "code", "--out", tmp_path / "other")
    asked = reg("opt-out", "math", input="n\n", code=1)
    assert "Withdraw math@1 for good? [y/N]" in asked.stderr
    told = reg("opt-out", "math", "--purge", input="", code=1).stderr
    assert "error: math was not opted out: no terminal to confirm on" in told
    assert re.search(r"next: to confirm in advance: reg --home \S+ opt-out math --purge --yes\n", told)
    assert "math@1" in reg("list").stdout
    lines = reg("opt-out", "math", input="y\n").stdout.splitlines()
    assert lines[:2] == ["withdrew math@1", "  2 compositions were made from it:"]
    assert "code@1,math@1" in lines[2]
    assert lines[4] == "  written to these folders, which contain it until you delete them:"
    assert lines[5:] == [f"    {tmp_path / name}" for name in ("moe", "again", "alone")]
    found = reg.json("opt-out", "math", "--yes")["compositions"]
    assert [made["folders"] for made in found] == [
        [str(tmp_path / "moe"), str(tmp_path / "again")],
        [str(tmp_path / "alone")],
    ]
    assert "math@1" not in reg("list").stdout
    assert "withdrawn" in reg("list", "--all").stdout
    assert "withdrawn" in reg("show", "math").stdout
    assert "  deleted " in reg("opt-out", "math", "--purge", "--yes").stdout
    shown = dict(line.split(maxsplit=1) for line in reg("show", "math@1").stdout.splitlines())
    assert (shown["state"], shown["parameters"]) == ("purged", "purged")
    (listed,) = [line for line in reg("list", "--all").stdout.splitlines() if line.startswith("math@1")]
    assert listed.split()[3] == "purged"
    purged = reg.json("opt-out", "code", "--purge", "--yes")
    assert (purged["purged"], purged["versions"][0]["ref"]) == (True, "code@1")
    assert purged["withdrew"] == purged["deleted"] == ["code@1"]
    assert purged["deleted_arrays"] > 5


def test_opting_out_again_says_that_it_was_done(reg: Reg, zoo: Zoo) -> None:
    reg("opt-out", "math", "--yes")
    withdrawn = reg.json("list", "--all")[-1]["withdrawn_at"]
    already = f"math@1 was opted out already at {withdrawn}"
    assert reg("opt-out", "math").stdout.splitlines() == [already, "  0 compositions were made from it"]  # not asked
    found = reg.json("opt-out", "math")
    assert (found["withdrew"], found["deleted"], found["purged"]) == ([], [], False)
    assert found["versions"][0]["withdrawn_at"] == withdrawn

    asked = reg("opt-out", "math", "--purge", input="y\n")
    assert "Delete the arrays that only math@1 uses for good? [y/N]" in asked.stderr
    assert asked.stdout.splitlines()[0] == already
    assert asked.stdout.splitlines()[1].startswith("  deleted ")
    assert reg("opt-out", "math", "--purge").stdout.splitlines() == [
        already,
        f"  it was purged already at {reg.json('show', 'math@1')['purged_at']}",
        "  0 compositions were made from it",
    ]
    assert reg.json("opt-out", "math", "--purge")["deleted"] == []

    reg("add-expert", "math", zoo.experts["math"])
    both = reg("opt-out", "math", input="y\n")
    assert "Withdraw math@2 for good? [y/N]" in both.stderr
    assert both.stdout.splitlines()[:2] == ["withdrew math@2", already]


def test_export(reg: Reg, zoo: Zoo, tmp_path: Path) -> None:
    assert reg("export", "math", "--out", tmp_path / "back").stdout == f"wrote math@1 to {tmp_path / 'back'}\n"
    assert (tmp_path / "back" / "config.json").read_bytes() == (zoo.experts["math"] / "config.json").read_bytes()
    assert reg.json("export", "code", "--out", tmp_path / "code")["ref"] == "code@1"


@pytest.mark.check
def test_evaluate(reg: Reg, zoo: Zoo, tmp_path: Path) -> None:
    reg("compose", *PAIR, "--out", tmp_path / "moe")
    words = ("evaluate", tmp_path / "moe", *some_text(zoo, "code", "math", windows=2))
    table = reg(*words, "--baselines").stdout
    assert [line.split()[0] for line in table.splitlines() if line] == [
        "perplexity", "base", "expert", "expert", "averaged", "moe", "(tokens)",
        "normalised", "base", "expert", "expert", "averaged", "moe",
        "routing", "moe", "load", "moe", "parameters", "base", "expert", "expert", "averaged", "moe",
    ]  # fmt: skip
    assert table.splitlines()[1].startswith("base model base@1  ")
    assert "\naveraged weights  " in table
    assert "average " not in table  # a row of weights and a column of means, not one word for both
    header = next(line for line in table.splitlines() if line.startswith("normalised"))
    assert header.split()[-3:] == ["mean", "95%", "interval"]
    (row,) = reg.json(*words)
    assert row["name"] == "moe"
    assert set(row["perplexity"]) == {"code", "math"}
    assert row["tokens"] == {"code": 62, "math": 62}
    assert row["average"] == sum(row["score"].values()) / 2


def test_evaluate_says_on_stderr_what_it_cannot_tell(new: Reg, zoo: Zoo) -> None:
    words = ("evaluate", zoo.base, "--data", f"x={zoo.test['law']}", "--windows", 2)
    result = new(*words)
    assert result.stderr.splitlines() == [
        "windows have 128 tokens, not 256: base takes no more",
        "no normalised score for x: no expert of that name is registered",
    ]
    assert "normalised" not in result.stdout
    assert new.json(*words)[0]["tokens"] == {"x": 254}


def test_verify_and_gc(reg: Reg, filled: Registry) -> None:
    assert reg("verify").stdout.startswith("intact: 6 versions, ")
    assert reg.json("verify")["problems"] == []
    (link, *_) = [each for each in filled.arrays_of(filled.resolve("math")) if each.role == "mlp"]
    overwrite(array_folder(filled, link.digest) / "c.0.0", b"")
    stray = filled.home.arrays / "ab" / ("ab" + "0" * 62)
    stray.mkdir(parents=True)
    told = reg("verify", code=1).stdout
    assert f"problem: math@1, mlp {link.name}: array {link.digest[:12]} is damaged" in told
    assert "1 problem: 6 versions" in told
    assert "1 array belongs to no version" in told
    assert reg.json("verify", code=1)["orphans"] == 1
    assert reg("gc", "--dry-run").stdout.splitlines() == ["would delete 1 array (0 B)", f"  {stray.name[:12]}  0 B"]
    partial = filled.home.path / "partial" / "x.safetensors"
    partial.parent.mkdir(exist_ok=True)
    partial.write_bytes(bytes(2000))
    line = "1 running or interrupted pass (2.0 kB)"
    assert reg("gc", "--dry-run").stdout.splitlines()[-2:] == [f"would delete {line}", f"  {partial}  2.0 kB"]
    kinds = ("passes", "pass_bytes", "merged", "merged_bytes", "work", "work_bytes", "cached", "cached_bytes")
    nothing = dict.fromkeys(kinds, 0)
    found = {"digests": [stray.name], "bytes": 0, **nothing, "passes": 1, "pass_bytes": 2000}
    found["pieces"] = [{"name": stray.name, "bytes": 0}, {"name": str(partial), "bytes": 2000}]
    assert reg.json("gc", "--dry-run") == found | {"dry_run": True}
    assert (stray.exists(), partial.exists()) == (True, True)
    assert reg("gc").stdout.splitlines()[-1] == f"deleted {line}"
    assert (stray.exists(), partial.exists()) == (False, False)
    assert reg.json("gc") == {"digests": [], "bytes": 0, **nothing, "pieces": [], "dry_run": False}


@pytest.mark.sqlite
def test_db(new: Reg, tmp_path: Path) -> None:
    new.home.mkdir()
    none = new("--database", f"sqlite:///{tmp_path / 'catalog.sqlite'}", "db", "current")
    assert none.stdout == f"no catalog yet (this program works with {schema.HEAD})\n"
    assert not (tmp_path / "catalog.sqlite").exists()
    assert new("db", "upgrade").stdout == f"the catalog is at {schema.HEAD} (was at nothing)\n"
    assert new("db", "upgrade").stdout == f"the catalog is at {schema.HEAD}\n"
    assert new.json("db", "current") == {"current": schema.HEAD, "head": schema.HEAD}
    assert new.json("db", "upgrade") == {"before": schema.HEAD, "after": schema.HEAD, "backup": None}


def test_demo_fails_where_a_guarantee_does_not_hold(new: Reg, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows, made = [Row("moe", {"code": 2.0}, {"code": 90.0})], {"a,b": "4" * 64, "a": "5" * 64}
    broken = DemoResult(tmp_path, ("code",), rows, {("a", "b"): "1", ("b", "a"): "3"}, "2", "2", "math", made)
    monkeypatch.setattr(demo, "run_demo", lambda *_, **__: broken)
    result = new("demo", code=1)
    assert "NOT bit for bit" in result.stdout
    assert "  3  registered in the order b, a" in result.stdout
    assert "a guarantee does not hold" in result.stderr
    assert new.json("demo", code=1)["orders"] == {"a,b": "1", "b,a": "3"}


@pytest.mark.check
def test_db_copy(filled: Registry, tmp_path: Path, postgres_server: str) -> None:
    """The catalog goes to PostgreSQL and back; both work on, with the same arrays, and hide the password."""
    schemas, reg = Schemas(postgres_server), Reg(filled.home.path)
    expected = [version.ref for version in filled.versions()]
    filled.close()
    with_password = make_url(schemas.fresh()).set(password="hunter2").render_as_string(hide_password=False)
    try:
        result = reg("db", "copy", filled.home.database, with_password)
        assert "hunter2" not in result.output
        assert result.stderr.splitlines()[-1].startswith("  next: export REG_DATABASE='postgresql+psycopg://reg:***@/")
        with Registry(reg.home, database=with_password) as moved:
            assert [version.ref for version in moved.versions()] == expected
            assert moved.verify().problems == ()
            moved.compose(["code", "math"], tmp_path / "moe")
        again = reg("db", "copy", filled.home.database, with_password, code=1)
        assert "holds a catalog already, with rows in" in again.output
    finally:
        schemas.drop()
