"""From documents to windows of tokens.

`random_places` takes statistics' tokens from the whole of a corpus, never from its head: the corpus, measured in
characters, is cut into as many equal strata as windows are wanted, and one seeded random place is drawn in each. A
window begins there (at the next white space, so that no word is cut) and runs on, through the following documents if
need be, each of which begins with the tokenizer's start token. Only the pieces that are needed are ever tokenised.

`evenly_spaced` takes test tokens: all documents in a seeded order, concatenated, windows at equal distances.
"""

import random
from collections.abc import Iterator
from typing import Any

import torch

from registry.calibration.calibration import Calibration
from registry.calibration.corpus import Corpus, Document
from registry.errors import CalibrationError, CheckpointError, first_line, is_foreign

_CHARACTERS_PER_TOKEN = 8
_WORD_CHARACTERS = 64
_EMPTY = ("its files hold no text", "give --data files that hold text")


def random_places(corpus: Corpus, tokenizer: Any, *, tokens: int, seq_len: int, seed: int) -> Calibration:
    """Return ⌈tokens / seq_len⌉ windows of `seq_len` tokens at random places of `corpus`, one in each stratum.

    A corpus with fewer tokens than asked for is taken whole, once, in its own order.

    Raises:
        CalibrationError: there is no text.
    """
    sizes = [len(document.text) for document in corpus]
    if not sizes:
        raise CalibrationError(f"{corpus.label}: {_EMPTY[0]}", _EMPTY[1])
    count = max(1, -(-tokens // seq_len))
    total = sum(sizes)
    if total < count * seq_len * _CHARACTERS_PER_TOKEN:
        # Perhaps too little text: tokenise it all, and take it whole if it is.
        stream = [token for document in corpus for token in encode(document, tokenizer)]
        if len(stream) <= count * seq_len:
            return _whole(stream, seq_len, corpus.label)
        draw, length = random.Random(seed), len(stream) - seq_len
        starts = [int((i + draw.random()) * length / count) for i in range(count)]
        windows = [stream[start : start + seq_len] for start in starts]
    else:
        draw = random.Random(seed)
        last = total - seq_len * _CHARACTERS_PER_TOKEN  # so that a window there does not run over the end
        places = [int((i + draw.random()) * last / count) for i in range(count)]
        windows = list(_windows_at(corpus, tokenizer, sizes, places, seq_len))
    ids = torch.tensor([window + [0] * (seq_len - len(window)) for window in windows], dtype=torch.int32)
    return Calibration(ids, torch.tensor([len(window) for window in windows], dtype=torch.int32), corpus.label)


def evenly_spaced(corpus: Corpus, tokenizer: Any, *, windows: int, seq_len: int, seed: int = 0) -> Calibration:
    """Return up to `windows` windows of `seq_len` tokens, evenly spaced over the documents in a seeded order.

    Raises:
        CalibrationError: there is no text.
    """
    documents = list(corpus)
    random.Random(seed).shuffle(documents)
    stream = [token for document in documents for token in encode(document, tokenizer)]
    if not stream:
        raise CalibrationError(f"{corpus.label}: {_EMPTY[0]}", _EMPTY[1])
    if len(stream) <= seq_len:
        return _whole(stream, seq_len, corpus.label)
    step = max(seq_len, (len(stream) - seq_len) // windows)
    starts = [start for i in range(windows) if (start := i * step) + seq_len <= len(stream)]
    ids = torch.tensor([stream[start : start + seq_len] for start in starts], dtype=torch.int32)
    return Calibration(ids, torch.full((len(starts),), seq_len, dtype=torch.int32), corpus.label)


def start_token(tokenizer: Any) -> int | None:
    """Return the token that begins a document: the tokenizer's start token, else its end token, else none."""
    token = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    return None if token is None else int(token)


def encode(document: Document, tokenizer: Any, place: int = 0, end: int | None = None) -> list[int]:
    """Return the tokens of `document` between two characters.

    Its beginning is led by the start token, unless a chat template wrote its own.

    Raises:
        CheckpointError: the tokenizer fails on it, or gives what is no token.
    """
    try:
        tokens: list[int] = tokenizer(document.text[place:end], add_special_tokens=False, verbose=False)["input_ids"]
        start = start_token(tokenizer) if place == 0 and not document.is_chat else None
        if not 0 <= min(tokens, default=0) <= max(tokens, default=0) < 2**31 or not 0 <= (start or 0) < 2**31:
            raise ValueError("it gives numbers that are no tokens")
    except BaseException as error:
        if not is_foreign(error):
            raise
        raise CheckpointError(
            f"the tokenizer cannot cut text into tokens: {first_line(error)}",
            "put the tokenizer that the model was trained with into the folder",
        ) from error
    return tokens if start is None else [start, *tokens]


def _windows_at(
    corpus: Corpus, tokenizer: Any, sizes: list[int], places: list[int], seq_len: int
) -> Iterator[list[int]]:
    """Yield a window for each place (a character of the whole corpus, ascending); a second pass over the files."""
    waiting = iter(places)
    place = next(waiting, None)
    open_windows: list[list[int]] = []
    offset = 0
    for document, size in zip(corpus, sizes, strict=True):
        for window in open_windows:
            window += _piece(document, 0, seq_len - len(window), tokenizer)
        while place is not None and place < offset + size:
            open_windows.append(_piece(document, place - offset, seq_len, tokenizer))
            place = next(waiting, None)
        while open_windows and len(open_windows[0]) == seq_len:
            yield open_windows.pop(0)
        offset += size
    yield from (window for window in open_windows if window)  # text of few tokens a character may end too soon


def _piece(document: Document, place: int, wanted: int, tokenizer: Any) -> list[int]:
    """Return up to `wanted` tokens of `document`, from the white space after character `place` if one is near."""
    if wanted <= 0:
        return []
    if place > 0:
        near = document.text[place : place + _WORD_CHARACTERS]
        in_last_word = len(near) if len(near) < _WORD_CHARACTERS else 0
        place += next((i for i, character in enumerate(near) if character.isspace()), in_last_word)
    taken = wanted * _CHARACTERS_PER_TOKEN
    while True:
        tokens = encode(document, tokenizer, place, place + taken)
        # Unless the text ends here, the last tokens may belong to a word that was cut: ask for a few more than wanted.
        if place + taken >= len(document.text) or len(tokens) >= wanted + _WORD_CHARACTERS:
            return tokens[:wanted]
        taken *= 2


def _whole(stream: list[int], seq_len: int, label: str) -> Calibration:
    lengths = [min(seq_len, len(stream) - start) for start in range(0, len(stream), seq_len)]
    ids = torch.zeros((len(lengths), seq_len), dtype=torch.int32)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.tensor(stream[row * seq_len : row * seq_len + length], dtype=torch.int32)
    return Calibration(ids, torch.tensor(lengths, dtype=torch.int32), label)
