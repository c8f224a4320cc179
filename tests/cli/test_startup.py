"""Proves: asking for help, a list or a version loads neither torch nor transformers nor zarr, and help no database.

Wrong names are reported before torch is loaded, and composing loads torch and nothing else that takes long.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from cli.command_names import COMMANDS
from registry import Recipe, Registry
from tests.cli.conftest import Reg
from tests.conftest import Zoo, files_of

Loaded = Callable[[Path, list[str], tuple[str, ...]], list[str]]
HEAVY = ("torch", "transformers", "zarr", "numpy", "safetensors", "huggingface_hub", "alembic")
DATABASE = ("sqlalchemy", "filelock", "asyncio", "registry.registry")
NOT_FOR_COMPOSING = (
    *("transformers", "tokenizers", "alembic", "sympy"),
    *("torch._dynamo", "torch.distributed.tensor", "httpx"),
)
"""Libraries that take a tenth of a second or more each, or lead to one that does."""
OWN = ("cli.commands.compose", "cli.recipe", "cli.options")


@pytest.mark.check(after=1)
@pytest.mark.trust(after=4)
@pytest.mark.parametrize(
    "words",
    ["--help", "compose --help", "ui --help", "list", "list --json", "log", "compositions", "show x"],
)
def test_light_commands_stay_light(tmp_path: Path, words: str) -> None:
    Registry(tmp_path / "home").close()
    unwanted = HEAVY + (DATABASE if "--help" in words else ()) + (OWN if words == "--help" else ())
    assert loaded(tmp_path / "home", words.split(), unwanted)[-1] == "loaded []"


WRONG: dict[str, list[tuple[str, ...]]] = {
    "add-expert": [
        ("x nosuch", "nosuch is not a folder"),
        ("../evil nosuch", "name '../evil' is not of the form", "use lower-case letters"),
        ("x . --data nosuch.txt", "nosuch.txt is not a file"),
        ("x modle", "modle is not a folder; did you mean 'model'?", "name a local Hugging Face checkpoint"),
        ("x taken", "is not a checkpoint: it has no config.json", "save_pretrained"),
        ("x model --data text.tx", "is not a file; did you mean 'text.txt'?", "name an existing file"),
        (
            "model x",
            "is a checkpoint, and x is not: the name comes first",
            "swap them: reg add-expert x model",
        ),
    ],
    "add-experts": [("nosuch.yaml", "nosuch.yaml is not a file"), ("text.txt", "must be a list of experts")],
    "add-base": [
        ("x nosuch", "nosuch is not a folder"),
        ("code nosuch", "code is registered as an expert"),
        ("hf://org/model x", "the name comes first", "reg add-base x hf://"),
    ],
    "check": [("nosuch", "nosuch is not a folder"), (". --data nosuch.txt", "nosuch.txt is not a file")],
    "collect": [
        ("nosuch --out x", "nosuch is not a folder"),
        (". --data nosuch.txt --out x", "nosuch.txt is not a file"),
        (". --out text.txt/x", "text.txt is a file"),
    ],
    "compose": [
        ("--experts nosuch --out x", "no expert 'nosuch'"),
        ("--experts math@9 --out x", "math has no version 9; it has 1", "reg show math"),
        ("--experts code,math,code --out x", "code is named more than once"),
        ("--experts math --force --out taken", "was not composed by this program"),
        (
            "--experts math --trunk base --base bsae --out x",
            "there is no base model 'bsae'; did you mean 'base'?",
            "register it: reg add-base bsae CKPT; those registered: reg list --kind base",
        ),
        (
            "--experts math --trunk base --base models/Base --out x",
            "base model 'models/Base' is not a registered name",
            "reg add-base NAME models/Base",
        ),
        ("--experts code,math --out /", "/ exists and is not empty"),
        ("--experts code --to dense --trunk mean --like nosuch.txt --out x", "nosuch.txt is not a file"),
        ("--experts code --to dense --trunk task-arithmetic --fit nosuch.txt --out x", "nosuch.txt is not a file"),
        ("--recipe nosuch.yaml --out x", "nosuch.yaml is not a file"),
    ],
    "instantiate": [
        ("nosuch --weights a=1 --out x", "no expert 'nosuch'"),
        ("code --weights a=1 --out x", "code@1 is no soup"),
        ("base --like nosuch.txt --out x", "nosuch.txt is not a file"),
    ],
    "preview": [("--experts code,nosuch", "no expert 'nosuch'")],
    "suggest": [
        ("--like nosuch.txt", "nosuch.txt is not a file"),
        ("--like text.txt --must nosuch", "no expert 'nosuch'"),
        ("--like text.txt --without base", "base is a base model, not an expert"),
    ],
    "train-expert": [
        ("x --base nosuch --data text.txt", "there is no base model 'nosuch'"),
        ("x --base base --data nosuch.txt", "nosuch.txt is not a file"),
    ],
    "train-soup": [
        ("x --base nosuch --domains a=text.txt --domains b=text.txt --experts 2", "there is no base model 'nosuch'"),
        ("x --base base --domains a=nosuch.txt --domains b=text.txt --experts 2", "nosuch.txt is not a file"),
    ],
    "train-simoe": [
        ("x --base nosuch --data text.txt", "there is no base model 'nosuch'"),
        ("x --base code --data text.txt", "code is an expert, not a base model"),
        ("x --base base --data nosuch.txt", "nosuch.txt is not a file"),
    ],
    "proxy": [
        ("nosuch.txt --experts code --out x", "nosuch.txt is not a file"),
        ("text.txt --experts nosuch --out x", "no expert 'nosuch'"),
        ("text.txt --experts code --out text.txt", "text.txt exists and is not a folder"),
    ],
    "train": [
        ("nosuch --train all --data text.txt --out x", "nosuch is not a folder"),
        ("moe --train all --data absent.txt --out new", "absent.txt is not a file"),
        ("moe --train all --data code --out taken", "taken exists and is not empty"),
        ("moe --train all --data code --out moe", "contain one another"),
    ],
    "train-router": [
        ("nosuch --data text.txt --out x", "nosuch is not a folder"),
        ("moe --data moe/composition.json --out new", "has none of the endings"),
    ],
    "doctor": [
        ("nosuch", "nosuch is not a folder"),
        ("model --data code=nosuch.txt", "nosuch.txt is not a file"),
    ],
    "evaluate": [
        ("nosuch --data code=text.txt", "nosuch is not a folder"),
        ("code --data code=nosuch.txt", "reg export code@1"),
        ("model --data code=nosuch.txt", "nosuch.txt is not a file"),
        ("--experts nosuch --methods all --data code=text.txt", "no expert 'nosuch'"),
        ("--experts code --methods nosuch --data code=text.txt", "method 'nosuch' is not one of"),
    ],
    "scores": [("--accuracy a=nosuch.json --task a=b", "nosuch.json is not a regular file")],
    "report": [
        ("nosuch --out x.html", "nosuch is not a folder"),
        ("abcdef --out x.html", "there is no composition and no expert 'abcdef'"),
        ("model --out x.html", "model has no composition.json"),
    ],
    "route": [
        ("nosuch hi", "nosuch is not a folder"),
        ("model hi", "model holds a dense model, of type llama"),
        ("'a + b' model", "the folder comes before the text", "reg route model 'a + b'"),
    ],
    "audit-extraction": [
        ("nosuch --data text.txt", "nosuch is not a folder"),
        ("model --data nosuch.txt", "nosuch.txt is not a file"),
    ],
    "continual": [
        ("--schedule nosuch,code --data code=text.txt", "no expert 'nosuch'"),
        ("--schedule code,math --data code=text.txt --data math=nosuch.txt", "nosuch.txt is not a file"),
    ],
    "opt-out": [
        ("nosuch", "no expert 'nosuch'"),
        ("code --yes --receipt nosuch/x.json", "nosuch is not a folder"),
        ("code --yes --receipt text.txt", "text.txt exists"),
    ],
    "receipt": [("verify nosuch.json", "nosuch.json is not a file")],
    "serve": [
        ("--tokens nosuch.txt", "nosuch.txt is not a file"),
        ("--recipe nosuch.yaml", "nosuch.yaml is not a file"),
        ("--host 0.0.0.0", "0.0.0.0 can be reached from elsewhere", "add --tokens FILE"),
    ],
    "gateway": [
        ("nosuch --server http://x", "nosuch is not a folder"),
        ("model --server http://x", "model holds a dense model, of type llama"),
    ],
    "bom": [("nosuch", "nosuch is not a folder"), ("model", "model has no composition.json", "name a composed folder")],
    "quantize": [("nosuch --out a", "nosuch is not a folder"), ("model --out a", "model has no composition.json")],
    "export-gguf": [
        ("nosuch --out a.gguf", "nosuch is not a folder"),
        ("model --out a.gguf", "model has no composition.json", "name a composed folder"),
    ],
    "sign": [("nosuch --key text.txt", "nosuch does not exist")],
    "verify-signature": [("nosuch --signers text.txt", "nosuch does not exist")],
    "show": [
        ("mth", "error: there is no expert 'mth'; did you mean 'math'?", "reg list"),
        ("b487a", "first 6 digits or more"),
        ("math@old", "math has no alias 'old'; it has none", "reg alias math@1 old"),
    ],
    "compositions": [
        ("nosuch", "no expert 'nosuch'"),
        ("0123456789ab", "there is no composition", "reg compositions"),
    ],
    "log": [("nosuch", "no expert 'nosuch'")],
    "alias": [
        ("nosuch x", "no expert 'nosuch'"),
        ("math prod --delete", "math has no alias 'prod'", "reg list --all"),
    ],
    "export": [
        ("nosuch --out x", "no expert 'nosuch'"),
        ("code --out text.txt", "text.txt exists and is not a folder"),
        ("code --out /proc/nope", "/proc/nope cannot be made"),
    ],
    "push": [("nosuch org/name", "nosuch is not a folder"), ("model org/name", "model has no composition.json")],
    "push-expert": [("nosuch org/name", "no expert 'nosuch'")],
    "reproduce": [
        ("nosuch", "nosuch is not a folder"),
        ("taken", "was not composed by this program", "name a composed folder"),
    ],
    "arrays": [("copy nosuch text", "there are no arrays below ")],
    "completion": [("nosuch", "'nosuch' is not one of 'bash', 'zsh', 'fish'")],
    "schema": [("nosuch", "there is no command 'nosuch'")],
    "db": [
        ("copy nonsense sqlite:///x.sqlite", "cannot use the database URL"),
        ("copy sqlite:///nosuch.sqlite sqlite:///x.sqlite", "there is no catalog in"),
    ],
    "demo": [("--out text.txt", "text.txt exists and is not a folder")],
}
"""Command → words after it that name something wrong, and what is said: the error, and where it matters the hint."""

WITHOUT_NAMES = {"list", "gc", "verify", "ui", "config"}
"""Commands that take neither a name nor a path: the registry's is asked for below, of `list`."""


def test_every_command_has_a_case() -> None:
    assert not WRONG.keys() & WITHOUT_NAMES
    assert WRONG.keys() | WITHOUT_NAMES == COMMANDS.keys()


@pytest.mark.sqlite
@pytest.mark.check(after=5)
@pytest.mark.trust(after=20)
@pytest.mark.parametrize(
    ("command", "case"),
    [(command, case) for command, cases in WRONG.items() for case in cases],
    ids=lambda value: value if isinstance(value, str) else value[0].replace("/", "_"),
)
def test_wrong_names_are_reported_without_torch(
    filled: Registry,
    zoo: Zoo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quickly_loaded: Loaded,
    command: str,
    case: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("text")
    Path("model").symlink_to(zoo.base)
    for name, content in (("moe/composition.json", '{"members": [{"name": "code", "digest": "0"}]}'), ("taken/x", "")):
        Path(name).parent.mkdir()
        Path(name).write_text(content)
    before, log = everything(tmp_path), filled.log()
    words, *told = case
    unwanted = ("torch", "transformers", "zarr")
    *shown, last = quickly_loaded(filled.home.path, [command, *shlex.split(words)], unwanted)
    assert last == "loaded []"
    assert [text for text in told if text not in "\n".join(shown)] == []
    assert any(line.startswith("error: ") for line in shown)
    assert any(line.startswith("  next: ") for line in shown)
    assert not [line for line in shown if "Traceback" in line]
    assert everything(tmp_path) == before
    assert filled.log() == log


def everything(folder: Path) -> tuple[list[Path], dict[str, bytes]]:
    """Return what is below a folder, but for a catalog, whose files change when it is opened."""
    files = {name: data for name, data in files_of(folder).items() if "catalog.sqlite" not in name}
    return sorted(folder.iterdir()), files


@pytest.mark.sqlite
@pytest.mark.check
def test_a_version_is_shown_without_torch(filled: Registry, quickly_loaded: Loaded) -> None:
    """Its distances to others are told from samples of weights, which numpy reads."""
    unwanted = ("torch", "transformers", "zarr", "huggingface_hub")
    *shown, last = quickly_loaded(filled.home.path, ["show", "code"], unwanted)
    assert last == "loaded []"
    assert any("same base as base@1 (distance 0." in line for line in shown)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("recipe", [Recipe(), Recipe(router="ridge")], ids=["context", "ridge"])
def test_a_layer_that_is_not_there_is_refused_without_torch(
    filled: Registry, reg: Reg, tmp_path: Path, quickly_loaded: Loaded, recipe: Recipe
) -> None:
    filled.compose(["code", "math"], tmp_path / "moe", recipe)
    *shown, last = quickly_loaded(reg.home, ["route", str(tmp_path / "moe"), "hi", "--layer", "2"], ("torch",))
    assert last == "loaded []"
    assert shown == [f"error: there is no layer 2 in {tmp_path / 'moe'}, which has 2", "  next: choose one from 0 to 1"]
    reg("route", tmp_path / "moe", "hi", "--layer", "1")


@pytest.mark.sqlite
@pytest.mark.check
def test_composing_loads_no_more_than_it_needs(filled: Registry, tmp_path: Path) -> None:
    words = ["compose", "--experts", "code,math", "--out", str(tmp_path / "moe")]
    *shown, last = loaded(filled.home.path, words, NOT_FOR_COMPOSING)
    assert (tmp_path / "moe" / "composition.json").is_file(), shown
    assert last == "loaded []"


def script(home: Path, words: list[str], unwanted: tuple[str, ...]) -> str:
    """Return a program that runs a command, and prints a line of what of `unwanted` it imported."""
    return (
        "import sys\n"
        "from cli.main import main\n"
        f"try: main(['--home', {str(home)!r}, *{words!r}])\n"
        "except SystemExit: pass\n"
        f"print('loaded', [name for name in {unwanted!r} if name in sys.modules])"
    )


def loaded(home: Path, words: list[str], unwanted: tuple[str, ...]) -> list[str]:
    """Return the lines that a command prints in a process of its own, and one of what of `unwanted` it imported."""
    program = [sys.executable, "-c", script(home, words, unwanted)]
    result = subprocess.run(program, stdout=PIPE, stderr=STDOUT, text=True, check=True)
    return result.stdout.splitlines()


SERVER = """
import json, os, sys
import registry.registry
from cli.main import main
for line in sys.stdin:
    folder, out, program = json.loads(line)
    if not os.fork():
        os.chdir(folder)
        number = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(number, 1), os.dup2(number, 2)
        exec(program)
        sys.stdout.flush()
        os._exit(0)
    print(os.wait()[1], flush=True)
"""
"""A process that has imported what every command with a registry needs, and runs each command in a fork."""


@pytest.fixture(scope="module")
def quickly_loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    """Return a function that does what `loaded` does, in a tenth of the time."""
    out = tmp_path_factory.mktemp("forking") / "out"
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        orders, answers = process.stdin, process.stdout

        def forked(home: Path, words: list[str], unwanted: tuple[str, ...]) -> list[str]:
            orders.write(json.dumps([str(Path.cwd()), str(out), script(home, words, unwanted)]) + "\n")
            orders.flush()
            assert answers.readline() == "0\n"
            return out.read_text().splitlines()

        yield forked
        orders.close()
