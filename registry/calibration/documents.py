"""Documents from files: `.txt` (one document), `.jsonl`, `.jsonl.gz`, `.parquet` (one document a row)."""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.errors import CalibrationError, first_line

SUFFIXES = (".txt", ".jsonl", ".jsonl.gz", ".parquet")


@dataclass(frozen=True)
class Document:
    """A text; `is_chat` where a chat template made it, which then wrote its own start token."""

    text: str
    is_chat: bool = False


class Corpus:
    """Documents of some files, read anew by each iteration; only one document is in memory at a time.

    A row is a document if it has a string `text`, or `messages` that the tokenizer's chat template can render.
    """

    def __init__(self, paths: Sequence[Path], tokenizer: Any) -> None:
        """Name the files.

        Raises:
            CalibrationError: a file does not exist or has another ending than `SUFFIXES`.
        """
        self.paths = tuple(paths)
        self._tokenizer = tokenizer
        for path in self.paths:
            if not path.is_file():
                raise CalibrationError(f"{path} is not a file", "name an existing file")
            _reader(path)

    @property
    def label(self) -> str:
        """The files' names."""
        return ", ".join(path.name for path in self.paths)

    def __iter__(self) -> Iterator[Document]:
        for path in self.paths:
            try:
                for number, row in _reader(path)(path):
                    document = self._document(row, f"{path}, row {number}")
                    if document.text.strip():
                        yield document
            except PermissionError as error:
                raise CalibrationError(
                    f"{path} cannot be read: permission denied", f"make it readable: chmod u+r {path}"
                ) from error
            except (OSError, EOFError, UnicodeDecodeError) as error:
                raise CalibrationError(
                    f"{path} cannot be read: {error}", "give --data an intact file in UTF-8"
                ) from error

    def _document(self, row: Any, where: str) -> Document:
        if isinstance(row, dict) and isinstance(row.get("text"), str):
            return Document(row["text"])
        if isinstance(row, dict) and isinstance(row.get("messages"), list):
            try:
                return Document(str(self._tokenizer.apply_chat_template(row["messages"], tokenize=False)), is_chat=True)
            except Exception as error:  # templates are programs of the checkpoint's author
                raise CalibrationError(
                    f"{where}: the tokenizer's chat template cannot render its messages: {first_line(error)}",
                    "give rows with a 'text' field, or a checkpoint whose tokenizer has a chat template",
                ) from error
        raise CalibrationError(
            f"{where} has neither a string 'text' nor a list 'messages'", "give each row one of them"
        )


def find_calibration(folder: Path) -> Path | None:
    """Return the `calibration.*` file that a checkpoint folder carries, if any."""
    candidates = (folder / f"calibration{suffix}" for suffix in SUFFIXES)
    return next((path for path in candidates if path.is_file()), None)


def _reader(path: Path) -> Callable[[Path], Iterator[tuple[int, Any]]]:
    for suffix, reader in _READERS.items():
        if path.name.endswith(suffix):
            return reader
    raise CalibrationError(f"{path} has none of the endings {', '.join(SUFFIXES)}", "convert it to one of them")


def _read_text(path: Path) -> Iterator[tuple[int, Any]]:
    yield 1, {"text": path.read_text(encoding="utf-8")}


def _read_jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise CalibrationError(f"{path}, row {number} is not JSON: {error}", "mend that line") from error


def _read_parquet(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError as error:
        raise CalibrationError(f"{path}: reading parquet needs pyarrow", "run: pip install pyarrow") from error
    try:
        with parquet.ParquetFile(path) as file:
            columns = [name for name in ("text", "messages") if name in file.schema_arrow.names]
            number = 0
            for batch in file.iter_batches(batch_size=64, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except ArrowInvalid as error:
        raise CalibrationError(f"{path} is not parquet: {first_line(error)}", "give --data an intact file") from error


_READERS = {".txt": _read_text, ".jsonl": _read_jsonl, ".jsonl.gz": _read_jsonl, ".parquet": _read_parquet}
