"""Checkpoints as training programs leave them, made plain.

Some folders hold a whole model that no loader takes for one, or takes for another model:

- names of tensors have what a program wrapped around the model: `module.`, `_orig_mod.`, `base_model.model.`, …
- config.json says `tie_word_embeddings`, and the head in the files is another than the embedding;
- config.json says `quantization_config`, and the weights were merged into 16 bits since.

Such a folder is copied with the names and settings that its weights have, each with a remark. Weights whose names stay
are linked.
"""

import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from registry.checkpoint.model_files import (
    PICKLES,
    Stored,
    read_config,
    read_headers,
    weight_files,
    weight_source,
)
from registry.errors import CheckpointError, StorageError
from registry.families import FAMILIES, Family
from registry.io.dtypes import NAMES, WEIGHT_DTYPES
from registry.io.model_folder import INDEX, fresh_folder, json_file, write_files, write_weights
from registry.io.safetensors_file import Stream
from registry.io.untrusted import own_file
from registry.io.work_dirs import temporary
from registry.progress import Progress, remark
from store.permissions import SPACE

_WRAPPERS = re.compile(r"(^|\.)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)(?=\.)")
"""Modules that torch.compile, FSDP, activation checkpointing and DeepSpeed put around others, at any depth."""


def unwrapped(name: str) -> str:
    """Return the name of a tensor without the modules that training programs put around others."""
    return _WRAPPERS.sub("", name).lstrip(".")


@contextmanager
def plain_folder(folder: Path, label: str, scratch: Path, progress: Progress) -> Iterator[Path]:
    """Yield the folder of a whole model, or a plain copy of it below `scratch`, which is deleted afterwards.

    `label` is the model's name in messages; `progress` receives a remark for each change (CheckpointError: it is no
    model, or two tensors have one name without their wrappers; StorageError: the copy cannot be written).
    """
    config = read_config(folder)
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None or (folder / "adapter_config.json").is_file():  # opening it says what is wrong
        yield folder
        return
    files = weight_files(folder)
    stored = read_headers(files)
    names, notes = _plain_names(stored, family, label)
    changes: dict[str, Any] = {}
    if "quantization_config" in config and all(NAMES.get(one.dtype) in WEIGHT_DTYPES for one in stored.values()):
        changes["quantization_config"] = None
        notes.append("config.json has a quantization_config, and its weights are not quantized: it is left out")
    if _is_tied(family, config) and not _has_one_table({names[key]: stored[key] for key in stored}, family, label):
        changes["tie_word_embeddings"] = False
        notes.append(
            f"by config.json the head is the embedding, and {family.head} in its files is another: it keeps a head "
            "of its own"
        )
    if not notes:
        yield folder
        return
    for note in notes:
        remark(progress, f"{label}: {note}")
    changed = {key: value for key, value in (config | changes).items() if key not in changes or value is not None}
    streams = []
    for key, name in names.items() if any(key != name for key, name in names.items()) else ():
        source = weight_source(key, stored[key], label)
        streams.append(Stream(name, source.dtype, source.shape, source.blocks))
    with copied_folder(folder, scratch, {"config.json": json_file(changed)}, files, streams, progress) as copy:
        yield copy


@contextmanager
def copied_folder(
    folder: Path,
    scratch: Path,
    files: Mapping[str, bytes],
    weights: Sequence[Path],
    streams: Sequence[Stream],
    progress: Progress,
) -> Iterator[Path]:
    """Yield a copy of a checkpoint's folder below `scratch`, deleted afterwards (StorageError: it cannot be written).

    Args:
        files: files of other content, by name; all others are linked.
        weights: the folder's files of weights.
        streams: the tensors to write in their place; empty to link them.
    """
    others = {*files, *([INDEX, *(path.name for path in weights)] if streams else ())}
    with ExitStack() as stack:
        made = scratch_folder(stack, scratch, prefix="plain-") / "model"
        nbytes = sum(stream.nbytes for stream in streams)
        with fresh_folder(made, replace=False, nbytes=nbytes) as copy:
            for path in sorted(folder.iterdir()):
                is_read = path.name not in others and not any(map(path.match, PICKLES))
                if is_read and (own := own_file(folder, path.name)):
                    try:
                        os.link(own.resolve(), copy / path.name)
                    except OSError:  # the disk has no such links
                        shutil.copyfile(own, copy / path.name)
            write_files(copy, files)
            if streams:
                with progress("copying", nbytes, "B") as advance:
                    write_weights(copy, streams, advance)
        yield made


def scratch_folder(stack: ExitStack, above: Path, holds: Collection[str] = (), *, prefix: str) -> Path:
    """Make a folder that is deleted with the stack (StorageError: `above` cannot be written)."""
    try:
        return stack.enter_context(temporary(above, holds, prefix=prefix))
    except OSError as error:
        raise StorageError(f"{above} cannot be written: {error.strerror}", SPACE) from error


def _plain_names(stored: Mapping[str, Stored], family: Family, label: str) -> tuple[dict[str, str], list[str]]:
    """Return key in the files → plain name of every tensor, and remarks on what was taken away."""
    names = {key: unwrapped(key) for key in stored}
    ends = [name for name in names.values() if name.endswith(family.embedding)]
    inner, _, embedding = family.embedding.partition(".")
    if ends and (prefix := min(ends, key=len).removesuffix(family.embedding)).endswith("."):
        names = {key: name.removeprefix(prefix) for key, name in names.items()}
    elif not ends and embedding in names.values():  # the model below the head alone
        names = {key: name if name == family.head else f"{inner}.{name}" for key, name in names.items()}
    return names, renamed_note(names, label, "save the model itself: unwrap it first (accelerate: unwrap_model)")


def renamed_note(names: Mapping[str, str], label: str, hint: str) -> list[str]:
    """Return a remark on the tensors that are read under other names than the files' keys; none without such.

    (CheckpointError: two tensors have one name then.)
    """
    if len({*names.values()}) < len(names):
        twice = next(name for name in names.values() if list(names.values()).count(name) > 1)
        raise CheckpointError(f"{label}: several tensors are {twice} without what was put around the model", hint)
    changed = sorted((key, name) for key, name in names.items() if key != name)
    return [
        f"{len(changed):,} of {len(names):,} tensors have names of another form: {key} is read as {name}"
        for key, name in changed[:1]
    ]


def _is_tied(family: Family, config: Mapping[str, Any]) -> bool:
    try:
        return family.architecture(config).tie_word_embeddings
    except ValueError:  # opening it says what is wrong
        return False


def _has_one_table(stored: Mapping[str, Stored], family: Family, label: str) -> bool:
    """Tell whether the head, if there is one, has the bytes of the embedding."""
    head, embedding = stored.get(family.head), stored.get(family.embedding)
    if head is None or embedding is None:
        return True
    if (head.dtype, head.shape) != (embedding.dtype, embedding.shape):
        return False
    tables = ((family.head, head), (family.embedding, embedding))
    blocks = (weight_source(name, table, label).blocks() for name, table in tables)
    return all(a is not None and b is not None and a.tobytes() == b.tobytes() for a, b in zip_longest(*blocks))
