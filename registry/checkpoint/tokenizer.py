"""What identifies a tokenizer, and how two of them differ."""

from collections.abc import Mapping
from typing import Any

from registry.errors import CheckpointError
from registry.io.limits import TOKENIZER_VALUES
from registry.io.strict_json import json_object
from store.digest import json_digest

_SETTINGS = ("padding", "truncation")
"""Keys of tokenizer.json that are settings of its last use."""


def tokenizer_digest(files: Mapping[str, bytes]) -> str | None:
    """Return what identifies the tokenizer among `files` (`identify`)."""
    return identify(files)[0]


def identify(files: Mapping[str, bytes]) -> tuple[str | None, int | None]:
    """Return what identifies the tokenizer among `files`, and how many tokens it knows; None where there is none.

    The first is taken over the content of tokenizer.json less its padding and truncation, which are settings of the
    last use; without tokenizer.json, where tokens are not counted, over the vocabulary files.

    Raises:
        CheckpointError: tokenizer.json is no JSON object, or damaged.
    """
    if (data := files.get("tokenizer.json")) is not None:
        document = json_object(data, "tokenizer.json", values=TOKENIZER_VALUES)
        known = len(_tokens(document))
        return json_digest({key: value for key, value in document.items() if key not in _SETTINGS}), known
    parts = {name: files[name].hex() for name in ("tokenizer.model", "vocab.json", "merges.txt") if name in files}
    return (json_digest(parts) if parts else None), None


def tokenizer_conflict(first: bytes, second: bytes) -> str | None:
    """Return in what two tokenizer.json contradict one another, or None where they agree on every token both have.

    They agree where they cut text alike and one has no more than some added tokens beyond the other's.

    Raises:
        CheckpointError: one is no JSON object.
    """
    mine, theirs = (json_object(data, "tokenizer.json", values=TOKENIZER_VALUES) for data in (first, second))
    mine_ids, their_ids = _tokens(mine), _tokens(theirs)
    for number in sorted(mine_ids.keys() & their_ids.keys()):
        if mine_ids[number] != their_ids[number]:
            return f"token {number} is {mine_ids[number]!r} against {their_ids[number]!r}"
    mine_words, their_words = ({word: number for number, word in ids.items()} for ids in (mine_ids, their_ids))
    for word in sorted(mine_words.keys() & their_words.keys()):
        if mine_words[word] != their_words[word]:
            return f"token {word!r} is number {mine_words[word]} against {their_words[word]}"
    if mine_ids.keys() - their_ids.keys() and their_ids.keys() - mine_ids.keys():
        number = min(mine_ids.keys() ^ their_ids.keys())
        return f"token {number} ({(mine_ids | their_ids)[number]!r}) is in one only, and each has some the other lacks"
    for key in sorted((mine.keys() | theirs.keys()) - {"added_tokens", *_SETTINGS}):
        if mine.get(key) != theirs.get(key):
            return f"their {key} differs, so they cut the same text into different tokens"
    return None


def _tokens(document: dict[str, Any]) -> dict[int, str]:
    """Return id → token of a tokenizer.json."""
    try:
        vocabulary = document["model"]["vocab"]
        if isinstance(vocabulary, dict):
            found = {int(number): str(token) for token, number in vocabulary.items()}
        else:  # a unigram model lists (token, score)
            found = {number: str(entry[0]) for number, entry in enumerate(vocabulary)}
        for token in document.get("added_tokens") or []:
            found[int(token["id"])] = str(token["content"])
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"tokenizer.json is damaged: {error}", "copy the file again") from error
    return found
