"""Proves: every command has a JSON Schema, what it prints with --json is valid under it, and errors are JSON too."""

import json
import shutil
import subprocess
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import jsonschema
import pytest
from click.testing import CliRunner

from cli.command_reference import commands
from cli.json_schema.commands import ERROR, SCHEMAS, schema_of
from cli.json_schema.notation import read_schemas, rows
from cli.output import print_json
from registry import Registry
from registry.demo import DemoResult
from registry.evaluation import Row
from tests.cli.conftest import Reg, some_text
from tests.conftest import Zoo
from tests.llama_cpp import stand_in
from tests.writable_hub import writable_hub

NAMES = [context.command_path for _, context in commands()]


def closed(schema: Any) -> Any:
    """Return a schema under which a field that is not documented is an error."""
    if isinstance(schema, dict):
        closing = {"additionalProperties": False} if "properties" in schema else {}
        return closing | {key: closed(value) for key, value in schema.items()}
    return [closed(one) for one in schema] if isinstance(schema, list) else schema


def validate(found: Any, schema: Any) -> None:
    jsonschema.Draft202012Validator(closed(deepcopy(schema))).validate(found)


@pytest.fixture(scope="module")
def outputs(zoo: Zoo, _filled_home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What every command printed, in one registry."""
    work = tmp_path_factory.mktemp("json")
    home = shutil.copytree(_filled_home, work / "home")
    bare = shutil.copytree(zoo.experts["code"], work / "bare")
    (bare / "statistics.safetensors").unlink()
    moe, receipt = work / "moe", work / "receipt.json"
    found: dict[str, list[Any]] = {}

    def run(*words: object) -> None:
        name = next(name for name in NAMES if f"reg {' '.join(map(str, words))} ".startswith(f"{name} "))
        found.setdefault(name, []).append(Reg(home).json(*words))

    text, small = some_text(zoo, "math", windows=2), ("--tokens", 64, "--seq-len", 32)
    with pytest.MonkeyPatch.context() as patch:
        rows = [Row("moe", {"code": 2.0}, {"code": 90.0}, accuracy={"code": [1.0]}, load={"code": [1.0]})]
        orders: dict[tuple[str, ...], str] = {("a", "b"): "1", ("b", "a"): "1"}
        shown = DemoResult(work, ("code",), rows, orders, "2", "2", "math", {"a,b": "4" * 64, "a": "5" * 64})
        patch.setattr("registry.demo.run_demo", lambda *_, **__: shown)
        hub = writable_hub(patch, work / "huggingface")
        next(hub)
        run("check", zoo.experts["law"])
        run("collect", bare, "--data", zoo.train["code"], *small, "--out", work / "stats")
        run("add-base", "base", zoo.base)
        run("add-expert", "law", zoo.experts["law"], "--tag", "a=b")
        (work / "experts.yaml").write_text(f"- {{name: law, checkpoint: {zoo.experts['law']}}}\n")
        run("add-experts", work / "experts.yaml")
        run("alias", "law", "good")
        run("compose", "--experts", "math,code", "--plan")
        run("compose", "--experts", "math,code", "--out", moe)
        run("compose", "--experts", "math,code", "--to", "ensemble", "--plan")
        run("compose", "--experts", "math,code", "--router", "ridge", "--out", work / "ridge")
        run("train-expert", "new", "--base", "base", "--data", zoo.train["code"], *small)
        run("compose", "--experts", "math,code", "--router", "ridge", "--top-k", 2, "--out", work / "two")
        run(
            "train",
            work / "two",
            "--train",
            "mlps",
            "--data",
            "math",
            *small,
            "--batch-size",
            1,
            "--out",
            work / "mlps",
        )
        run("train-router", work / "ridge", "--data", "math", "--steps", 1, "--seq-len", 32, "--out", work / "trained")
        run("suggest", "--like", zoo.test["math"])
        run("preview", "--experts", "math,code")
        run("preview", "--experts", "math,code", "--router", "ridge")
        run("evaluate", moe, *text)
        run("evaluate", moe, *text, "--active-experts", "all")
        figures = {"results": {"gsm8k": {"alias": "gsm8k", "exact_match,none": 0.5, "exact_match_stderr,none": 0.1}}}
        (work / "results.json").write_text(json.dumps(figures))
        run("scores", "--accuracy", f"math={work / 'results.json'}", "--task", "math=gsm8k")
        run("report", moe, *text)
        run("report", moe)
        run("route", moe, "let x be 2")
        run("doctor", moe, "--quick")
        run("proxy", zoo.test["math"], "--experts", "math,law", "--out", work / "proxy", "--documents", 2)
        run("audit-extraction", moe, "--data", zoo.train["math"], "--documents", 1, "--prefix", 4, "--continued", 4)
        for module in ("registry.io.http_server", "cli.commands.serve"):  # they would go on
            patch.setattr(f"{module}.server", lambda _: SimpleNamespace(run=lambda sockets: None))
        run("ui", "--port", 0)
        run("serve", "--port", 0)
        run("compose", "--experts", "math,code", "--to", "adapters", "--rank", 2, "--out", work / "adapters")
        run("gateway", work / "adapters", "--server", "http://127.0.0.1:1", "--port", 0)
        run("continual", "--schedule", "math", *text)
        key = work / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        (work / "signers").write_text(f"me {(work / 'key.pub').read_text()}")
        run("bom", moe)
        run("quantize", moe, "--out", work / "few bits")
        run("export-gguf", moe, "--out", work / "moe.gguf", "--llama-cpp", stand_in(work / "llama.cpp"))
        run("sign", moe, "--key", key)
        run("verify-signature", moe, "--signers", work / "signers")
        run("push", moe, "org/moe", "--license", "mit")
        run("push-expert", "math", "org/math")
        run("reproduce", moe)
        domains = ("--domains", zoo.train["code"], "--domains", zoo.train["math"])
        run("train-soup", "mixed", "--base", "base", *domains, "--experts", 1, *small)
        data = ("--data", zoo.train["code"])
        run("train-simoe", "found", "--base", "base", *data, "--experts", 2, "--prompt-tokens", 8, *small)
        run("instantiate", "mixed", "--weights", "code=1", "--out", work / "instance")
        run("export", "math", "--out", work / "math")
        run("arrays", "copy", home / "arrays", work / "arrays")
        run("opt-out", "math", "--purge", "--yes", "--receipt", receipt)
        run("receipt", "verify", receipt)
        run("receipt", "statement", receipt)
        for words in ("list", "list --all", "show law", "show math", "compositions", "log", "verify", "gc --dry-run"):
            run(*words.split())
        run("show", found["reg compositions"][0][0]["digest"])
        run("db", "copy", f"sqlite:///{home / 'catalog.sqlite'}", f"sqlite:///{work / 'copy.sqlite'}")
        for words in ("db current", "db upgrade", "config", "completion bash", "schema list", "schema", "demo"):
            run(*words.split())
        next(hub, None)
    return found


@pytest.mark.check
@pytest.mark.parametrize("name", NAMES)
def test_output_is_what_the_schema_says(outputs: dict[str, list[Any]], name: str) -> None:
    assert name in SCHEMAS, "document what it prints with --json, in cli/json_schema/commands.py"
    for found in outputs[name]:
        validate(found, schema_of(name))


@pytest.mark.check
def test_schemas_are_schemas_and_of_commands_that_exist(outputs: dict[str, list[Any]]) -> None:
    assert list(SCHEMAS.keys() - NAMES) == []
    for name in SCHEMAS:
        jsonschema.Draft202012Validator.check_schema(schema_of(name))
    assert outputs["reg schema"] == [
        schema_of("reg list"),
        {name: schema_of(name) for name in SCHEMAS} | {"error": ERROR},
    ]


def test_every_field_has_a_meaning_and_what_does_not_fit_is_refused() -> None:
    for name, schema in SCHEMAS.items():
        assert schema["description"], name
        assert all(says for _, _, says in rows(schema)), name
    with pytest.raises(jsonschema.ValidationError):
        validate([{"ref": "a@1"}], schema_of("reg list"))


def test_schemas_are_read_from_lines() -> None:
    found = read_schemas("""\
a | object | An object.
  b | `x`, `y` or null | A word,
      or none.
c | list of object | More.
  * a
  d | by key: list of a; may be absent | Others.
e | store.catalog.records.PushRecord
  commit | | Its digest.
  repo | ; may be absent
""")
    word = {"type": ["string", "null"], "enum": ["x", "y", None], "description": "A word, or none."}
    own = {"type": "object", "properties": {"b": word}, "required": ["b"], "description": "An object."}
    others = {"type": "object", "title": "key", "additionalProperties": {"type": "array", "items": own}}
    item = own | {"properties": {"b": word, "d": others | {"description": "Others."}}}
    del item["description"]
    pushed = found.pop("e")
    assert found == {"a": own, "c": {"type": "array", "items": item, "description": "More."}}
    assert [*pushed["properties"]] == ["repo", "revision", "endpoint", "commit"]
    assert pushed["properties"]["commit"] == {"type": ["string", "null"], "description": "Its digest."}
    assert pushed["required"] == ["revision", "endpoint", "commit"]
    assert [*rows(found["c"]["items"])][1] == ("d", "by key: list of object; may be absent", "Others.")


def test_errors_are_json_too(reg: Reg, filled: Registry) -> None:
    for line, code, kind, message, following in (
        ("show mth --json", 1, "NotFoundError", "did you mean 'math'?", "reg list"),
        ("--json show mth", 1, "NotFoundError", "there is no expert 'mth'", "reg list"),
        ("receipt verify absent --json", 1, "NotFoundError", "is not a file", "reg opt-out --receipt"),
        ("list --limit x --json", 2, "BadParameter", "not a valid integer", "list --help"),
        ("opt-out math --json", 1, "InvalidInputError", "no terminal to confirm on", "--yes"),
        ("opt-out math --json", 1, "Abort", "nothing was done", "answer y"),
    ):
        result = reg(*line.split(), code=code, input="n\n" if kind == "Abort" else "")
        assert result.stdout == ""
        found = json.loads(result.stderr.splitlines()[-1])
        validate(found, ERROR)
        error = found["error"]
        assert (error["kind"], error["exit_code"]) == (kind, code), line
        assert message in error["message"]
        assert following in error["next"]
    assert filled.resolve("math").state == "active"
    assert reg("show", "--", "--json", code=1).stderr.startswith("error: ")  # a word after two dashes asks for nothing


def test_what_is_not_finite_is_null() -> None:
    @click.command()
    def command() -> None:
        print_json({"a": float("inf"), "b": [float("nan"), 1.5], "c": Path("x")})

    assert json.loads(CliRunner().invoke(command).stdout) == {"a": None, "b": [None, 1.5], "c": "x"}
