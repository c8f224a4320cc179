"""What is fuzzed: for each parser valid inputs, how they are changed, and the public entry that reads them.

A target's `make` writes an input to a scratch folder and returns what reads it. What reads it may succeed or raise a
RegError; anything else is a fault.
"""

import gzip
import io
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from click.testing import CliRunner
from pyarrow import parquet
from safetensors import safe_open
from safetensors.torch import load_file, save

from cli.main import main as reg
from registry import Recipe, Registry
from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.checkpoint.hub_download import HubReference
from registry.checkpoint.training_record import parse_training
from registry.composition import read_recipe
from registry.errors import RegError
from registry.evaluation import accuracy_scores
from registry.io.limits import HEADER_BYTES, JSON_KEYS, ROW_BYTES, TEXT_BYTES, TOKENIZER_BYTES, TOKENIZER_VALUES
from registry.io.model_folder import MARKER
from registry.names.reference import Reference
from registry.progress import silent
from registry.statistics.collect import collect_to, text_calibration
from registry.statistics.file import FILE_NAME
from tests.conftest import files_of
from tests.fuzz_world import CONTEXT, EXPERTS, SETTINGS, World
from tests.models import sentences
from tests.mutations import Draw, changed_bytes, changed_json, changed_safetensors, spam, text, value

CLI_SHARE = 0.15
"""Of the inputs, how many go through the command line: its exit code is looked at, and that no traceback is shown."""

Act = Callable[[], object]
SMALL = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"),
    *("added_tokens.json", "vocab.json", "chat_template.json"),
)


def put(path: Path, data: bytes) -> Path:
    """Write a file in place of the link that may be there."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def cli(world: World, *words: object) -> None:
    """Run a command, which must end well or tell an error.

    Raises:
        RegError: it told one.
        AssertionError: it showed anything else.
    """
    result = CliRunner().invoke(reg, ["--home", str(world.home), *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    shown = result.output
    if result.exit_code not in (0, 1, 2) or "Traceback" in shown or "bug in the program" in shown:
        raise AssertionError(f"exit code {result.exit_code}: {shown[-500:]}")
    if result.exit_code and not shown.strip():
        raise AssertionError(f"exit code {result.exit_code} without a word")
    if result.exit_code:
        raise RegError(shown)


def checked(world: World, draw: Draw, folder: Path, *words: object) -> Act:
    """Return what checks a checkpoint, and where it is refused tries to register it all the same."""
    by_hand, as_base = draw.random() < CLI_SHARE, draw.random() < 0.5 and not (folder / FILE_NAME).is_file()

    def act() -> None:
        if by_hand:
            cli(world, "check", folder, *words)
            return
        with Registry(world.home, create=False) as registry:
            base = words[1] if words else None
            try:
                registry.check(folder, base=None if base is None else str(base))
            except RegError:
                if as_base and base is None:
                    registry.add_base("fuzz", folder)
                else:
                    registry.add_expert("fuzz", folder, base=None if base is None else str(base))
                raise

    return act


def safetensors(world: World, draw: Draw) -> Act:
    """Return a look at weights whose file was changed."""
    folder = world.copy(world.bare)
    put(folder / "model.safetensors", changed_safetensors(draw, (world.bare / "model.safetensors").read_bytes()))
    return checked(world, draw, folder)


def index(world: World, draw: Draw) -> Act:
    """Return a look at an index of shards that was changed, or at a shard that is another."""
    folder = world.copy(world.sharded)
    name = "model.safetensors.index.json"
    put(folder / name, changed_json(draw, (world.sharded / name).read_bytes()))
    if draw.random() < 0.2:
        shard = draw.choice(sorted(folder.glob("*.safetensors")))
        data = shard.read_bytes()
        put(shard, changed_safetensors(draw, data))
    return checked(world, draw, folder)


def config(world: World, draw: Draw) -> Act:
    """Return a look at a config.json that was changed."""
    folder = world.copy(draw.choice((world.bare, world.carried)))
    put(folder / "config.json", changed_json(draw, (world.bare / "config.json").read_bytes()))
    if draw.random() < 0.6:
        return checked(world, draw, folder)
    words = [world.text] if draw.random() < 0.5 else []  # without, the expert writes its own text
    return lambda: collect_to(folder, world.scratch / "out", data=words, settings=SETTINGS)


def adapter(world: World, draw: Draw) -> Act:
    """Return a look at an adapter whose configuration or weights were changed."""
    folder = world.copy(world.adapter)
    if draw.random() < 0.7:
        put(folder / "adapter_config.json", changed_json(draw, (world.adapter / "adapter_config.json").read_bytes()))
    else:
        name = "adapter_model.safetensors"
        put(folder / name, changed_safetensors(draw, (world.adapter / name).read_bytes()))
    return checked(world, draw, folder, "--base", "base")


def tokenizer(world: World, draw: Draw) -> Act:
    """Return a look at the tokenizer's files, of which one was changed, and a tokenizing by it."""
    folder = world.copy(world.bare)
    name = draw.choice(SMALL)
    known = (world.bare / name).read_bytes() if (world.bare / name).is_file() else b'{"a": 1}'
    put(folder / name, changed_json(draw, known))

    def act() -> None:
        checkpoint = Checkpoint(folder)
        with Registry(world.home, create=False) as registry:
            registry.check(folder)
        text_calibration(checkpoint, [world.text], SETTINGS)

    return act


def data(world: World, draw: Draw) -> Act:
    """Return a reading of calibration data that was changed."""
    suffix = draw.choice((".txt", ".jsonl", ".jsonl.gz", ".parquet"))
    path = put(world.scratch / f"data{suffix}", _data(draw, suffix))
    by_hand, whole = draw.random() < CLI_SHARE / 2, draw.random() < 0.05

    def act() -> None:
        words = ("--tokens", 64, "--seq-len", 16, "--data", path)
        if by_hand:
            cli(world, "check", world.bare, *words)
        elif whole:
            with Registry(world.home, create=False) as registry:
                registry.check(world.bare, data=[path], settings=SETTINGS)
        else:
            text_calibration(Checkpoint(world.bare), [path], SETTINGS)

    return act


def _data(draw: Draw, suffix: str) -> bytes:
    rows = [{"text": line} for line in sentences("code", 20)]
    lines = [json.dumps(row).encode() for row in rows]
    if suffix == ".txt":
        return changed_bytes(draw, b"\n".join(line for line in lines))
    if suffix == ".parquet":
        table = draw.choice(
            (
                lambda: pa.table({"text": [row["text"] for row in rows]}),
                lambda: pa.table({"text": [row["text"] for row in rows] * draw.choice((1, 500))}),
                lambda: pa.table({"text": list(range(20))}),
                lambda: pa.table({"text": [["a"], None]}),
                lambda: pa.table({"other": ["a"]}),
                lambda: pa.table({"messages": [[{"role": "user", "content": "hi"}]]}),
                lambda: pa.table({"text": ["x" * 10**7] * 2}),
                lambda: pa.table({"text": pa.array([b"\xff\xfe"], type=pa.binary())}),
            )
        )()
        file = io.BytesIO()
        parquet.write_table(table, file, compression=draw.choice(("snappy", "zstd", "none", "gzip")))
        return changed_bytes(draw, file.getvalue()) if draw.random() < 0.8 else file.getvalue()
    way = draw.random()
    if way < 0.5:
        at = draw.randrange(len(lines))
        lines[at] = changed_json(draw, lines[at])
    elif way < 0.6:
        lines = [b'{"text": "' + b"x" * draw.choice((2**20, 2**25)) + b'"}']
    elif way < 0.7:
        lines = [b"\n" * draw.choice((10, 2**23))]
    elif way < 0.8:
        lines = [json.dumps({"messages": json.loads(json.dumps(draw.choice(([], [7], [{"role": 1}]))))}).encode()]
    joined = draw.choice((b"\n", b"\r\n", b"\r", b"")).join(lines)
    if suffix == ".jsonl":
        return changed_bytes(draw, joined) if way >= 0.8 else joined
    if draw.random() < 0.1:
        joined = b"\x00" * draw.choice((10**6, 5 * 10**7))
    packed = gzip.compress(joined, compresslevel=draw.choice((1, 9)))
    return changed_bytes(draw, packed) if draw.random() < 0.5 else packed * draw.choice((1, 1, 2))


def names(world: World, draw: Draw) -> Act:
    """Return uses of a name, reference, tag, alias, license or repository that nobody gave."""
    word = text(
        draw, draw.choice(("code", "code@1", "math@stable", "team=a", "hf://org/name@main", "apache-2.0", "0" * 12))
    )
    by_hand, absent = draw.random() < 0.5, world.scratch / "absent"
    safe = word.replace("\x00", "").encode("utf-8", "replace").decode()

    def shown() -> None:
        what = draw.choice(("show", "log", "compositions", "overlap", "export", "alias"))
        if what == "export":
            cli(world, "export", "--out", world.scratch / "out", "--", safe)
        elif what == "alias":
            cli(world, "alias", "--", f"{safe}@9", safe)
        else:
            cli(world, what, "--", safe)

    def written() -> None:
        options = draw.choice((("--tag", safe), ("--alias", safe), ("--license", safe), ()))
        cli(world, "add-expert", *options, "--", draw.choice((safe, "fuzz")), absent)

    def called() -> None:
        with Registry(world.home, create=False) as registry:
            what = draw.randrange(6)
            if what == 0:
                registry.resolve(word)
            elif what == 1:
                registry.log(word)
            elif what == 2:
                Reference.parse(word)
                registry.affected_by_opt_out(word)
            elif what == 3:
                registry.add_expert(word, absent, tags={word: word}, license=word, alias=word)
            elif what == 4:
                registry.plan([word, "math"])
            else:
                HubReference.parse(word)

    return draw.choice((shown, written)) if by_hand else called


def receipts(world: World, draw: Draw) -> Act:
    """Return a check of a receipt that was changed."""
    path = put(world.scratch / "receipt.json", changed_json(draw, world.receipt.read_bytes()))
    by_hand, folders = draw.random() < CLI_SHARE, [world.composed] * draw.randrange(2)

    def act() -> None:
        if by_hand:
            cli(world, "receipt", "verify", path)
            return
        with Registry(world.home, create=False) as registry:
            registry.verify_receipt(path, folders)

    return act


def composition(world: World, draw: Draw) -> Act:
    """Return what is done with a composed folder whose composition.json was changed."""
    whole = draw.choice((world.composed, world.by_context))
    folder = world.copy(whole)
    put(folder / MARKER, changed_json(draw, (whole / MARKER).read_bytes()))
    by_hand, receipt = draw.random() < CLI_SHARE, draw.random() < 0.4

    def act() -> None:
        if by_hand:
            cli(world, "reproduce", folder)
            return
        with Registry(world.home, create=False) as registry:
            if receipt:
                registry.verify_receipt(world.receipt, [folder])
            else:
                registry.reproduce(folder)

    return act


def statistics(world: World, draw: Draw) -> Act:
    """Return a look at a checkpoint whose statistics.safetensors was changed."""
    given = draw.choice((world.carried, world.carried, world.counted))
    folder = world.copy(given)
    name = "statistics.safetensors"
    put(folder / name, changed_safetensors(draw, (given / name).read_bytes()))
    return checked(world, draw, folder)


def recipe_file(world: World, draw: Draw) -> Act:
    """Return a reading of a recipe file or a `composition.json` that was changed."""
    if draw.random() < 0.3:
        valid = changed_json(draw, (draw.choice((world.composed, world.by_context)) / MARKER).read_bytes())
    else:
        files = sorted((Path(__file__).parents[1] / "docs" / "recipes").iterdir())
        valid = changed_bytes(draw, b"experts: {code: 2}\n" + draw.choice(files).read_bytes())
    path = put(world.scratch / "recipe.yaml", spam(draw) if draw.random() < 0.1 else valid)
    by_hand = draw.random() < CLI_SHARE

    def act() -> None:
        if by_hand:
            cli(world, "compose", "--recipe", path, "--plan")
        else:
            assert read_recipe(path).recipe

    return act


def results(world: World, draw: Draw) -> Act:
    """Return a reading of a result file of lm_eval that was changed."""
    document = {
        "results": {
            "gsm8k": {"alias": " - x", "exact_match,strict-match": 0.5, "exact_match_stderr,strict-match": "N/A"}
        },
        "higher_is_better": {"gsm8k": {"exact_match": True}},
        "versions": {"gsm8k": 3.0},
        "n-shot": {"gsm8k": 5},
        "n-samples": {"gsm8k": {"original": 1319, "effective": 50}},
    }
    valid = json.dumps(document).encode()
    paths = [put(world.scratch / name, changed_json(draw, valid)) for name in ("math.json", "moe.json")]
    task = draw.choice(("gsm8k", "gsm8k:exact_match", "gsm8k:exact_match,strict-match"))
    by_hand = draw.random() < CLI_SHARE

    def act() -> None:
        if by_hand:
            words = (
                word
                for name, path in zip(("math", "moe"), paths, strict=True)
                for word in ("--accuracy", f"{name}={path}")
            )
            cli(world, "scores", *words, "--task", f"math={task}")
        else:
            assert accuracy_scores({"math": paths[:1], "moe": paths[1:]}, {"math": [task]})

    return act


def training(world: World, draw: Draw) -> Act:
    """Return a reading of an expert's record of its training that was changed."""
    document = {
        "format": 1,
        "training": {"steps": 5, "tokens": 640, "trunk": "frozen", "warmup": None},
        "held_out": {"before": 5.5, "after": 4.5},
        "every": 2,
        "loss": [5.25, 4.75, 4.5],
    }
    changed = changed_json(draw, json.dumps(document).encode())
    return lambda: parse_training(changed, "x@1/expert_training.json").at


def arrays(world: World, draw: Draw) -> Act:
    """Return a verification and a composition of a registry of which an array was changed."""
    home = shutil.copytree(world.home, world.scratch / "home")
    folder = draw.choice(sorted((home / "arrays").glob("??/*")))
    file = draw.choice(sorted(folder.iterdir()))
    if file.name == "zarr.json" or draw.random() < 0.5:
        file = folder / "zarr.json"
        put(file, changed_json(draw, file.read_bytes()))
    elif draw.random() < 0.1:
        put(file, spam(draw))
    else:
        put(file, changed_bytes(draw, file.read_bytes()))
    return _opened(world, draw, home)


def database(world: World, draw: Draw) -> Act:
    """Return the same of a registry whose database was changed."""
    home = shutil.copytree(world.home, world.scratch / "home")
    file = home / "catalog.sqlite"
    file.write_bytes(changed_bytes(draw, file.read_bytes()))
    return _opened(world, draw, home)


def _opened(world: World, draw: Draw, home: Path) -> Act:
    recipe, whole = draw.choice(((Recipe(), world.composed), (CONTEXT, world.by_context)))

    def act() -> None:
        out = world.scratch / "out"
        with Registry(home, create=False) as registry:
            problems = registry.verify().problems
            plan = registry.plan(EXPERTS, recipe)
            registry.write(plan, out)
            if problems and files_of(out) != files_of(whole):
                raise AssertionError(f"composed of what is damaged: {problems[0]}")
        if problems:
            raise RegError(problems[0])

    return act


def context(world: World, draw: Draw) -> Act:
    """Return a composition by context: of a recipe that was changed, or with an expert of hostile token counts."""
    if draw.random() < 0.5:
        given: dict[str, Any] = {"router": "context", "trunk": draw.choice(("mean", "regmean"))}
        for name, likely in CONTEXT_FIELDS.items():
            if draw.random() < 0.4:
                given[name] = value(draw) if draw.random() < 0.4 else draw.choice(likely)
        return lambda: _composed_by_context(world, world.home, EXPERTS, given)
    folder, home = world.copy(world.counted), shutil.copytree(world.home, world.scratch / "home")
    with safe_open(world.counted / FILE_NAME, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors["token_counts"] = _hostile_counts(draw, tensors["token_counts"])
    if draw.random() < 0.5:  # counts are compared with calibration that is kept
        del tensors["calibration.ids"], tensors["calibration.lengths"]
    put(folder / FILE_NAME, save(tensors, metadata))

    def act() -> None:
        with Registry(home, create=False) as registry:
            registry.add_expert("law", folder)
        _composed_by_context(world, home, (*EXPERTS, "law"), {"router": "context", "trunk": "mean"})

    return act


CONTEXT_FIELDS: dict[str, tuple[object, ...]] = {
    "context_window": (0, 1, 1e-3, 0.5, 7, 64, 1e6, 1e300, 2**53, "64", "auto", True),
    "vocabulary": ("shared", "mapped", "own", ""),
    "top_k": (1, 2, 3, 0),
    "temperature": (1e-300, 1e-6, 0.05, 1.0, 1e300, 0),
    "dtype": ("float16", "bfloat16", "float32"),
    "host": ("mixtral", "granitemoe", "remote-code", "flex_olmo", "qwen3_moe"),
    "to": ("moe", "dense", "ensemble"),
}
"""Fields of a recipe that context routing reads, and values of each, most of them valid."""


def _hostile_counts(draw: Draw, counts: torch.Tensor) -> torch.Tensor:
    most, size = 2**63 - 1, len(counts)
    rows = draw.choice((1, 2, size - 1, size, size, size, size + 1, 10 * size))
    made = torch.zeros(rows, dtype=torch.int64)
    made[: min(rows, size)] = counts[:rows]
    for _ in range(draw.choice((0, 1, 2, 5))):
        made[draw.randrange(rows)] = draw.choice((0, 1, -1, 2**31, 2**53 + 1, 2**62, most, -most - 1))
    if draw.random() < 0.2:
        made[:] = torch.tensor(draw.choice((0, 1, -1, most, most // rows, most // (rows + 1))))
    return made


def _composed_by_context(world: World, home: Path, experts: Sequence[str], fields: Mapping[str, Any]) -> None:
    out = world.scratch / "out"
    with Registry(home, create=False) as registry:
        registry.write(registry.plan(experts, Recipe(**fields)), out)
    for path in out.glob("*.safetensors"):
        for name, tensor in load_file(path).items():
            if not bool(torch.isfinite(tensor).all()):
                raise AssertionError(f"{name} has a value that is not finite")


def largest(world: World, draw: Draw) -> Act:
    """Return a reading of what is as large as the limits let it be."""
    folder, million = world.copy(world.bare), 2**20
    tokenizers = {
        "words": b'{"model":{"vocab":{' + b",".join(b'"%015d":%d' % (n, n) for n in range(JSON_KEYS - 9)) + b"}}}",
        "text": '{"model":{"vocab":{"🙂":0}},"x":"'.encode() + b"x" * (TOKENIZER_BYTES - 99) + b'"}',
        "lists": b'{"model":{"vocab":{}},"x":[' + b"[]," * (TOKENIZER_VALUES // 2 - 20) + b"0]}",
        "numbers": b'{"model":{"vocab":{}},"x":[' + b"1.5," * (TOKENIZER_VALUES - 20) + b"0]}",
    }
    texts = {
        "data.txt": "🙂".encode() + b"x " * (TEXT_BYTES // 2 - 9),
        "data.jsonl": '{"text":"🙂'.encode() + b"x " * (ROW_BYTES // 2 - 9) + b'"}',
        "data.jsonl.gz": gzip.compress(b'{"text": "a b c"}\n' * million, 1),
    }
    entries = (b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % n for n in range(HEADER_BYTES // 61))
    what = draw.choice(("header", *tokenizers, *texts))
    if what == "header":
        header = b"{" + b",".join(entries) + b"}"
        put(folder / "model.safetensors", len(header).to_bytes(8, "little") + header)
    elif what in tokenizers:
        put(folder / "tokenizer.json", tokenizers[what])
    else:
        path = put(world.scratch / what, texts[what])
        return lambda: text_calibration(Checkpoint(world.bare), [path], SETTINGS)
    return lambda: hash_checkpoint(Checkpoint(folder), silent)


TARGETS: dict[str, tuple[int, Callable[[World, Draw], Act]]] = {
    "safetensors": (14, safetensors),
    "index": (8, index),
    "config": (10, config),
    "adapter": (8, adapter),
    "tokenizer": (8, tokenizer),
    "data": (12, data),
    "names": (12, names),
    "receipts": (8, receipts),
    "composition": (8, composition),
    "recipe_file": (6, recipe_file),
    "results": (4, results),
    "training": (4, training),
    "statistics": (8, statistics),
    "arrays": (6, arrays),
    "context": (6, context),
    "database": (2, database),
    "largest": (1, largest),
}
"""Name → (how often of a hundred or so, what makes an input)."""
