"""Documents in files: `.txt` (one document), `.jsonl`, `.jsonl.gz`, `.parquet` (one document a row).

A row is plain text, a conversation, or of a shape that instruction data has:

    {"text": …}                                            as it is
    {"messages": [{"role": …, "content": …}, …]}           a conversation; `tools` beside it describes what it may call
    {"conversations": [{"from": …, "value": …}, …]}        the same (ShareGPT)
    {"instruction": …, "input": …, "output": …}            a question and its answer (Alpaca; `input` may be missing)
    {"prompt": …, "completion": …}                         texts joined as they are, or two lists of messages (TRL)

A conversation becomes text by the tokenizer's chat template. Without one, its contents are joined by empty lines.
"""

import codecs
import gzip
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.errors import CalibrationError, first_line
from registry.io.limits import EXPANSION, EXPANSION_FREE, FOOTER_BYTES, ROW_BYTES, TEXT_BYTES
from registry.io.untrusted import own_file, parse_json
from registry.names.reference import require_list
from registry.names.suggest import suggest_path
from registry.progress import Progress, remark, silent

Message = Mapping[str, Any]

FIELDS = (  # of a row, that are read
    *("text", "messages", "tools", "conversations", "instruction", "input", "output", "response"),
    *("prompt", "completion"),
)
SHAPES = "'text', 'messages', 'conversations', 'instruction' with 'output', or 'prompt' with 'completion'"

_ROLES = {  # speakers of ShareGPT's conversations → roles of a chat template
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bot"), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "function", "observation", "function_response"), "tool"),
}

_MARK = "\ue000{}\ue001"
"""What stands for the content of a message where the template's own text is looked for: characters of no language."""


@dataclass(frozen=True)
class Document:
    """A text; if a chat template made it, with its own start token, its messages and the tools they may call too."""

    text: str
    messages: tuple[Message, ...] | None = None
    tools: Any = None

    @property
    def is_chat(self) -> bool:
        """True if a chat template made it."""
        return self.messages is not None

    def contents(self, tokenizer: Any) -> Iterator[tuple[str | None, tuple[int, int]]]:
        """Yield for each message, in order, its role, and the first character of its content and the one after it.

        What stands between them is the template's. It is found by rendering the conversation once more, with marks in
        place of contents. A template whose own text depends on contents is not understood: all text then counts as
        content, and no role is known.
        """
        assert self.messages is not None
        marked = [{**message, "content": _MARK.format(number)} for number, message in enumerate(self.messages)]
        pieces = list[str]()
        try:
            rest = str(tokenizer.apply_chat_template(marked, tools=self.tools, tokenize=False))
            for one in marked:
                piece, mark, rest = rest.partition(one["content"])
                pieces += [piece] if mark else []
        except Exception:  # templates are programs of the checkpoint's author
            pieces = []
        if (
            not pieces
            or len(pieces) < len(marked)
            or not self.text.startswith(pieces[0])
            or not self.text.endswith(rest)
        ):
            yield None, (0, len(self.text))
            return
        end = len(pieces[0])
        for message, after in zip(self.messages, [*pieces[1:], rest], strict=True):
            begin, end = end, self._end(end, content_of(message), after)
            yield message.get("role"), (begin, end)
            end += len(after)

    def _end(self, begin: int, content: str, after: str) -> int:
        """Return the character after a content that begins somewhere, before the template's text `after`."""
        for written in (content, content.strip()):
            if self.text.startswith(written + after, begin):
                return begin + len(written)
        found = self.text.find(after, begin) if after else -1  # the template changed the content
        return len(self.text) if found < 0 else found


def messages_of(row: Any) -> list[Any] | None:
    """Return the conversation in a row; None if it has none (ValueError: its messages are not a conversation)."""
    if not isinstance(row, dict):
        return None
    if isinstance(row.get("messages"), list):
        return list(row["messages"])
    if isinstance(row.get("conversations"), list):
        return [_spoken(message) for message in row["conversations"]]
    if all(isinstance(row.get(key), list) for key in ("prompt", "completion")):
        return [*row["prompt"], *row["completion"]]
    answer = next((row[key] for key in ("output", "response") if isinstance(row.get(key), str)), None)
    if isinstance(row.get("instruction"), str) and answer is not None:
        asked = [row["instruction"], *([row["input"]] if row.get("input") else [])]
        return [{"role": "user", "content": "\n\n".join(map(str, asked))}, {"role": "assistant", "content": answer}]
    return None


def text_of(row: Any) -> str | None:
    """Return the plain text in a row; None if it has none."""
    if isinstance(row, dict) and isinstance(row.get("text"), str):
        return str(row["text"])
    if isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("prompt", "completion")):
        return f"{row['prompt']}{row['completion']}"
    return None


def content_of(message: Any) -> str:
    """Return the text of a message, of which only text may be a part (ValueError: it has none)."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "\n".join(str(part["text"]) for part in content if isinstance(part, Mapping) and "text" in part)
    if content is None and isinstance(message, Mapping) and "role" in message:
        return ""  # of a call of a tool
    if not isinstance(content, str):
        raise ValueError(f"a message has no text: {str(message)[:80]}")
    return content


def _spoken(message: Any) -> Message:
    """Return a message of ShareGPT's form as one of a chat template's."""
    if isinstance(message, Mapping) and "role" in message:
        return message
    speaker = message.get("from") if isinstance(message, Mapping) else None
    if speaker not in _ROLES or not isinstance(message.get("value"), str):
        raise ValueError(f"a message has no speaker that is known, or no text: {str(message)[:80]}")
    return {"role": _ROLES[speaker], "content": message["value"]}


PathLike = str | os.PathLike[str]


class Corpus:
    """Documents of some files; each iteration reads the files again, with one document in memory at a time.

    The tokenizer's chat template makes text of conversations. `progress` receives a remark where it has none, so that
    contents are joined by empty lines, where its own tokens cannot be told from those of contents, and of a file
    without text; each once.
    """

    def __init__(self, paths: Sequence[Path], tokenizer: Any, progress: Progress = silent) -> None:
        """Raise CalibrationError if a file does not exist or has another ending than `SUFFIXES`."""
        self.paths = tuple(paths)
        self._tokenizer, self._progress, self._told = tokenizer, progress, set[str]()
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
            empty = True
            try:
                for number, row in _reader(path)(path):
                    document = self._document(row, f"{path}, row {number}")
                    if document.text and not document.text.isspace():
                        empty = False
                        yield document
            except PermissionError as error:
                raise CalibrationError(
                    f"{path} cannot be read: permission denied", f"make it readable: chmod u+r {path}"
                ) from error
            except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
                raise CalibrationError(f"{path} cannot be read: {error}", "give an intact file in UTF-8") from error
            if empty and len(self.paths) > 1:  # a single one is an error of whoever reads it
                self._remark(f"{path} holds no text")

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
        if text not in self._told:
            self._told.add(text)
            remark(self._progress, text)


def check_files(
    files: Sequence[PathLike] | PathLike | Mapping[str, Sequence[PathLike] | PathLike], noun: str = "data"
) -> None:
    """Check that files of text, or of each domain, exist and have an ending that is read; `noun` names them in errors.

    (InvalidInputError: a path in place of a list; CalibrationError: no file, or another ending than `SUFFIXES`.)
    """
    for own in files.values() if isinstance(files, Mapping) else (files,):
        Corpus([Path(file) for file in require_list(own, noun)], None)


def find_calibration(folder: Path) -> list[Path]:
    """Return the `calibration.*` files of a checkpoint folder, the one that is read first (errors as `own_file`)."""
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
SUFFIXES = tuple(_READERS)
