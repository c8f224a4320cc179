"""Windows of tokens, sampled from documents.

`random_places` samples calibration tokens from all of a corpus, not from its beginning: the corpus, measured in
characters, is divided into as many equal strata as there are windows, and one seeded random position is drawn in each.
A window begins there (at the next white space, so that no word is cut) and continues through the following documents if
necessary, each of which begins with the tokenizer's start token. Only the text of the windows is tokenised.

Where the tokenizer begins every text with a start token, every window begins with it, wherever its text begins: models
that always saw one know little without it (Gemma 3 270M: a loss of 3.4 nats, not 2.2).

Until windows are complete, a token t that a chat template wrote is ~t, below zero: so it stays known through all cuts.

Shapes: N windows, S tokens of a window, T tokens of a corpus.
"""

import random
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from typing import Any

import torch
from jaxtyping import Int32
from torch import Tensor

from registry.calibration.calibration import Calibration
from registry.calibration.corpus import Corpus, Document
from registry.errors import CalibrationError, CheckpointError, first_line, is_foreign

_CHARACTERS_PER_TOKEN = 8
_WORD_CHARACTERS = 64


def random_places(corpus: Corpus, tokenizer: Any, *, tokens: int, seq_len: int, seed: int) -> Calibration:
    """Return ⌈tokens / seq_len⌉ windows of `seq_len` tokens at random positions of `corpus`, one in each stratum.

    A corpus with fewer tokens is used in full, once, in its own order (CalibrationError: there is no text).
    """
    sizes, documents = _sizes(corpus)
    if not sizes:
        raise _without_text(corpus)
    calibration = _placed(corpus, tokenizer, sizes, tokens=tokens, seq_len=seq_len, seed=seed)
    return replace(calibration, documents=documents)


def _sizes(corpus: Corpus) -> tuple[list[int], float]:
    """Return the characters of each document, and the share of all characters that are of no conversation."""
    sizes, plain = list[int](), 0
    for document in corpus:
        sizes.append(len(document.text))
        plain += 0 if document.is_chat else sizes[-1]
    return sizes, plain / max(1, sum(sizes))


def _placed(corpus: Corpus, tokenizer: Any, sizes: list[int], *, tokens: int, seq_len: int, seed: int) -> Calibration:
    """Return windows of `random_places`, of documents of these sizes."""
    count = max(1, -(-tokens // seq_len))
    draw, total = random.Random(seed), sum(sizes)
    if total < count * seq_len * _CHARACTERS_PER_TOKEN:
        # Perhaps too little text: tokenise it all, and use it in full if so.
        stream = _stream(corpus, tokenizer)
        if len(stream) <= count * seq_len:
            return _whole(stream, tokenizer, seq_len, corpus.label)
        length = len(stream) - seq_len
        starts = [int((i + draw.random()) * length / count) for i in range(count)]
        return _cut(stream, starts, tokenizer, seq_len, corpus.label)
    last = total - seq_len * _CHARACTERS_PER_TOKEN  # so that a window there does not run over the end
    positions = [int((i + draw.random()) * last / count) for i in range(count)]
    return _filled(_windows_at(corpus, tokenizer, sizes, positions, seq_len), count, seq_len, corpus.label)


def document_beginnings(
    corpus: Corpus, tokenizer: Any, *, tokens: int, seq_len: int, seed: int, speaker: str | None = None
) -> Calibration:
    """Return the first `seq_len` tokens of ⌈tokens / seq_len⌉ documents of `corpus`, a window each.

    The documents of the corpus are divided into as many equal strata, and one is drawn in each, by the seed; of fewer
    documents all are taken. The start token counts as the first token. A shorter document is a shorter window. With
    `speaker`, a role, its messages alone count as written (CalibrationError: there is no text).
    """
    sizes, documents = _sizes(corpus)
    total = len(sizes)
    count, draw = min(total, max(1, -(-tokens // seq_len))), random.Random(seed)
    chosen = {draw.randrange(i * total // count, (i + 1) * total // count) for i in range(count)}
    windows = (_piece(document, 0, seq_len, tokenizer, speaker) for n, document in enumerate(corpus) if n in chosen)
    found = _filled(windows, count, seq_len, corpus.label)
    if not len(found.ids):
        raise _without_text(corpus)
    return replace(found, documents=documents)


def evenly_spaced(corpus: Corpus, tokenizer: Any, *, windows: int, seq_len: int) -> Calibration:
    """Return up to `windows` windows, evenly spaced over documents in a seeded order (CalibrationError: no text)."""
    documents = list(corpus)
    random.Random(0).shuffle(documents)
    stream = _stream(documents, tokenizer)
    if not len(stream):
        raise _without_text(corpus)
    if len(stream) <= seq_len:
        return _whole(stream, tokenizer, seq_len, corpus.label)
    step = max(seq_len, (len(stream) - seq_len) // windows)
    starts = [start for i in range(windows) if (start := i * step) + seq_len <= len(stream)]
    return _cut(stream, starts, tokenizer, seq_len, corpus.label)


def _without_text(corpus: Corpus) -> CalibrationError:
    return CalibrationError(f"{corpus.label}: its files hold no text", "give --data files that hold text")


def start_token(tokenizer: Any) -> int | None:
    """Return the token that begins a document: the tokenizer's start token, else its end token, else None."""
    token = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    return None if token is None else int(token)


def _first_of_all(tokenizer: Any) -> int | None:
    """Return the start token if the tokenizer begins every text with it, else None (CheckpointError: it fails)."""
    with _cutting():
        start = tokenizer.bos_token_id
        alone: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]  # perhaps unknown, and so the same
        return None if start is None or tokenizer("a")["input_ids"][: len(alone) + 1] != [start, *alone] else int(start)


def encode(document: Document, tokenizer: Any, begin: int = 0, end: int | None = None) -> list[int]:
    """Return the tokens of `document` between two characters (CheckpointError: the tokenizer fails on the text).

    The start token comes before a document's first character, unless a chat template wrote its own.
    """
    return [max(token, ~token) for token in _marked(document, tokenizer, begin, end)]


def _marked(
    document: Document, tokenizer: Any, begin: int = 0, end: int | None = None, speaker: str | None = None
) -> list[int]:
    """Return the same, with ~t for a token t that a chat template wrote: that has no character of a content.

    With `speaker`, a role, so are the tokens of the contents of others.
    """
    with _cutting():
        coded = tokenizer(
            document.text[begin:end],
            add_special_tokens=False,
            verbose=False,
            return_offsets_mapping=document.is_chat and tokenizer.is_fast,
        )
        tokens: list[int] = coded["input_ids"]
        start = start_token(tokenizer) if begin == 0 and not document.is_chat else None
        if not 0 <= min(tokens, default=0) <= max(tokens, default=0) < 2**31 or not 0 <= (start or 0) < 2**31:
            raise ValueError("it returns numbers that are not tokens")
    if "offset_mapping" in coded:
        contents = [place for role, place in document.contents(tokenizer) if None in (speaker, role) or speaker == role]
        spans = ((first + begin, stop + begin) for first, stop in coded["offset_mapping"])
        tokens = [t if _within(span, contents) else ~t for t, span in zip(tokens, spans, strict=True)]
    return tokens if start is None else [start, *tokens]


@contextmanager
def _cutting() -> Iterator[None]:
    """Raise CheckpointError where a tokenizer fails."""
    try:
        yield
    except BaseException as error:
        if not is_foreign(error):
            raise
        raise CheckpointError(
            f"the tokenizer cannot cut text into tokens: {first_line(error)}",
            "put the tokenizer that the model was trained with into the folder",
        ) from error


def _within(span: tuple[int, int], contents: Sequence[tuple[int, int]]) -> bool:
    """Tell whether a token has a character of one of the contents, which are in order and apart."""
    number = bisect_right(contents, span[0], key=itemgetter(0)) - 1
    return any(span[0] < stop and begin < span[1] for begin, stop in contents[max(number, 0) : number + 2])


def _windows_at(
    corpus: Corpus, tokenizer: Any, sizes: list[int], positions: list[int], seq_len: int
) -> Iterator[list[int]]:
    """Yield a window for each position (a character of the whole corpus, ascending); a second pass over the files."""
    first, waiting = _first_of_all(tokenizer), iter(positions)
    position = next(waiting, None)
    open_windows: list[list[int]] = []
    offset = 0
    for document, size in zip(corpus, sizes, strict=True):
        for window in open_windows:
            window += _piece(document, 0, seq_len - len(window), tokenizer)
        while position is not None and position < offset + size:
            open_windows.append(_piece(document, position - offset, seq_len, tokenizer))
            position = next(waiting, None)
        while open_windows and len(open_windows[0]) == seq_len:
            yield _begun(open_windows.pop(0), first)[:seq_len]
        offset += size
    for window in open_windows:  # text with few tokens a character may end early
        yield _begun(window, first)[:seq_len]


def _begun(window: list[int], first: int | None) -> list[int]:
    """Return a window of marked tokens with this token before it, unless it has it or is empty."""
    return window if first is None or not window or first in (window[0], ~window[0]) else [first, *window]


def _piece(document: Document, begin: int, count: int, tokenizer: Any, speaker: str | None = None) -> list[int]:
    """Return up to `count` marked tokens of `document`, from the white space after character `begin` if one is near."""
    if count <= 0:
        return []
    if begin > 0:
        near = document.text[begin : begin + _WORD_CHARACTERS]
        in_last_word = len(near) if len(near) < _WORD_CHARACTERS else 0
        begin += next((i for i, character in enumerate(near) if character.isspace()), in_last_word)
    characters = count * _CHARACTERS_PER_TOKEN
    while True:
        tokens = _marked(document, tokenizer, begin, begin + characters, speaker)
        # Unless the text ends here, the last tokens may belong to a word that was cut, so a few more are encoded.
        if begin + characters >= len(document.text) or len(tokens) >= count + _WORD_CHARACTERS:
            return tokens[:count]
        characters *= 2


def _stream(documents: Iterable[Document], tokenizer: Any) -> Int32[Tensor, "T"]:
    """Return the marked tokens of all documents, in order."""
    tokens = array("i")  # 4 bytes a token
    for document in documents:
        tokens.extend(_marked(document, tokenizer))
    return torch.frombuffer(tokens, dtype=torch.int32) if tokens else torch.zeros(0, dtype=torch.int32)


def _filled(windows: Iterable[list[int]], most: int, seq_len: int, label: str) -> Calibration:
    """Return up to `most` windows of marked tokens that have some, without lists of all: nine times the memory."""
    ids, lengths = torch.zeros((most, seq_len), dtype=torch.int32), torch.zeros(most, dtype=torch.int32)
    filled = 0
    for window in windows:
        if len(window):
            ids[filled, : len(window)] = torch.as_tensor(window, dtype=torch.int32)
            lengths[filled] = len(window)
            filled += 1
    ids, written = ids[:filled], ids[:filled] >= 0
    some = None if bool(written.all()) else written
    return Calibration(torch.where(written, ids, ~ids), lengths[:filled], label, some)


def _cut(stream: Int32[Tensor, "T"], starts: Sequence[int], tokenizer: Any, seq_len: int, label: str) -> Calibration:
    first = _first_of_all(tokenizer)
    windows = (_begun(stream[start : start + seq_len].tolist(), first)[:seq_len] for start in starts)
    return _filled(windows, len(starts), seq_len, label)


def _whole(stream: Int32[Tensor, "T"], tokenizer: Any, seq_len: int, label: str) -> Calibration:
    """Cut a stream into windows that have all its tokens."""
    first, starts, start = _first_of_all(tokenizer), [], 0
    while start < len(stream):
        starts.append(start)
        start += max(1, seq_len + 1 - len(_begun(stream[start : start + 1].tolist(), first)))
    return _cut(stream, starts, tokenizer, seq_len, label)
