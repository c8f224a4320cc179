"""Text that was changed: calibration data, names, results of lm_eval, and what is as large as the limits allow."""

import gzip
import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from registry import Registry
from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.checkpoint.hub_download import HubReference
from registry.evaluation import accuracy_scores
from registry.io.limits import HEADER_BYTES, JSON_KEYS, ROW_BYTES, TEXT_BYTES, TOKENIZER_BYTES, TOKENIZER_VALUES
from registry.names.reference import Reference
from registry.progress import silent
from registry.statistics.collect import text_calibration
from tests.fuzz.fuzz_world import SETTINGS, World, as_conversation
from tests.fuzz.reading import Act, cli, either, opened, put
from tests.models import sentences
from tests.mutations import Draw, changed_bytes, changed_json, text


def data(world: World, draw: Draw) -> Act:
    """Return a reading of calibration data that was changed, by a tokenizer with or without a chat template."""
    suffix = draw.choice((".txt", ".jsonl", ".jsonl.gz", ".parquet"))
    path, folder = put(world.scratch / f"data{suffix}", _data(draw, suffix)), draw.choice((world.bare, world.counted))
    if draw.random() < 0.1:
        words = ("check", world.bare, "--tokens", 64, "--seq-len", 16, "--data", path)
        return either(draw, world.home, words, lambda one: one.check(world.bare, data=[path], settings=SETTINGS))
    return lambda: text_calibration(Checkpoint(folder), [path], SETTINGS)


def _rows(draw: Draw) -> list[dict[str, Any]]:
    """Return twenty rows of one of the shapes that text has."""
    shapes: tuple[Callable[[str], dict[str, Any]], ...] = (
        lambda line: {"text": line},
        lambda line: dict(json.loads(as_conversation(line))),
        lambda line: {"conversations": [{"from": "human", "value": line}, {"from": "gpt", "value": line[:9]}]},
        lambda line: {"instruction": line, "input": line[:9], "output": line[9:]},
        lambda line: {"prompt": line[:9], "completion": line[9:]},
        lambda line: {"prompt": [{"role": "user", "content": line}], "completion": [{"role": "x", "content": line}]},
    )
    return [*map(draw.choice((shapes[0], *shapes)), sentences("code", 20))]


def _data(draw: Draw, suffix: str) -> bytes:
    rows = _rows(draw)
    lines = [json.dumps(row).encode() for row in rows]
    if suffix == ".txt":
        return changed_bytes(draw, b"\n".join(lines))
    if suffix == ".parquet":
        table = draw.choice(
            (
                lambda: pa.Table.from_pylist(rows),
                lambda: pa.Table.from_pylist(rows * draw.choice((1, 500))),
                lambda: pa.table({"text": list(range(20))}),
                lambda: pa.table({"text": [["a"], None]}),
                lambda: pa.table({"other": ["a"]}),
                lambda: pa.table({"conversations": [[{"from": "user", "value": None}]], "messages": [7]}),
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
        lines = [json.dumps({key: draw.choice(([], [7], [{"role": 1}], [{"from": "x"}])) for key in rows[0]}).encode()]
    joined = draw.choice((b"\n", b"\r\n", b"\r", b"")).join(lines)
    if suffix == ".jsonl":
        return changed_bytes(draw, joined) if way >= 0.8 else joined
    if draw.random() < 0.1:
        joined = b"\x00" * draw.choice((10**6, 5 * 10**7))
    packed = gzip.compress(joined, compresslevel=draw.choice((1, 9)))
    return changed_bytes(draw, packed) if draw.random() < 0.5 else packed * draw.choice((1, 1, 2))


def names(world: World, draw: Draw) -> Act:
    """Return uses of a name, reference, tag, alias, license or repository that nobody gave."""
    known = ("code", "code@1", "math@stable", "team=a", "hf://org/name@main", "apache-2.0", "0" * 12)
    word, absent = text(draw, draw.choice(known)), world.scratch / "absent"
    if draw.random() < 0.5:
        safe = word.replace("\x00", "").encode("utf-8", "replace").decode()
        what = draw.choice(("show", "log", "compositions", "overlap"))
        options = draw.choice((("--tag", safe), ("--alias", safe), ("--license", safe), ()))
        written = ("add-expert", *options, "--", draw.choice((safe, "fuzz")), absent)
        exported = ("export", "--out", world.scratch / "out", "--", safe)
        lines = ((what, "--", safe), exported, ("alias", "--", f"{safe}@9", safe), written, written)
        line = draw.choice(lines)
        return lambda: cli(world.home, *line)
    uses: tuple[Callable[[Registry], object], ...] = (
        lambda registry: registry.resolve(word),
        lambda registry: registry.log(word),
        lambda _: Reference.parse(word),
        lambda registry: registry.affected_by_opt_out(word),
        lambda registry: registry.add_expert(word, absent, tags={word: word}, license=word, alias=word),
        lambda registry: registry.plan([word, "math"]),
        lambda _: HubReference.parse(word),
    )
    return opened(world.home, draw.choice(uses))


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
    words = ("scores", "--accuracy", f"math={paths[0]}", "--accuracy", f"moe={paths[1]}", "--task", f"math={task}")
    files = {"math": paths[:1], "moe": paths[1:]}
    return either(draw, world.home, words, lambda _: accuracy_scores(files, {"math": [task]}))


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
