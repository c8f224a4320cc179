"""Documents in files: `.txt` (one document), `.jsonl`, `.jsonl.gz`, `.parquet` (one document a row: `rows.py`)."""

import codecs
import gzip
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from registry.calibration.rows import FIELDS, SHAPES, Document, content_of, messages_of, text_of
from registry.errors import CalibrationError, first_line
from registry.io.files import own_file
from registry.io.limits import EXPANSION, EXPANSION_FREE, FOOTER_BYTES, ROW_BYTES, TEXT_BYTES
from registry.io.strict_json import parse_json
from registry.names.reference import require_list
from registry.names.suggest import suggest_path
from registry.progress import Progress, remark, silent

PathLike = str | os.PathLike[str]

SUFFIXES = (".txt", ".jsonl", ".jsonl.gz", ".parquet")


class Corpus:
    """Documents of some files; each iteration reads the files again, with one document in memory at a time.

    Args:
        paths: the files.
        tokenizer: its chat template makes text of conversations.
        progress: receives a remark where it has none, so that contents are joined by empty lines, or where its own
            tokens cannot be told from those of contents.
    """

    def __init__(self, paths: Sequence[Path], tokenizer: Any, progress: Progress = silent) -> None:
        """Check the files.

        Raises:
            CalibrationError: a file does not exist or has another ending than `SUFFIXES`.
        """
        self.paths = tuple(paths)
        self._tokenizer, self._progress = tokenizer, progress
        for path in self.paths:
            if not path.is_file():
                raise CalibrationError(
                    f"{path} is not a file{suggest_path(path, lambda entry: entry.name.endswith(SUFFIXES))}",
                    "name an existing file",
                )
            _reader(path)

    @property
    def label(self) -> str:
        """The files' names, with `?` for characters that cannot be printed."""
        names = ", ".join(path.name for path in self.paths)
        return "".join(character if character.isprintable() else "?" for character in names)

    def __iter__(self) -> Iterator[Document]:
        for path in self.paths:
            try:
                for number, row in _reader(path)(path):
                    document = self._document(row, f"{path}, row {number}")
                    if document.text and not document.text.isspace():
                        yield document
            except PermissionError as error:
                raise CalibrationError(
                    f"{path} cannot be read: permission denied", f"make it readable: chmod u+r {path}"
                ) from error
            except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
                raise CalibrationError(f"{path} cannot be read: {error}", "give an intact file in UTF-8") from error

    def _document(self, row: Any, where: str) -> Document:
        if (text := text_of(row)) is not None:
            return Document(text)
        try:
            messages = messages_of(row)
            contents = None if messages is None else list(map(content_of, messages))
        except ValueError as error:
            raise CalibrationError(f"{where}: {error}", "mend or leave out that row") from error
        if messages is None or contents is None:
            found = f"the fields {', '.join(map(str, row))[:200]}" if isinstance(row, dict) else "no fields"
            raise CalibrationError(f"{where} has {found}", f"give each row {SHAPES}")
        if not getattr(self._tokenizer, "chat_template", None):
            self._remark("the tokenizer has no chat template: contents of messages are joined by empty lines")
            return Document("\n\n".join(contents))
        if not self._tokenizer.is_fast:
            self._remark("the tokenizer does not say where its tokens stand: the chat template's count as evidence too")
        try:
            tools = row.get("tools") or None
            text = str(self._tokenizer.apply_chat_template(messages, tools=tools, tokenize=False))
            return Document(text, tuple(messages), tools)
        except Exception as error:  # templates are programs of the checkpoint's author
            raise CalibrationError(
                f"{where}: the tokenizer's chat template cannot render its messages: {first_line(error)}",
                "mend or leave out that row, or give rows with a 'text' field",
            ) from error

    def _remark(self, text: str) -> None:
        """Report a sentence, once."""
        progress, self._progress = self._progress, silent
        remark(progress, text)


def check_files(
    files: Sequence[PathLike] | PathLike | Mapping[str, Sequence[PathLike] | PathLike], noun: str = "data"
) -> None:
    """Check that files of text exist and have an ending that is read, without torch.

    Args:
        files: the files, or those of each domain.
        noun: what they are called in an error.

    Raises:
        InvalidInputError: one path stands in place of a list.
        CalibrationError: a file does not exist or has another ending than `SUFFIXES`.
    """
    for own in files.values() if isinstance(files, Mapping) else (files,):
        Corpus([Path(file) for file in require_list(own, noun)], None)


def find_calibration(folder: Path) -> list[Path]:
    """Return the `calibration.*` files of a checkpoint folder, the one that is read first.

    Raises:
        CheckpointError: a file is a symbolic link out of the folder.
    """
    return [path for suffix in SUFFIXES if (path := own_file(folder, f"calibration{suffix}")) is not None]


def _reader(path: Path) -> Callable[[Path], Iterator[tuple[int, Any]]]:
    for suffix, reader in _READERS.items():
        if path.name.endswith(suffix):
            return reader
    raise CalibrationError(f"{path} has none of the endings {', '.join(SUFFIXES)}", "convert it to one of them")


def _read_text(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        data = file.read(TEXT_BYTES + 1)
    if len(data) > TEXT_BYTES:
        raise CalibrationError(
            f"{path} has more than {TEXT_BYTES:,} bytes, and a .txt file is one document",
            "split it, or write one document a row: .jsonl",
        )
    yield 1, {"text": data.removeprefix(codecs.BOM_UTF8).decode("utf-8")}


def _read_jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        most = path.stat().st_size * EXPANSION + EXPANSION_FREE
        for number, line in enumerate(_lines(path, file, most), start=1):
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if line.strip():
                try:
                    yield number, parse_json(line)
                except UnicodeDecodeError:
                    raise
                except ValueError as error:
                    raise CalibrationError(f"{path}, row {number} is not JSON: {error}", "mend that line") from error


def _lines(path: Path, file: Any, most: int) -> Iterator[bytes]:
    """Yield the lines of a file that has at most `most` bytes."""
    read = 0
    while line := file.readline(ROW_BYTES + 1):
        read += len(line)
        if len(line) > ROW_BYTES:
            raise CalibrationError(f"{path} has a row of more than {ROW_BYTES:,} bytes", "split that document")
        if read > most:
            raise CalibrationError(
                f"{path} expands to more than {EXPANSION} times its own size", "expand it where you trust it: gunzip"
            )
        yield line


def _read_parquet(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise CalibrationError(f"{path}: reading parquet needs pyarrow", "run: pip install pyarrow") from error
    try:
        limits = {"thrift_string_size_limit": FOOTER_BYTES, "thrift_container_size_limit": FOOTER_BYTES}
        with parquet.ParquetFile(path, **limits) as file:
            kinds = {field.name: field.type for field in file.schema_arrow}
            kind = kinds.get("text")
            kind = kind.value_type if isinstance(kind, pyarrow.DictionaryType) else kind
            texts = ["text"] if kind in (pyarrow.string(), pyarrow.large_string()) else []
            columns = texts + [name for name in FIELDS if name in kinds and name != "text"]
        # Texts stay encoded as a dictionary: one that occurs a million times is in memory once.
        with parquet.ParquetFile(path, read_dictionary=texts, **limits) as file:
            number = 0
            for batch in file.iter_batches(batch_size=64, columns=columns):
                for row in range(batch.num_rows):
                    number += 1
                    yield number, {name: _cell(path, number, batch.column(name)[row]) for name in columns}
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, PermissionError):
            raise
        raise CalibrationError(f"{path} is not parquet: {first_line(error)}", "give an intact file") from error


def _cell(path: Path, number: int, value: Any) -> Any:
    """Return one cell of a table, after a check of its size."""
    scalar = getattr(value, "value", value)  # the entry of a dictionary
    if hasattr(scalar, "as_buffer"):
        size = 0 if (data := scalar.as_buffer()) is None else data.size
    else:
        size = getattr(getattr(scalar, "values", None), "nbytes", 0)
    if size > ROW_BYTES:
        raise CalibrationError(f"{path}, row {number} has more than {ROW_BYTES:,} bytes", "split that document")
    return value.as_py()


_READERS = {".txt": _read_text, ".jsonl": _read_jsonl, ".jsonl.gz": _read_jsonl, ".parquet": _read_parquet}
