"""Proves: every command does what the library does, prints it for people and as JSON, and keeps stdout for data."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from sqlalchemy import make_url

from cli.main import main
from registry import Registry
from registry.io.model_folder import MARKER
from store.catalog import schema
from tests.catalogs import Schemas
from tests.conftest import EXPERTS, Shared, Zoo, array_folder, copy_home, files_of, overwrite

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs `reg --home … ARGS` and expects success, unless told otherwise."""

    def invoke(*arguments: object, code: int = 0, **options: Any) -> Result:
        words = ["--home", str(tmp_path / "home"), *map(str, arguments)]
        result = CliRunner().invoke(main, words, **options)
        assert result.exit_code == code, result.output
        return result

    return invoke


def document(result: Result) -> Any:
    """Return the JSON that a command printed, which must be all it printed on stdout."""
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def _ready_home(zoo: Zoo, shared: Shared) -> Path:
    def make(root: Path) -> Path:
        for words in (
            ("add-base", "base", zoo.base),
            *(("add-expert", name, zoo.experts[name]) for name in EXPERTS[:2]),
        ):
            result = CliRunner().invoke(main, ["--home", str(root / "home"), *map(str, words)])
            assert result.exit_code == 0, result.output
        return root / "home"

    return shared.get("ready", make)


@pytest.fixture
def ready(run: Run, _ready_home: Path, tmp_path: Path) -> Run:
    """A home with base, code and math."""
    copy_home(_ready_home, tmp_path / "home")
    return run


@pytest.mark.check
def test_add_expert_tells_what_was_registered(run: Run, zoo: Zoo, bare: Path) -> None:
    result = run(
        "add-expert", "code", bare, "--data", zoo.train["code"], "--tokens", 256, "--seq-len", 32, "--batch-size", 4,
        "--tag", "team=a", "--tag", "run=7", "--license", "mit", "--alias", "stable", "--keep-calibration",
        "--dtype", "float32", "--device", "cpu",
    )  # fmt: skip
    lines = result.stdout.splitlines()
    assert lines[0].startswith("registered code@1  ")
    assert lines[1] == "  statistics on 256 tokens: code.train.jsonl"
    shown = document(run("show", "code@stable", "--json"))
    assert shown["tags"] == {"run": "7", "team": "a"}
    assert shown["content"]["license"] == "mit"
    assert shown["content"]["calibration_kept"] is True
    assert shown["aliases"] == ["stable"]
    assert set(shown["bytes"]) == {"calibration", "file", "mlp", "statistics", "trunk"}
    again = run("add-expert", "code", zoo.experts["code"])
    assert again.stdout.startswith("registered code@2")
    assert run("add-expert", "code", zoo.experts["code"]).stdout == (
        "code@2 already has this content; nothing was stored\n"
    )


def test_add_expert_says_plainly_that_it_sampled(run: Run, bare: Path) -> None:
    words = ("add-expert", "code", bare, "--tokens", 64, "--seq-len", 16, "--batch-size", 4)
    result = run(*words)
    assert "  no data was given, so the expert generated its own calibration text\n" in result.stdout
    assert result.stderr.startswith("no data was given: the expert writes its own calibration text; --data FILE is")
    found = document(run(*words, "--json"))
    assert (found["ref"], found["added"], found["self_sampled"]) == ("code@1", False, True)


def test_add_base_as_json(run: Run, zoo: Zoo) -> None:
    found = document(run("add-base", "base", zoo.base, "--json"))
    assert (found["ref"], found["kind"], found["added"]) == ("base@1", "base", True)
    assert "id" not in found


def test_collect_then_register_elsewhere(run: Run, bare: Path, zoo: Zoo, tmp_path: Path) -> None:
    result = run(
        "collect", bare, "--data", zoo.train["code"], "--tokens", 128, "--seq-len", 32, "--out", tmp_path / "stats"
    )
    path = tmp_path / "stats" / "statistics.safetensors"
    assert (
        result.stdout
        == f"wrote {path}: mlp_input, attention_input, attention_output, head_input on 128 tokens: code.train.jsonl\n"
    )
    assert not (tmp_path / "home").exists()  # no registry is needed
    path.rename(bare / path.name)
    assert (
        "  statistics on 128 tokens: code.train.jsonl, taken from the checkpoint's statistics.safetensors\n"
        in run("add-expert", "code", bare, "--tokens", 64).stdout
    )
    found = document(run("collect", bare, "--data", zoo.train["code"], "--tokens", 64, "--out", tmp_path, "--json"))
    assert found["tokens"]["mlp_input"] >= 64
    assert found["file"] == str(tmp_path / path.name)


def test_collect_says_that_it_goes_on(
    run: Run, bare: Path, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from registry.statistics.accumulator import RunningSums

    words = ("collect", bare, "--data", zoo.train["code"], "--tokens", 128, "--seq-len", 32, "--batch-size", 1)
    add, calls = RunningSums.add, 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 15:  # the third window, first layer: of each window 2 layers × 3 sites, and the head's
            raise KeyboardInterrupt
        return add(*arguments)

    monkeypatch.setattr(RunningSums, "add", interrupted)
    run(*words, "--out", tmp_path, code=130)
    resuming = "resuming an interrupted pass: 64 of 128 tokens are counted already"
    assert run(*words, "--out", tmp_path).stderr.splitlines()[0] == resuming
    assert resuming not in run(*words, "--out", tmp_path).stderr


@pytest.mark.check
def test_base_model_is_no_member_in_the_table(ready: Run, tmp_path: Path) -> None:
    ready("compose", "--experts", "math,code", "--trunk", "base", "--out", tmp_path / "moe")
    header, row = ready("compositions").stdout.splitlines()
    assert header.split() == ["composition", "made", "members", "base", "trunk", "router", "top-k"]
    assert row.split()[2:5] == ["code@1,math@1", "base@1", "base"]
    assert "code@1,math@1  base model base@1\n" in ready("show", "math").stdout


def test_compose_and_plan(ready: Run, tmp_path: Path) -> None:
    out = tmp_path / "moe"
    plan = ready("compose", "--experts", "math,code", "--plan").stdout
    assert not out.exists()
    assert "    0  code@1" in plan
    assert "    1  math@1" in plan
    assert "mixtral, float32" in plan
    assert "peak memory" in plan
    as_json = document(ready("compose", "--experts", "math", "--experts", "code@1", "--plan", "--json"))
    assert as_json["versions"] == ["code@1", "math@1"]
    assert as_json["out"] is None
    result = ready(
        "compose", "--experts", "math, code", "--out", out, "--trunk", "base", "--base", "base@1", "--router", "ridge",
        "--lam", "0.5", "--top-k", 2, "--temperature", "0.5", "--weights", "code=2,math=0.5", "--dtype", "bfloat16",
    )  # fmt: skip
    assert result.stdout.startswith(f"composed code@1, math@1 into {out}  ")
    recipe = json.loads((out / MARKER).read_text())["recipe"]
    assert recipe == {
        "to": "moe",
        "trunk": "base",
        "trunk_options": {},
        "router": "ridge",
        "lam": 0.5,
        "normalize": False,
        "top_k": 2,
        "temperature": 0.5,
        "token_weight": "none",
        "refine": 0,
        "refine_mlp": False,
        "weights": {"code": 2.0, "math": 0.5},
        "balance": "none",
        "dtype": "bfloat16",
    }
    before = files_of(out)
    again = document(ready("compose", "--experts", "code", "--out", out, "--force", "--json"))
    assert again["out"] == str(out)
    assert files_of(out) != before
    assert (
        document(ready("compose", "--experts", "code", "--plan", "--trunk", "base", "--json"))["base"]["name"] == "base"
    )
    words = ready("compose", "--experts", "code", "--plan", "--trunk", "base").stdout.split()
    assert words[words.index("trunk") + 1] == "base"
    assert words[words.index("base@1") - 1] == "base"


def test_a_plan_names_what_it_makes_and_what_was_set(ready: Run) -> None:
    def fields(*words: object) -> dict[str, str]:
        lines = ready("compose", "--experts", "math,code", "--plan", *words).stdout.splitlines()
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
def test_list_show_compositions_log(ready: Run, tmp_path: Path) -> None:
    ready("compose", "--experts", "math,code", "--out", tmp_path / "moe")
    listed = ready("list").stdout.splitlines()
    assert listed[0].split() == ["version", "kind", "digest", "parameters", "tokens", "aliases", "tags", "state"]
    assert [line.split()[0] for line in listed[1:]] == ["base@1", "code@1", "math@1"]
    assert [v["ref"] for v in document(ready("list", "--kind", "expert", "--json"))] == ["code@1", "math@1"]
    shown = ready("show", "math").stdout
    for word in (
        "expert",
        "math@1",
        "llama, 2 layers, hidden size 32, float32",
        "mlp_input: ",
        "composition",
    ):
        assert word in shown
    made = document(ready("compositions", "math", "--json"))
    assert [c["members"] for c in made] == [["code@1", "math@1"]]
    assert made[0]["digest"][:12] in ready("compositions").stdout
    events = document(ready("log", "--limit", 2, "--json"))
    assert [e["action"] for e in events] == ["compose", "add-expert"]
    assert ready("log").stdout.splitlines()[-1].endswith("  base@1 was registered as a base model")
    assert document(ready("log", "math", "--json"))[0]["subject"] == "math@1"
    assert f"4 events, the last of digest {events[0]['digest']}" in ready("verify").stdout.splitlines()


def test_alias(ready: Run) -> None:
    assert ready("alias", "math", "good").stdout == "math@good is math@1\n"
    assert document(ready("alias", "math@1", "good", "--json")) == {
        "alias": "math@good",
        "version": "math@1",
        "before": "math@1",
    }
    assert ready("alias", "math", "good", "--delete").stdout == "deleted math@good\n"
    assert "math has no alias 'good'" in ready("show", "math@good", code=1).stderr


def test_alias_that_moves_tells_from_where(ready: Run, zoo: Zoo) -> None:
    ready("alias", "math@1", "good")
    ready("add-expert", "math", zoo.experts["law"])
    assert ready("alias", "math@2", "good").stdout == "math@good is math@2 (was math@1)\n"


@pytest.mark.check
def test_opt_out_asks_and_lists(ready: Run, tmp_path: Path) -> None:
    ready("compose", "--experts", "math,code", "--out", tmp_path / "moe")
    asked = ready("opt-out", "math", input="n\n", code=1)
    assert "Withdraw math@1 for good? [y/N]" in asked.stderr
    assert "math@1" in ready("list").stdout
    result = ready("opt-out", "math", input="y\n")
    assert result.stdout.splitlines()[:2] == ["withdrew math@1", "  1 composition was made from it:"]
    assert "code@1,math@1" in result.stdout
    assert "math@1" not in ready("list").stdout
    assert "withdrawn" in ready("list", "--all").stdout
    assert "withdrawn" in ready("show", "math").stdout
    purged = ready("opt-out", "math", "--purge", "--yes").stdout
    assert "  deleted " in purged
    shown = dict(line.split(maxsplit=1) for line in ready("show", "math@1").stdout.splitlines())
    assert (shown["state"], shown["parameters"]) == ("purged", "purged")
    (listed,) = [line for line in ready("list", "--all").stdout.splitlines() if line.startswith("math@1")]
    assert listed.split()[3] == "purged"
    found = document(ready("opt-out", "code", "--purge", "--yes", "--json"))
    assert found["purged"] is True
    assert found["versions"][0]["ref"] == "code@1"
    assert found["withdrew"] == found["deleted"] == ["code@1"]
    assert found["deleted_arrays"] > 5


@pytest.mark.check
def test_opt_out_names_the_folders_that_hold_it(ready: Run, tmp_path: Path) -> None:
    for out in ("moe", "again", "moe"):
        ready("compose", "--experts", "math,code", "--out", tmp_path / out, "--force")
    ready("compose", "--experts", "math", "--out", tmp_path / "alone")
    ready("compose", "--experts", "code", "--out", tmp_path / "other")
    lines = ready("opt-out", "math", "--yes").stdout.splitlines()
    assert lines[4] == "  written to these folders, which contain it until you delete them:"
    assert lines[5:] == [f"    {tmp_path / name}" for name in ("moe", "again", "alone")]
    found = document(ready("opt-out", "math", "--yes", "--json"))["compositions"]
    assert [c["folders"] for c in found] == [
        [str(tmp_path / "moe"), str(tmp_path / "again")],
        [str(tmp_path / "alone")],
    ]


def test_opting_out_again_says_that_it_was_done(ready: Run, zoo: Zoo) -> None:
    ready("opt-out", "math", "--yes")
    (version,) = document(ready("list", "--all", "--json"))[2:]
    already = f"math@1 was opted out already at {version['withdrawn_at']}"
    assert ready("opt-out", "math").stdout.splitlines() == [already, "  0 compositions were made from it"]  # not asked
    found = document(ready("opt-out", "math", "--json"))
    assert (found["withdrew"], found["deleted"], found["purged"]) == ([], [], False)
    assert found["versions"][0]["withdrawn_at"] == version["withdrawn_at"]

    asked = ready("opt-out", "math", "--purge", input="y\n")
    assert "Delete the arrays that only math@1 uses for good? [y/N]" in asked.stderr
    assert asked.stdout.splitlines()[0] == already
    assert asked.stdout.splitlines()[1].startswith("  deleted ")
    purged = document(ready("show", "math@1", "--json"))["purged_at"]
    assert ready("opt-out", "math", "--purge").stdout.splitlines() == [
        already,
        f"  it was purged already at {purged}",
        "  0 compositions were made from it",
    ]
    assert document(ready("opt-out", "math", "--purge", "--json"))["deleted"] == []

    ready("add-expert", "math", zoo.experts["math"])
    both = ready("opt-out", "math", input="y\n")
    assert "Withdraw math@2 for good? [y/N]" in both.stderr
    assert both.stdout.splitlines()[:2] == ["withdrew math@2", already]


def test_opt_out_without_an_answer_does_nothing_and_tells_how_to_answer(ready: Run) -> None:
    told = ready("opt-out", "math", "--purge", input="", code=1).stderr
    assert "error: math was not opted out: no terminal to confirm on" in told
    assert re.search(r"next: to confirm in advance: reg --home \S+ opt-out math --purge --yes\n", told)
    assert "math@1" in ready("list").stdout


def test_export(ready: Run, zoo: Zoo, tmp_path: Path) -> None:
    assert ready("export", "math", "--out", tmp_path / "back").stdout == f"wrote math@1 to {tmp_path / 'back'}\n"
    assert (tmp_path / "back" / "config.json").read_bytes() == (zoo.experts["math"] / "config.json").read_bytes()
    assert document(ready("export", "code", "--out", tmp_path / "code", "--json"))["ref"] == "code@1"


@pytest.mark.check
def test_evaluate(ready: Run, zoo: Zoo, tmp_path: Path) -> None:
    ready("compose", "--experts", "math,code", "--out", tmp_path / "moe")
    words = ["evaluate", tmp_path / "moe", "--windows", 2, "--seq-len", 32]
    words += [word for name in ("code", "math") for word in ("--data", f"{name}={zoo.test[name]}")]
    table = ready(*words, "--baselines").stdout
    assert [line.split()[0] for line in table.splitlines() if line] == [
        "perplexity", "base", "expert", "expert", "averaged", "moe", "(tokens)",
        "normalised", "base", "expert", "expert", "averaged", "moe",
        "routing", "moe", "load", "moe", "parameters", "base", "expert", "expert", "averaged", "moe",
    ]  # fmt: skip
    assert table.splitlines()[1].startswith("base model base@1  ")
    assert "\naveraged weights  " in table
    assert "average " not in table  # a row of weights and a column of means, not one word for both
    assert next(line for line in table.splitlines() if line.startswith("normalised")).split()[-3:] == [
        "mean",
        "95%",
        "interval",
    ]
    (row,) = document(ready(*words, "--json"))
    assert row["name"] == "moe"
    assert set(row["perplexity"]) == {"code", "math"}
    assert row["tokens"] == {"code": 62, "math": 62}
    assert row["average"] == sum(row["score"].values()) / 2


def test_evaluate_without_registered_experts_prints_perplexity_alone(run: Run, zoo: Zoo) -> None:
    table = run("evaluate", zoo.base, "--data", f"x={zoo.test['law']}", "--windows", 2, "--seq-len", 32).stdout
    assert "normalised" not in table


def test_evaluate_says_on_stderr_what_it_cannot_tell(run: Run, zoo: Zoo) -> None:
    result = run("evaluate", zoo.base, "--data", f"x={zoo.test['law']}", "--windows", 2, "--json")
    assert result.stderr.splitlines() == [
        "windows have 128 tokens, not 256: base takes no more",
        "no normalised score for x: no expert of that name is registered",
    ]
    assert document(result)[0]["tokens"] == {"x": 254}


def test_verify_and_gc(ready: Run, tmp_path: Path) -> None:
    assert ready("verify").stdout.startswith("intact: 3 versions, ")
    assert document(ready("verify", "--json"))["problems"] == []
    with Registry(tmp_path / "home") as registry:
        (link, *_) = [x for x in registry.arrays_of(registry.resolve("math")) if x.role == "mlp"]
        overwrite(array_folder(registry, link.digest) / "c.0.0", b"")
        stray = registry.home.arrays / "ab" / ("ab" + "0" * 62)
        stray.mkdir(parents=True)
    told = ready("verify", code=1).stdout
    assert f"problem: math@1, mlp {link.name}: array {link.digest[:12]} is damaged" in told
    assert "1 problem: 3 versions" in told
    assert "1 array belongs to no version" in told
    assert document(ready("verify", "--json", code=1))["orphans"] == 1
    assert ready("gc", "--dry-run").stdout.splitlines() == [
        "would delete 1 array (0 B)",
        f"  {stray.name[:12]}  0 B",
    ]
    assert stray.exists()
    partial = tmp_path / "home" / "partial" / "x.safetensors"
    partial.parent.mkdir()
    partial.write_bytes(bytes(2000))
    line = "1 running or interrupted pass (2.0 kB)"
    assert ready("gc", "--dry-run").stdout.splitlines()[-2:] == [f"would delete {line}", f"  {partial}  2.0 kB"]
    kinds = ("passes", "pass_bytes", "merged", "merged_bytes", "work", "work_bytes", "cached", "cached_bytes")
    nothing = dict.fromkeys(kinds, 0)
    found = {"digests": [stray.name], "bytes": 0, **nothing, "passes": 1, "pass_bytes": 2000}
    found["pieces"] = [{"name": stray.name, "bytes": 0}, {"name": str(partial), "bytes": 2000}]
    assert document(ready("gc", "--dry-run", "--json")) == found | {"dry_run": True}
    assert partial.exists()
    assert ready("gc").stdout.splitlines()[-1] == f"deleted {line}"
    assert not stray.exists()
    assert not partial.exists()
    assert document(ready("gc", "--json")) == {"digests": [], "bytes": 0, **nothing, "pieces": [], "dry_run": False}


@pytest.mark.sqlite
def test_db(run: Run, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    url = f"sqlite:///{tmp_path / 'catalog.sqlite'}"
    none = CliRunner().invoke(main, ["--home", str(tmp_path / "home"), "--database", url, "db", "current"])
    assert none.stdout == f"no catalog yet (this program works with {schema.HEAD})\n"
    assert not (tmp_path / "catalog.sqlite").exists()
    assert run("db", "upgrade").stdout == f"the catalog is at {schema.HEAD} (was at nothing)\n"
    assert run("db", "upgrade").stdout == f"the catalog is at {schema.HEAD}\n"
    assert document(run("db", "current", "--json")) == {"current": schema.HEAD, "head": schema.HEAD}
    assert document(run("db", "upgrade", "--json")) == {"before": schema.HEAD, "after": schema.HEAD, "backup": None}


def test_demo_prints_tables_and_promises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from registry import demo
    from registry.demo import DemoResult
    from registry.evaluation import Row

    rows = [Row("moe", {"code": 2.0}, {"code": 90.0})]
    made = {"a,b": "4" * 64, "a": "5" * 64}
    result = DemoResult(tmp_path, ("code",), rows, {("a", "b"): "1", ("b", "a"): "1"}, "2", "2", "math", made)
    monkeypatch.setattr(demo, "run_demo", lambda *_, **__: result)
    invoked = CliRunner().invoke(main, ["demo", "--out", str(tmp_path)])
    assert invoked.exit_code == 0
    assert f"  all 2 orders of registering gave one folder, composition {'4' * 12};\n  opting math" in invoked.stdout
    assert f"a registry that never held it, composition {'5' * 12}." in invoked.stdout
    found = json.loads(CliRunner().invoke(main, ["demo", "--json"]).stdout)
    assert found["orders"] == {"a,b": "1", "b,a": "1"}
    broken = DemoResult(tmp_path, ("code",), rows, {("a", "b"): "1", ("b", "a"): "3"}, "2", "2", "math", made)
    monkeypatch.setattr(demo, "run_demo", lambda *_, **__: broken)
    invoked = CliRunner().invoke(main, ["demo"])
    assert invoked.exit_code == 1
    assert "NOT bit for bit" in invoked.stdout
    assert "  3  registered in the order b, a" in invoked.stdout
    assert "a guarantee does not hold" in invoked.stderr


def commands(group: click.Group, *path: str) -> list[tuple[tuple[str, ...], click.Command]]:
    found: list[tuple[tuple[str, ...], click.Command]] = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found += commands(command, *path, name) if isinstance(command, click.Group) else [((*path, name), command)]
    return found


@pytest.mark.parametrize("path", [path for path, _ in commands(main)], ids=" ".join)
def test_every_command_has_help_and_json(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == 0
    command = dict(commands(main))[path]
    assert command.help
    assert all(option.help for option in command.params if isinstance(option, click.Option))
    assert "--json" in result.output


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output.startswith("reg, version 0.")


@pytest.mark.check
def test_db_copy(filled: Registry, tmp_path: Path, postgres_server: str) -> None:
    """The catalog goes to PostgreSQL and back; both work on, with the same arrays, and hide the password."""
    schemas = Schemas(postgres_server)
    home, source = filled.home.path, filled.home.database
    expected = [version.ref for version in filled.versions()]
    filled.close()
    with_password = make_url(schemas.fresh()).set(password="hunter2").render_as_string(hide_password=False)
    try:
        result = CliRunner().invoke(main, ["--home", str(home), "db", "copy", source, with_password])
        assert result.exit_code == 0, result.output
        assert "hunter2" not in result.output
        assert result.stderr.splitlines()[-1].startswith("  next: export REG_DATABASE='postgresql+psycopg://reg:***@/")
        with Registry(home, database=with_password) as moved:
            assert [version.ref for version in moved.versions()] == expected
            assert moved.verify().problems == ()
            moved.compose(["code", "math"], tmp_path / "moe")
        again = CliRunner().invoke(main, ["--home", str(home), "db", "copy", source, with_password])
        assert again.exit_code == 1
        assert "holds a catalog already, with rows in" in again.output
        absent = CliRunner().invoke(main, ["db", "copy", f"sqlite:///{tmp_path / 'no.sqlite'}", with_password])
        assert absent.exit_code == 1
        assert "there is no catalog in" in absent.output
    finally:
        schemas.drop()
