"""A Hugging Face folder as untrusted input: read from headers, checked before a single weight is touched."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from registry.architecture import Architecture
from registry.errors import CheckpointError, UnsupportedFamilyError
from registry.families import Family, family_of
from registry.progress import Progress
from registry.tensors import SAFETENSORS, WEIGHT_DTYPES, to_block
from store.arrays import ArraySource, Block, digest_of, rows_per_block
from store.digest import json_digest

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
COPIED_FILES = (*TOKENIZER_FILES, "generation_config.json")
"""What a composed folder takes over from its members beside the weights."""

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_DTYPES = {SAFETENSORS[name]: name for name in WEIGHT_DTYPES}
_CONFIG_BYTES = 16 * 2**20


@dataclass(frozen=True)
class _Stored:
    file: Path
    dtype: str
    shape: tuple[int, ...]


class Checkpoint:
    """A dense model's folder whose every expected tensor is there, in a dtype and shape that can be registered.

    Attributes:
        folder: where it is.
        config: config.json as it stands.
        family: the dense family.
        architecture: the sizes and switches.
        dtype: the dtype that most weights have.
        special_tokens: `bos_token_id`, `eos_token_id`, `pad_token_id` as configured.
        mlp: names of the MLP tensors, in order.
        trunk: names of all other tensors, in order.
    """

    def __init__(self, folder: Path) -> None:
        """Open `folder`, reading config.json and the headers of its safetensors files.

        Raises:
            CheckpointError: it is no checkpoint, or tensors are missing, unknown, or of another shape or dtype.
            UnsupportedFamilyError: no host carries the model exactly.
        """
        self.folder = folder
        self.config = _read_config(folder)
        self.family: Family = family_of(str(self.config.get("model_type")))
        if "quantization_config" in self.config:
            raise CheckpointError(
                f"{folder}: config.json asks for quantized weights (quantization_config)",
                "register the checkpoint from before quantization",
            )
        parsed = _parse_config(folder)
        if (reason := self.family.refusal(parsed)) is not None:
            raise UnsupportedFamilyError(
                f"{folder}: this {self.family.model_type} cannot be composed: {reason}",
                "register a checkpoint without it",
            )
        try:
            self.architecture = Architecture.from_config(parsed)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{folder}/config.json: {error}", "mend config.json") from error
        self.special_tokens: dict[str, Any] = {
            key: getattr(parsed, key, None) for key in ("bos_token_id", "eos_token_id", "pad_token_id")
        }
        self.trunk = tuple(self.family.trunk_shapes(self.architecture))
        self.mlp = tuple(self.family.mlp_shapes(self.architecture))
        self._stored = self._read_headers()
        self._check_tensors()
        self.dtype = max(WEIGHT_DTYPES, key=lambda name: sum(t.dtype == name for t in self._stored.values()))

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(math.prod(self._stored[name].shape) for name in (*self.trunk, *self.mlp))

    def source(self, name: str) -> ArraySource:
        """Return one tensor as blocks of rows.

        Raises (while it is read):
            CheckpointError: a weight is NaN or infinite, or the file cannot be read.
        """
        stored = self._stored[name]

        def blocks() -> Iterator[Block]:
            from safetensors import SafetensorError, safe_open

            rows = rows_per_block(stored.shape)
            try:
                with safe_open(stored.file, framework="pt") as file:
                    view = file.get_slice(name)
                    for start in range(0, stored.shape[0], rows):
                        part = view[start : start + rows]
                        if not bool(torch.isfinite(part).all()):
                            raise CheckpointError(
                                f"{self.folder}: tensor {name} has NaN or infinite weights "
                                f"(rows {start} to {start + len(part) - 1})",
                                "register a checkpoint from before the training diverged",
                            )
                        yield to_block(part)
            except (OSError, SafetensorError) as error:
                raise CheckpointError(f"{stored.file}: {error}", "copy the file again") from error

        return ArraySource(stored.dtype, stored.shape, blocks)

    def tensor(self, name: str) -> torch.Tensor:
        """Return one small tensor whole (a norm's weight)."""
        from safetensors import safe_open

        with safe_open(self._stored[name].file, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor

    def _read_headers(self) -> dict[str, _Stored]:
        from safetensors import SafetensorError, safe_open

        found: dict[str, _Stored] = {}
        for path in _weight_files(self.folder):
            try:
                with safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118 - it is no dict
                        view = file.get_slice(name)
                        found[name] = _Stored(path, str(view.get_dtype()), tuple(view.get_shape()))
            except (OSError, SafetensorError) as error:
                raise CheckpointError(
                    f"{path} is no safetensors file: {error}", "copy or save the file again"
                ) from error
        return found

    def _check_tensors(self) -> None:
        expected = self.family.trunk_shapes(self.architecture) | self.family.mlp_shapes(self.architecture)
        if missing := [name for name in expected if name not in self._stored]:
            raise CheckpointError(
                f"{self.folder}: {_some(missing)} missing from its safetensors files",
                "save the checkpoint again, whole",
            )
        if extra := [name for name in self._stored if name not in expected and not self._is_ignored(name)]:
            raise CheckpointError(
                f"{self.folder}: {_some(extra)} unknown to the {self.family.model_type} family",
                "merge adapters and drop what is no part of the model, then save it again",
            )
        for name, shape in expected.items():
            stored = self._stored[name]
            if stored.shape != shape:
                raise CheckpointError(
                    f"{self.folder}: tensor {name} has shape {list(stored.shape)}, config.json asks for {list(shape)}",
                    "save config.json and the weights together again",
                )
            if stored.dtype not in _DTYPES:
                raise CheckpointError(
                    f"{self.folder}: tensor {name} has dtype {stored.dtype}, supported are {', '.join(WEIGHT_DTYPES)}",
                    "save the checkpoint in one of these, not quantised",
                )
        self._stored = {
            name: _Stored(t.file, _DTYPES[t.dtype], t.shape) for name in expected if (t := self._stored[name])
        }

    def _is_ignored(self, name: str) -> bool:
        # Old Llama checkpoints carry the rope's buffer; a tied head repeats the embedding. Neither is a weight.
        return name.endswith("rotary_emb.inv_freq") or (
            name == "lm_head.weight" and self.architecture.tie_word_embeddings
        )


@dataclass(frozen=True)
class HashedCheckpoint:
    """A checkpoint whose every byte has been read once: its weights are finite, and these are its digests.

    Attributes:
        checkpoint: the folder.
        tensors: tensor name → digest of its array.
        files: file name → content.
        weights: digest over all tensors, by which statistics name the weights they belong to.
        tokenizer: what identifies the tokenizer, or None where there is none.
    """

    checkpoint: Checkpoint
    tensors: dict[str, str]
    files: dict[str, bytes]
    weights: str
    tokenizer: str | None


def hash_checkpoint(folder: Path, progress: Progress) -> HashedCheckpoint:
    """Open `folder` and read it whole.

    Raises:
        CheckpointError: it cannot be registered; weights are NaN or infinite.
    """
    checkpoint = Checkpoint(folder)
    files = read_files(folder)
    tokenizer = tokenizer_digest(files)
    sources = {name: checkpoint.source(name) for name in (*checkpoint.trunk, *checkpoint.mlp)}
    tensors = {}
    with progress("hashing", sum(source.nbytes for source in sources.values()), "B") as advance:
        for name, source in sources.items():
            tensors[name] = digest_of(source)
            advance(source.nbytes)
    return HashedCheckpoint(checkpoint, tensors, files, json_digest(tensors), tokenizer)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return config.json, the tokenizer's files and generation_config.json of a model folder, as they are, by name."""
    names = [name for name in ("config.json", *COPIED_FILES) if (folder / name).is_file()]
    return {name: data for name in names if (data := (folder / name).read_bytes())}


def tokenizer_digest(files: dict[str, bytes]) -> str | None:
    """Return what identifies the tokenizer among `files`, or None where there is none.

    It is taken over the content of tokenizer.json less its padding and truncation, which are settings of the last use;
    without tokenizer.json over the vocabulary files.

    Raises:
        CheckpointError: tokenizer.json is no JSON object.
    """
    if (data := files.get("tokenizer.json")) is not None:
        document = _json_object(data, "tokenizer.json")
        return json_digest({key: value for key, value in document.items() if key not in ("padding", "truncation")})
    parts = {name: files[name].hex() for name in ("tokenizer.model", "vocab.json", "merges.txt") if name in files}
    return json_digest(parts) if parts else None


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder", "name a local Hugging Face checkpoint folder")
    if (folder / "adapter_config.json").is_file():
        raise CheckpointError(
            f"{folder} is a PEFT adapter, not a whole checkpoint",
            "merge it into its base model first (merge_and_unload) and save that",
        )
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"{folder} is no checkpoint: it has no config.json", "name the folder that save_pretrained wrote"
        )
    if path.stat().st_size > _CONFIG_BYTES:
        raise CheckpointError(f"{path} has more than {_CONFIG_BYTES:,} bytes", "name a genuine checkpoint")
    return _json_object(path.read_bytes(), str(path))


def _parse_config(folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers validates with many kinds of exceptions
        raise CheckpointError(f"{folder}/config.json: {error}", "mend config.json") from error


def _json_object(data: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} is not JSON: {error}", "copy the file again") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{where} is not a JSON object", "copy the file again")
    return document


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        listed = _json_object(index.read_bytes(), str(index)).get("weight_map")
        names = sorted(set(map(str, listed.values()))) if isinstance(listed, dict) else []
        if outside := [name for name in names if Path(name).name != name]:
            raise CheckpointError(f"{index} names files outside the folder: {outside[0]!r}", "use a genuine checkpoint")
        if not names:
            raise CheckpointError(f"{index} lists no weights", "copy the file again")
        if absent := [name for name in names if not (folder / name).is_file()]:
            raise CheckpointError(
                f"{folder}: {_some(absent)} missing, though {index.name} lists them", "copy them again"
            )
        return [folder / name for name in names]
    if (single := folder / "model.safetensors").is_file():
        return [single]
    if any(path for pattern in _PICKLES for path in folder.glob(pattern)):
        raise CheckpointError(
            f"{folder} has its weights in pickle files, which run code when they are opened and so are never read",
            "convert them where you trust them: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)",
        )
    raise CheckpointError(
        f"{folder} has no weights: neither model.safetensors nor model.safetensors.index.json",
        "name the folder that save_pretrained wrote",
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} {'is' if len(names) == 1 else 'are'}"
