"""Proves: what somebody else wrote is refused by its size, depth and kind before it is parsed, and hangs no command.

Each case is refused with the reason, and nothing is registered. `tests.fuzz` looks for what nobody thought of.
"""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from safetensors.torch import load_file, save_file

from registry import Registry
from registry.calibration.corpus import Corpus, find_calibration
from registry.checkpoint import Checkpoint
from registry.checkpoint.model_files import read_files
from registry.errors import CalibrationError, CheckpointError, InvalidInputError, NotFoundError, RegError
from registry.io.limits import HEADER_BYTES, JSON_BYTES, JSON_DEPTH, JSON_VALUES, TOKENIZER_BYTES
from registry.io.safetensors_file import read_header
from registry.io.untrusted import own_file, parse_json
from registry.runtime.loading import has_our_code
from tests.conftest import Zoo

WEIGHTS, INDEX, X = "model.safetensors", "model.safetensors.index.json", "x.safetensors"
Change = Callable[[Path], object]


def headed(edit: Callable[[dict[str, Any]], object]) -> Change:
    """Return a change of the header of the weights; the file is rebuilt around it."""

    def change(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        edit(header)
        text = json.dumps(header).encode()
        (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])

    return change


def raw(header: bytes, length: int | None = None) -> Change:
    """Return a change that writes a header of bytes, and what is said to be its length."""
    size = len(header) if length is None else length
    return lambda folder: (folder / WEIGHTS).write_bytes(size.to_bytes(8, "little") + header)


def one(header: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a tensor in the middle."""
    found: dict[str, Any] = header["model.layers.1.mlp.gate_proj.weight"]
    return found


def emptied(name: str, make: Change) -> Change:
    """Return a change that puts something else in a file's place."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def pipe(name: str) -> Change:
    """Return a change that puts a pipe, which nobody writes to, in a file's place."""
    return emptied(name, os.mkfifo)


def linked(name: str, target: str) -> Change:
    """Return a change that puts a symbolic link in a file's place."""

    def change(folder: Path) -> None:
        (folder.parent / "secret").write_text("{}")
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return change


def text(name: str, content: str) -> Change:
    """Return a change that writes a file."""
    return lambda folder: (folder / name).write_text(content)


def index(name: str) -> Change:
    """Return a change that writes an index, which names a file."""
    return text(INDEX, json.dumps({"weight_map": {"a": name}}))


OWN_FILES = ("config.json", WEIGHTS, "tokenizer.json", "statistics.safetensors", "calibration.txt")
LINK_OUT, OUTSIDE = "is a symbolic link out of the folder, to", "names files outside the folder"
NO_SIZES, NO_TENSORS = "has a shape or offsets that are not sizes", "is not a safetensors file"
TOO_DEEP, UNFIT = f"nested deeper than {JSON_DEPTH} levels", "must have dtype, shape and data_offsets, and nothing else"
BAD: dict[str, tuple[Change, str]] = {
    "header longer than the file": (raw(b"{}", 2**40), "its header claims 1,099,511,627,776 bytes, the file has"),
    "header of 2^64": (raw(b"{}", 2**64 - 1), "its header claims"),
    "header over the limit": (
        raw(b" " * (HEADER_BYTES + 1)),
        f"its header has {HEADER_BYTES + 1:,} bytes, the limit is",
    ),
    "header no object": (raw(b"[]"), "its header is not a JSON object"),
    "header deep": (raw(b'{"a":' * 200), TOO_DEEP),
    "header of empty lists": (raw(b'{"a":[' + b"[]," * JSON_VALUES), "values, the limit is"),
    "header names a tensor twice": (raw(b'{"a": 1, "a": 2}'), "it has the key 'a' twice"),
    "header in UTF-16": (raw("{}".encode("utf-16")), NO_TENSORS),
    "metadata no texts": (headed(lambda h: h.update(__metadata__={"a": 1})), "its metadata is not an object of texts"),
    "entry no object": (headed(lambda h: h.update(a=[])), f"tensor 'a' {UNFIT}"),
    "entry with more": (headed(lambda h: one(h).update(x=1)), UNFIT),
    "overlapping": (headed(lambda h: h.update({"lm_head.weight": one(h)})), NO_TENSORS),
    "gap": (headed(lambda h: h.pop("lm_head.weight")), NO_TENSORS),
    "negative": (headed(lambda h: one(h).update(data_offsets=[-8, 0])), NO_SIZES),
    "offsets no numbers": (headed(lambda h: one(h).update(data_offsets=["0", True])), "offsets that are not sizes"),
    "backwards": (headed(lambda h: one(h)["data_offsets"].reverse()), "which does not fit F32 of shape"),
    "shape too large": (headed(lambda h: one(h).update(shape=[2**40, 2**40])), "which does not fit F32 of shape"),
    "shape overflows": (headed(lambda h: one(h).update(shape=[2**63, 4])), NO_SIZES),
    "shape of many axes": (headed(lambda h: one(h).update(shape=[1] * 9999)), NO_SIZES),
    "dtype of twice the size": (headed(lambda h: one(h).update(dtype="F64")), "which does not fit F64 of shape"),
    "dtype that is none": (headed(lambda h: one(h).update(dtype="object")), "has the unknown dtype 'object'"),
    "config with a key twice": (text("config.json", '{"a": 1, "a": 2}'), "it has the key 'a' twice"),
    "config with NaN": (text("config.json", '{"a": NaN}'), "NaN is not a number of JSON"),
    "config with infinity": (text("config.json", '{"a": 1e999}'), "the number 1e999 is too large"),
    "config with digits": (
        text("config.json", '{"a": ' + "9" * 5000 + "}"),
        "a number has 5,000 digits, the limit is 40",
    ),
    "config with half a character": (text("config.json", '{"a": "\\ud800"}'), "is not JSON"),
    "config a pipe": (pipe("config.json"), "has no config.json"),
    "weights a pipe": (pipe(WEIGHTS), "has no weights"),
    "weights a folder": (emptied(WEIGHTS, Path.mkdir), "has no weights"),
    "config a device": (linked("config.json", "/dev/zero"), "has no config.json"),
    **{f"{name} a link out": (linked(name, "../secret"), LINK_OUT) for name in OWN_FILES},
    **{f"index names {name[:9]!r}": (index(name), OUTSIDE) for name in (f"../{X}", f"/{X}", "x" * 9999, "x\x00")},
    "index to a link out": (lambda f: (linked(X, "../secret")(f), index(X)(f)), LINK_OUT),
    "index of nothing": (text(INDEX, "[" * 10_000), TOO_DEEP),
    "tokenizer too large": (
        lambda f: os.truncate(f / "tokenizer.json", TOKENIZER_BYTES + 1),
        "has more than 50,331,648 bytes",
    ),
    "generation config too large": (
        emptied("generation_config.json", lambda path: path.write_bytes(b" " * (JSON_BYTES + 1))),
        "generation_config.json has more than 16,777,216 bytes",
    ),
    "special tokens deep": (text("special_tokens_map.json", "[" * 9999), TOO_DEEP),
}


@pytest.mark.check(after=24)
@pytest.mark.parametrize("case", sorted(BAD))
def test_hostile_checkpoint_is_refused_with_the_reason(bare: Path, registry: Registry, case: str) -> None:
    change, message = BAD[case]
    change(bare)
    with pytest.raises(CheckpointError) as told:
        registry.add_expert("math", bare)
    assert message in told.value.message
    assert told.value.hint
    assert len(told.value.message) < 1000
    assert (registry.versions(everything=True), list(registry.arrays.digests()), registry.log()) == ([], [], [])


def test_what_genuine_files_hold_is_read() -> None:
    genuine = b'{"model_max_length": 1000000000000000019884624838656, "a": "\\ud83d\\ude42[{,", "b": "\\"["}'
    assert parse_json(genuine) == {"model_max_length": 10**30 + 19884624838656, "a": "🙂[{,", "b": '"['}
    assert parse_json(b"[" * JSON_DEPTH + b"]" * JSON_DEPTH)
    for data in (b'"', b'"\\', b'{"a": "', b"\xef\xbb\xbf{}", b""):
        with pytest.raises(ValueError, match=r".+"):
            parse_json(data)


def test_links_within_the_folder_and_into_the_hubs_cache_are_followed(zoo: Zoo, tmp_path: Path) -> None:
    cache = tmp_path / "models--org--name"
    snapshot = cache / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for number, path in enumerate(sorted(zoo.base.iterdir())):
        shutil.copy(path, cache / "blobs" / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    assert Checkpoint(snapshot).shapes == Checkpoint(zoo.base).shapes
    assert read_files(snapshot) == read_files(zoo.base)
    (tmp_path / "named").symlink_to(snapshot)
    assert read_files(tmp_path / "named") == read_files(zoo.base)
    (tmp_path / "secret").write_text("x")
    (cache / "blobs" / "escape").symlink_to(tmp_path / "secret")
    (snapshot / "merges.txt").unlink(missing_ok=True)
    (snapshot / "merges.txt").symlink_to("../../blobs/escape")
    with pytest.raises(CheckpointError, match=r"is a symbolic link out of the folder, to .*secret"):
        read_files(snapshot)
    folder = shutil.copytree(zoo.base, tmp_path / "folder")
    (folder / "vocab.json").symlink_to("config.json")
    assert own_file(folder, "vocab.json") == folder / "vocab.json"
    (folder / "merges.txt").symlink_to("nowhere")
    assert own_file(folder, "merges.txt") is None


def test_tensor_of_two_files_is_refused(bare: Path) -> None:
    tensors = load_file(bare / WEIGHTS)
    save_file(tensors, bare / "a.safetensors")
    save_file({"lm_head.weight": tensors["lm_head.weight"]}, bare / "b.safetensors")
    text(INDEX, '{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}')(bare)
    (bare / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r"tensor lm_head\.weight is in a\.safetensors and in .*b\.safetensors"):
        Checkpoint(bare)


def test_header_says_what_safetensors_reads(zoo: Zoo) -> None:
    path = zoo.experts["code"] / "statistics.safetensors"
    found, tensors = read_header(path), load_file(path)
    assert {name: entry.shape for name, entry in found.tensors.items()} == {n: (*t.shape,) for n, t in tensors.items()}
    assert list(found.metadata) == ["expert-registry"]


def test_code_of_others_is_never_waited_for(tmp_path: Path) -> None:
    text("config.json", '{"model_type": "routed_llama"}')(tmp_path)
    os.mkfifo(tmp_path / "modeling.py")
    assert not has_our_code(tmp_path)


EXPANDS = "expands to more than 100 times its own size"
DATA: dict[str, tuple[str, bytes, str]] = {
    "many lines": (".jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 50_000), EXPANDS),
    "empty lines": (".jsonl.gz", gzip.compress(b"\n" * 500_000), EXPANDS),
    "one line": (".jsonl.gz", gzip.compress(b'{"text": "' + b"x" * 10_000), "has a row of more than 10,000 bytes"),
    "no end of line": (".jsonl", b'{"text": "' + b"x" * 10_000, "has a row of more than 10,000 bytes"),
    "deep": (".jsonl", b'{"text":' * 200, "row 1 is not JSON: it is nested deeper than 100 levels"),
    "key twice": (".jsonl", b'{"text": "a", "text": "b"}', "row 1 is not JSON: it has the key 'text' twice"),
    "no UTF-8": (".jsonl", b'{"text": "\xff"}', "cannot be read"),
    "no number": (".jsonl", b'{"text": NaN}', "row 1 is not JSON: NaN is not a number"),
    "text": (".txt", b"x" * 20_001, "has more than 20,000 bytes, and a .txt file is one document"),
}


@pytest.mark.parametrize("case", sorted(DATA))
def test_data_that_is_larger_than_it_looks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    for name, limit in (("ROW_BYTES", 10_000), ("TEXT_BYTES", 20_000), ("EXPANSION_FREE", 0)):
        monkeypatch.setattr(f"registry.calibration.corpus.{name}", limit)
    suffix, data, message = DATA[case]
    (tmp_path / f"data{suffix}").write_bytes(data)
    with pytest.raises(CalibrationError) as told:
        list(Corpus([tmp_path / f"data{suffix}"], None))
    assert message in told.value.message
    assert told.value.hint


def test_table_with_a_row_that_is_larger_than_it_looks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.calibration.corpus.ROW_BYTES", 10_000)
    tokenizer = type("Tokenizer", (), {"apply_chat_template": lambda *_, **__: "x"})()
    texts = ["x", "x" * 20_000]
    for column in ({"text": texts}, {"messages": [[{"role": "user", "content": text}] for text in texts]}):
        parquet.write_table(pa.table(column), tmp_path / "data.parquet")
        with pytest.raises(CalibrationError, match="row 2 has more than 10,000 bytes"):
            list(Corpus([tmp_path / "data.parquet"], tokenizer))


def test_text_that_comes_many_times_is_read(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"text": ["x" * 1000] * 10_000}), tmp_path / "data.parquet")
    assert (tmp_path / "data.parquet").stat().st_size < 20_000
    assert sum(1 for _ in Corpus([tmp_path / "data.parquet"], None)) == 10_000


def test_data_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data.jsonl")
    for path in (tmp_path / "data.jsonl", Path("/dev/zero"), tmp_path):
        with pytest.raises(CalibrationError, match="is not a file"):
            Corpus([path], None)
    assert not find_calibration(tmp_path)


Edit = Callable[[dict[str, Any], dict[str, torch.Tensor]], object]
"""A change of statistics: of their document and tensors."""
LENGTHS, NO_FIT = "calibration.lengths", "its lengths do not fit its windows"
NOT_TAKEN = "its statistics were not taken on the calibration tokens it holds"
LYING: dict[str, tuple[Edit, str]] = {
    "tensor of floats": (
        lambda _, t: t.update({"mlp_input.gram.0": t["mlp_input.gram.0"].double()}),
        "has a tensor 'mlp_input.gram.0' that statistics do not have",
    ),
    "tensor of another name": (lambda _, t: t.update(x=torch.zeros(1)), "has a tensor 'x' that statistics do not have"),
    "empty tensor": (
        lambda _, t: t.update(token_counts=torch.zeros(0, dtype=torch.int64)),
        "has a tensor 'token_counts' that statistics do not have",
    ),
    "lengths too long": (lambda _, t: t[LENGTHS].fill_(33), NO_FIT),
    "lengths too few": (lambda _, t: t.update({LENGTHS: t[LENGTHS][:-1].clone()}), NO_FIT),
    "other tokens": (lambda _, t: t["calibration.ids"][0, 0].add_(1), NOT_TAKEN),
    "other digest": (lambda d, _: d.update(calibration_digest="0" * 64), NOT_TAKEN),
    "label that moves the cursor": (
        lambda d, _: d.update(calibration_label="\x1b[2J"),
        "calibration_label is '\\x1b[2J', it must be a printable text",
    ),
    "saturation no count": (
        lambda d, _: d["saturated"].update(mlp_input=[-1, 2**70]),
        "it must be an object of lists of counts",
    ),
    "weights no digest": (lambda d, _: d.update(weights="x"), "weights is 'x', it must be a digest"),
    "unknown key": (lambda d, _: d.update(exec="x"), "has a key 'exec', which this program does not know"),
}


@pytest.mark.parametrize("case", sorted(LYING))
def test_statistics_that_lie_are_refused(zoo: Zoo, tmp_path: Path, registry: Registry, case: str) -> None:
    edit, message = LYING[case]
    path = shutil.copytree(zoo.experts["code"], tmp_path / "code") / "statistics.safetensors"
    document, tensors = json.loads(read_header(path).metadata["expert-registry"]), load_file(path)
    edit(document, tensors)
    save_file(tensors, path, metadata={"expert-registry": json.dumps(document)})
    with pytest.raises(CheckpointError) as told:
        registry.add_expert("code", path.parent)
    assert message in told.value.message
    assert registry.versions() == []


NAMES = ["../x", "a/b", "", ".", "-x", "A", "x" * 101, "a\n", "a\x00", "ｃｏｄｅ", "соde", "a\u202eb", "a b", "é"]
NAMES += ["'; DROP TABLE experts;--"]


def test_names_that_are_paths_or_look_alikes_are_refused(filled: Registry, tmp_path: Path) -> None:
    calls: list[Callable[[str], object]] = [
        lambda name: filled.add_expert(name, tmp_path),
        lambda name: filled.add_expert("x", tmp_path, tags={name: "x"}),
        lambda name: filled.add_expert("x", tmp_path, alias=name),
        lambda name: filled.alias("code", name),
        lambda name: filled.resolve(name),
        lambda name: filled.resolve(f"code@{name}"),
        lambda name: filled.opt_out(name),
    ]
    before = len(filled.log())
    for name, call in product(NAMES, calls):
        with pytest.raises((InvalidInputError, NotFoundError)):
            call(name)
    for tag in ("", "x" * 1001, "a\nb", "\x1b[31m", "\u202e", "\ud800"):
        with pytest.raises(InvalidInputError, match="empty, unprintable or too long"):
            filled.add_expert("x", tmp_path, tags={"key": tag})
    assert len(filled.log()) == before


def test_folder_that_is_compared_may_hold_pipes_and_links(filled: Registry, tmp_path: Path) -> None:
    filled.compose(["code"], tmp_path / "made")
    (tmp_path / "made" / "elsewhere").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "made" / "pipe")
    (tmp_path / "made" / "README.md").unlink()
    os.mkfifo(tmp_path / "made" / "README.md")
    found = filled.reproduce(tmp_path / "made")
    states = {file.name: file.state for file in found.differing}
    assert states == {"README.md": "missing", "elsewhere": "added", "pipe": "added"}
    with pytest.raises(RegError):
        filled.reproduce(tmp_path / "made" / "pipe")
