"""Digests of tokenizers, and conflicts between two of them."""

from collections.abc import Mapping
from typing import Any

from registry.errors import CheckpointError, is_foreign
from registry.io.limits import TOKENIZER_VALUES
from registry.io.untrusted import json_object
from store.digest import json_digest

_SETTINGS = ("padding", "truncation")  # keys of tokenizer.json that record the settings of its last use
_ENCODING = ("model", "normalizer", "post_processor", "pre_tokenizer")  # keys that say how text becomes tokens


def tokenizer_digest(files: Mapping[str, bytes]) -> str | None:
    """Return the digest of the tokenizer among `files` (`identify`)."""
    return identify(files)[0]


def identify(files: Mapping[str, bytes]) -> tuple[str | None, int | None]:
    """Return the digest of the tokenizer among `files`, and the number of its tokens; None if unknown.

    The digest covers tokenizer.json without padding and truncation, which are settings of its last use. Without a
    tokenizer.json it covers the vocabulary files, and tokens are not counted (CheckpointError: it is damaged).
    """
    if (data := files.get("tokenizer.json")) is not None:
        document = json_object(data, "tokenizer.json", values=TOKENIZER_VALUES)
        count = len(_tokens(document))
        return json_digest({key: value for key, value in document.items() if key not in _SETTINGS}), count
    parts = {name: files[name].hex() for name in ("tokenizer.model", "vocab.json", "merges.txt") if name in files}
    return (json_digest(parts) if parts else None), None


def token_rows(files: Mapping[str, bytes]) -> int | None:
    """Return the rows that a table needs for the tokens of the tokenizer.json in `files`, or None (as `identify`)."""
    if (data := files.get("tokenizer.json")) is None:
        return None
    return max(_tokens(json_object(data, "tokenizer.json", values=TOKENIZER_VALUES)), default=-1) + 1


def tokenizer_conflict(first: bytes, second: bytes) -> str | None:
    """Return the first conflict between two tokenizer.json, or None if they are compatible (errors as `identify`).

    They are compatible if they split text alike, agree on every token that both have, and only one of them has tokens
    that the other lacks. How they turn tokens into text may differ, and how a file spells the same settings.
    """
    a, b = (json_object(data, "tokenizer.json", values=TOKENIZER_VALUES) for data in (first, second))
    ids_a, ids_b = _tokens(a), _tokens(b)
    for number in sorted(ids_a.keys() & ids_b.keys()):
        if ids_a[number] != ids_b[number]:
            return f"token {number} is {ids_a[number]!r} against {ids_b[number]!r}"
    words_a, words_b = ({word: number for number, word in ids.items()} for ids in (ids_a, ids_b))
    for word in sorted(words_a.keys() & words_b.keys()):
        if words_a[word] != words_b[word]:
            return f"token {word!r} is number {words_a[word]} against {words_b[word]}"
    if ids_a.keys() - ids_b.keys() and ids_b.keys() - ids_a.keys():
        number = min(ids_a.keys() ^ ids_b.keys())
        return f"token {number} ({(ids_a | ids_b)[number]!r}) is in one only, and each has some the other lacks"
    if all(a.get(key) == b.get(key) for key in _ENCODING):
        return None
    a, b = _normalised(first, a), _normalised(second, b)
    for key in _ENCODING:
        if a.get(key) != b.get(key):
            return f"their {key} differs, so they cut the same text into different tokens"
    return None


def _normalised(data: bytes, document: dict[str, Any]) -> dict[str, Any]:
    """Return a tokenizer.json as the installed library writes it: each version spells some settings in its own way."""
    from tokenizers import Tokenizer

    try:
        return dict(json_object(Tokenizer.from_str(data.decode()).to_str().encode(), "", values=TOKENIZER_VALUES))
    except BaseException as error:
        if not is_foreign(error):
            raise
        return document  # of a form that the library does not know


def _tokens(document: dict[str, Any]) -> dict[int, str]:
    """Return id → token of a tokenizer.json."""
    try:
        vocabulary = document["model"]["vocab"]
        if isinstance(vocabulary, dict):
            tokens = {int(number): str(token) for token, number in vocabulary.items()}
        else:  # a unigram model lists (token, score)
            tokens = {number: str(entry[0]) for number, entry in enumerate(vocabulary)}
        for token in document.get("added_tokens") or []:
            tokens[int(token["id"])] = str(token["content"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"tokenizer.json is damaged: {error}", "copy the file again") from error
    return tokens
