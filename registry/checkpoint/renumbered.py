"""Added tokens with the numbers that another version has for them.

Two experts of one base model may have given one number to different added tokens. One of them is then registered with
the other's numbering: tokens that both have get the other's numbers, its own that stand in the way get new ones after
all, and their rows of the embedding and the head move with them. Its tokenizer then has the other's added tokens too,
so that the two agree. Rows of tokens that it never had are the mean of its own rows; nothing counts them.

Shapes: V rows of a table, H its columns.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from registry.checkpoint.checkpoint import Checkpoint
from registry.checkpoint.model_files import read_files, weight_files
from registry.checkpoint.plain_folder import copied_folder
from registry.errors import CheckpointError
from registry.io.limits import JSON_KEYS, TOKENIZER_VALUES
from registry.io.model_folder import json_file
from registry.io.safetensors_file import Stream
from registry.io.torch_blocks import read_tensor, to_block
from registry.io.untrusted import json_object
from registry.progress import Progress, remark
from store.arrays import ArraySource, Block

_TOKENIZER = "tokenizer.json"
_APART = "train them with one tokenizer, or drop --tokenizer-of and compose whole members: --to ensemble"
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
"""Keys of config.json and generation_config.json whose values are numbers of tokens."""


@contextmanager
def renumbered(
    checkpoint: Checkpoint, like: Mapping[str, bytes], ref: str, scratch: Path, progress: Progress
) -> Iterator[Path]:
    """Yield the folder of a checkpoint, or a copy with the added tokens numbered as in version `ref`, of files `like`.

    `progress` receives a remark with the tokens that move (CheckpointError: one has no tokenizer.json, or tokens that
    were not added differ; StorageError: the copy cannot be written).
    """
    folder, label = checkpoint.folder, checkpoint.label
    files = read_files(folder)
    if bare := [name for name, own in ((label, files), (ref, like)) if _TOKENIZER not in own]:
        raise CheckpointError(f"{bare[0]} has no {_TOKENIZER}: its tokens keep their numbers", "drop --tokenizer-of")
    own, other = (json_object(given[_TOKENIZER], _TOKENIZER, values=TOKENIZER_VALUES) for given in (files, like))
    numbers = _numbers(own, other, label, ref)
    if numbers is None:
        yield folder
        return
    former = _added(own)
    moves = {number: numbers[token] for token, number in former.items()}  # former number → number
    moved = [f"{token!r} from {former[token]} to {n}" for token, n in numbers.items() if n != former.get(token, n)]
    remark(
        progress, f"{label} gets the added tokens of {ref}, and {len(moved)} of its own move: {', '.join(moved[:5])}"
    )
    rows = max(checkpoint.architecture.vocab_size, *(number + 1 for number in numbers.values()))
    tables = [checkpoint.family.embedding, checkpoint.family.head]
    streams = []
    for name in (*checkpoint.trunk, *checkpoint.mlp):
        source, blocks, shape = checkpoint.source(name), checkpoint.source(name).blocks, checkpoint.shapes[name]
        if name in tables:
            blocks, shape = partial(_table, source, moves, rows), (rows, *shape[1:])
        streams.append(Stream(name, source.dtype, shape, blocks))
    changed = _files(files, like, own, other, numbers)
    for name in [name for name in ("config.json", "generation_config.json") if name in files]:
        config = _config(json_object(files[name], name), moves)
        changed[name] = json_file(config | {"vocab_size": rows} if name == "config.json" else config)
    with copied_folder(folder, scratch, changed, weight_files(folder), streams, progress) as copy:
        (copy / "statistics.safetensors").unlink(missing_ok=True)  # they are of the former numbers
        yield copy


def _added(document: Mapping[str, Any]) -> dict[str, int]:
    """Return added token → number of a tokenizer.json."""
    try:
        return {str(token["content"]): int(token["id"]) for token in document.get("added_tokens") or []}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{_TOKENIZER} is damaged: {error}", "copy the file again") from error


def _numbers(own: dict[str, Any], other: dict[str, Any], label: str, ref: str) -> dict[str, int] | None:
    """Return the number of every added token of either; None if they agree as they are (errors as `renumbered`)."""
    mine, theirs = _added(own), _added(other)
    vocabularies = [document.get("model", {}).get("vocab") for document in (own, other)]
    if vocabularies[0] != vocabularies[1]:
        raise CheckpointError(
            f"{label} and {ref} have different vocabularies, and only added tokens can get other numbers", _APART
        )
    taken = {number: token for token, number in theirs.items()}
    stays = {token for token, n in mine.items() if theirs.get(token, n) == n and taken.get(n, token) == token}
    if len(stays) == len(mine) and (mine.keys() <= theirs.keys() or theirs.keys() <= mine.keys()):
        return None
    inside = vocabularies[0] if isinstance(vocabularies[0], dict) else {}
    if caught := [token for token in mine if token in inside and token not in stays]:
        raise CheckpointError(
            f"{label}: token {mine[caught[0]]}, {caught[0]!r}, is a part of the vocabulary and keeps its number", _APART
        )
    numbers = dict(theirs)
    free = max([*mine.values(), *theirs.values(), len(vocabularies[0] or ()) - 1]) + 1
    for token, number in sorted(mine.items(), key=lambda item: item[1]):
        if token in stays:
            numbers[token] = number
        elif token not in numbers:
            numbers[token], free = free, free + 1
    if free > JSON_KEYS or min(numbers.values()) < 0:
        raise CheckpointError(f"{label} and {ref} number tokens up to {free - 1:,}, the limit is {JSON_KEYS:,}", _APART)
    return numbers


def _table(source: ArraySource, moves: Mapping[int, int], rows: int) -> Iterator[Block]:
    """Yield a table (V, H) with rows moved, those of tokens that it lacks the mean of its own; all of it at once."""
    import torch

    table = read_tensor(source)
    vacant = table.double().mean(dim=0).to(table.dtype)
    wide = torch.cat([table, vacant.expand(rows - len(table), -1)])
    came = {to: number for number, to in moves.items()}
    for number in {*moves, *moves.values()}:
        wide[number] = table[came[number]] if number in came else vacant
    yield to_block(wide)


def _files(
    files: Mapping[str, bytes],
    like: Mapping[str, bytes],
    own: dict[str, Any],
    other: dict[str, Any],
    numbers: Mapping[str, int],
) -> dict[str, bytes]:
    """Return the tokenizer's files that have numbers of tokens, with the new ones."""
    entries = {str(token["content"]): token for token in [*other.get("added_tokens", []), *own.get("added_tokens", [])]}
    listed = [{**entries[token], "id": number} for token, number in sorted(numbers.items(), key=lambda item: item[1])]
    post = _processor(own.get("post_processor"), numbers)
    made = {_TOKENIZER: json_file(own | {"added_tokens": listed, "post_processor": post})}
    if "added_tokens.json" in files:
        made["added_tokens.json"] = json_file(dict(numbers))
    if (name := "tokenizer_config.json") in files:
        both = [json_object(given[name], name) for given in (like, files) if name in given]
        decoders = [one.get("added_tokens_decoder") or {} for one in both]
        known = {str(entry.get("content")): entry for decoder in decoders for entry in decoder.values()}
        if decoders[-1]:
            both[-1]["added_tokens_decoder"] = {str(n): known[token] for token, n in numbers.items() if token in known}
        made[name] = json_file(both[-1])
    return made


def _config(config: Mapping[str, Any], moves: Mapping[int, int]) -> dict[str, Any]:
    """Return a configuration with the new numbers of special tokens."""

    def moved(value: Any) -> Any:
        return [moved(one) for one in value] if isinstance(value, list) else moves.get(value, value)

    return {key: moved(value) if key in _IDS and value is not None else value for key, value in config.items()}


def _processor(value: Any, numbers: Mapping[str, int]) -> Any:
    """Return the post-processor of a tokenizer.json with the new numbers of the tokens that it adds."""
    if isinstance(value, dict) and {"ids", "tokens"} <= value.keys():
        return value | {"ids": [numbers.get(token, n) for token, n in zip(value["tokens"], value["ids"], strict=False)]}
    if isinstance(value, dict):
        return {key: _processor(one, numbers) for key, one in value.items()}
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int):
        return [value[0], numbers.get(value[0], value[1])]
    return [_processor(one, numbers) for one in value] if isinstance(value, list) else value
