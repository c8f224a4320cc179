"""Proves: every format is read, one document at a time, and what cannot be read is told by file and row."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from registry import Registry
from registry.calibration.corpus import Corpus, find_calibration
from registry.errors import CalibrationError
from tests.conftest import SETTINGS

TEXTS = ["first text", "zweiter Text, Größe", "third\ntext"]


def write(folder: Path, suffix: str) -> Path:
    """Write the texts to a file, with empty ones and empty lines between them."""
    path, texts = folder / f"data{suffix}", ["", *TEXTS, "  \n"]
    rows = "".join(json.dumps({"text": text}) + "\n\n" for text in texts)
    if suffix == ".txt":
        path.write_text("\n\n".join(TEXTS), encoding="utf-8")
    elif suffix == ".jsonl":
        path.write_text(rows, encoding="utf-8")
    elif suffix == ".jsonl.gz":
        path.write_bytes(gzip.compress(rows.encode()))
    else:
        parquet.write_table(pa.table({"text": texts, "other": range(5)}), path)
    return path


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".jsonl.gz", ".parquet"])
def test_every_format_is_read_and_can_be_read_again(tmp_path: Path, suffix: str) -> None:
    corpus = Corpus([write(tmp_path, suffix)], None)
    expected = ["\n\n".join(TEXTS)] if suffix == ".txt" else TEXTS
    for _ in range(2):
        assert [document.text for document in corpus] == expected
    assert corpus.label == f"data{suffix}"


def test_many_files_are_one_corpus(tmp_path: Path) -> None:
    corpus = Corpus([write(tmp_path, ".jsonl"), write(tmp_path, ".txt")], None)
    assert len(list(corpus)) == 4
    assert corpus.label == "data.jsonl, data.txt"


BAD = {
    "absent": ("absent.jsonl", None, "is not a file"),
    "other ending": ("data.csv", b"a,b", r"has none of the endings \.txt, \.jsonl, \.jsonl\.gz, \.parquet"),
    "no JSON": ("data.jsonl", b'{"text": "a"}\n{', "row 2 is not JSON"),
    "no text": ("data.jsonl", b'{"txt": "a"}', "row 1 has the fields txt"),
    "no UTF-8": ("data.txt", b"\xff\xfe\xfa", "cannot be read"),
    "cut gzip": ("data.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 1000)[:-10], "cannot be read"),
    "no parquet": ("data.parquet", b"nonsense", "is not parquet"),
    "no text at all": ("data.jsonl", b"\n", "its files hold no text"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_data_that_cannot_be_read_is_told_and_nothing_is_registered(
    bare: Path, registry: Registry, tmp_path: Path, case: str
) -> None:
    name, content, message = BAD[case]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CalibrationError, match=message) as caught:
        registry.add_expert("code", bare, data=[tmp_path / name], settings=SETTINGS)
    assert caught.value.hint
    assert registry.versions() == []


def test_checkpoint_carries_its_own_calibration(tmp_path: Path) -> None:
    assert find_calibration(tmp_path) == []
    (tmp_path / "calibration.jsonl.gz").write_bytes(b"")
    assert find_calibration(tmp_path) == [tmp_path / "calibration.jsonl.gz"]


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path) -> None:
    path = write(tmp_path, ".parquet")
    script = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pathlib import Path\n"
        "from registry.calibration.corpus import Corpus\n"
        f"try: list(Corpus([Path({str(path)!r})], None))\n"
        "except Exception as error: print(error.hint)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "run: pip install pyarrow"
