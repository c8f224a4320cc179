"""A dense model's folder, checked from config.json and headers before any weight is read."""

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from registry.checkpoint import trained_files
from registry.checkpoint.joint_training import Document, joint_trainings, parts_in
from registry.checkpoint.model_files import (
    ROUTER_FILE,
    Stored,
    empty_tensors,
    read_config,
    read_files,
    read_headers,
    sample_weight,
    weight_files,
    weight_source,
)
from registry.checkpoint.tokenizer import identify
from registry.errors import CheckpointError, UnsupportedFamilyError
from registry.families import Family, family_of
from registry.io.display import some
from registry.io.dtypes import NAMES, WEIGHT_DTYPES
from registry.io.torch_blocks import read_tensor
from registry.progress import Progress, silent
from store.arrays import ArraySource, Block, digest_of
from store.catalog import ArrayLink
from store.digest import json_digest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

HASHERS = 4  # tensors that are read and hashed at once; each holds one block of rows

_BUFFERS = ("rotary_emb.inv_freq", "attention.bias", "attention.masked_bias")
"""Ends of the names of buffers, which old checkpoints store beside their weights."""


class Checkpoint:
    """A dense model's folder that has every expected tensor, in a dtype and shape that can be registered.

    Attributes:
        label: its name in messages.
        dtype: the dtype that most weights have.
        special_tokens: `bos_token_id`, `eos_token_id`, `pad_token_id` as configured.
        mlp: names of the MLP tensors, in order.
        trunk: names of all other tensors, in order.
        unused: names of buffers in its files, which are computed and not read.
    """

    def __init__(self, folder: Path, label: str | None = None, *, remote_code: bool = False) -> None:
        """Open a local Hugging Face folder, reading config.json and the headers of its safetensors files.

        With `remote_code` models are accepted that no native host carries, else they raise UnsupportedFamilyError. The
        label is by default the path (CheckpointError: no checkpoint; tensors are missing, unknown or of other forms).
        """
        self.folder = folder
        self.label = label or str(folder)
        self.config = read_config(folder)
        if (folder / "adapter_config.json").is_file():
            raise CheckpointError(
                f"{self.label} is a whole checkpoint with an adapter (adapter_config.json) beside it",
                "move one of them to a folder of its own, and name the one you mean",
            )
        if "quantization_config" in self.config:
            raise CheckpointError(
                f"{self.label}: config.json asks for quantized weights (quantization_config)",
                "register the checkpoint from before quantization, or merge the weights into 16 bits",
            )
        self.family: Family = family_of(str(self.config.get("model_type")))
        try:
            self.architecture = self.family.architecture(self.config)
        except ValueError as error:
            raise CheckpointError(f"{self.label}/config.json: {error}", "mend config.json") from error
        if not remote_code and self.family.has_table and (reason := self.family.refusal(self.architecture)) is not None:
            raise UnsupportedFamilyError(
                f"{self.label}: this {self.family.model_type} cannot be composed natively: {reason}",
                "add --remote-code here and at reg compose: its compositions then carry a modelling file of their own",
            )
        keys = ("bos_token_id", "eos_token_id", "pad_token_id")
        defaults = dict(zip(keys, self.family.special_tokens, strict=True))
        self.special_tokens: dict[str, Any] = {key: self.config.get(key, defaults[key]) for key in keys}
        self._stored: Mapping[str, Stored] = self._headers()
        self.unused: tuple[str, ...] = ()
        self._check_tensors()
        mlp = self.family.mlp_shapes(self.architecture)
        self.mlp, self.trunk = tuple(mlp), tuple(name for name in self._stored if name not in mlp)
        self.dtype = max(
            WEIGHT_DTYPES, key=lambda name: sum(NAMES[stored.dtype] == name for stored in self._stored.values())
        )

    @property
    def whole_folder(self) -> Path:
        """A folder that has all of it, weights included."""
        return self.folder

    @property
    def stored(self) -> dict[tuple[str, str], ArrayLink]:
        """Arrays of it that the registry holds already, by role and name."""
        return {}

    @property
    def origin(self) -> Document:
        """The part of a version's content that says where its weights come from."""
        return {}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, by name."""
        return {name: stored.shape for name, stored in self._stored.items()}

    @property
    def weight_files(self) -> set[str]:
        """Names of the files that hold its weights."""
        return {stored.file.name for stored in self._stored.values()}

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def dtype_of(self, name: str) -> str:
        """Return the dtype of one tensor."""
        return NAMES[self._stored[name].dtype]

    def source(self, name: str) -> ArraySource:
        """Return one tensor as blocks of rows (errors as `weight_source`)."""
        return weight_source(name, self._stored[name], self.label)

    def tensor(self, name: str) -> "torch.Tensor":
        """Return one small tensor, such as a norm's weight."""
        return read_tensor(self.source(name))

    def sample(self, name: str, rows: "npt.NDArray[np.int64]") -> Block:
        """Return some rows of one tensor, in its carrier dtype; nothing else is read."""
        return sample_weight(self._stored[name], rows)

    def files(self) -> dict[str, bytes]:
        """Return config.json, the tokenizer's files and generation_config.json, as they are, by name."""
        return read_files(self.folder)

    def own_digests(self) -> dict[str, str]:
        """Return the digests of tensors that are known without reading them, by name."""
        return {}

    def own_arrays(self) -> dict[tuple[str, str], ArraySource]:
        """Return the arrays that a version of it has in place of tensors, by role and name."""
        return {}

    def _headers(self) -> Mapping[str, Stored]:
        return read_headers(weight_files(self.folder))

    def _check_tensors(self) -> None:
        architecture = self.architecture
        if architecture.num_hidden_layers > len(self._stored):
            raise CheckpointError(
                f"{self.label}: config.json asks for {architecture.num_hidden_layers:,} layers, "
                f"its files hold {len(self._stored):,} tensors",
                "save config.json and the weights together again",
            )
        expected = self.family.shapes(architecture, {name: one.shape for name, one in self._stored.items()})
        if missing := [name for name in expected if name not in self._stored]:
            raise CheckpointError(
                f"{self.label}: {some(missing)} missing from its safetensors files", "save the checkpoint again, whole"
            )
        # A tied head repeats the embedding: `plain_folder` makes a model with another head one that is not tied.
        tied = self.family.head if architecture.tie_word_embeddings else None
        extra = [name for name in self._stored if name not in expected and name != tied]
        if unknown := [name for name in extra if not name.endswith(_BUFFERS)]:
            raise CheckpointError(
                f"{self.label}: {some(unknown)} unknown to the {self.family.model_type} family",
                "remove the tensors that are not part of the model, then save it again",
            )
        self.unused = tuple(extra)
        if empty := [name for name, stored in self._stored.items() if 0 in stored.shape]:
            raise empty_tensors(self.label, empty)
        for name, shape in expected.items():
            stored = self._stored[name]
            if stored.shape != shape:
                raise CheckpointError(
                    f"{self.label}: tensor {name} has shape {list(stored.shape)}, config.json asks for {list(shape)}",
                    "save config.json and the weights together again",
                )
            if NAMES.get(stored.dtype) not in WEIGHT_DTYPES:
                raise CheckpointError(
                    f"{self.label}: tensor {name} has dtype {stored.dtype}, supported are {', '.join(WEIGHT_DTYPES)}",
                    "save the checkpoint in one of these, not quantised",
                )
        self._stored = {name: self._stored[name] for name in expected}


@dataclass(frozen=True)
class HashedCheckpoint:
    """A checkpoint with finite weights, and its digests.

    Attributes:
        own: key of such a training and name → its array there, and the digest of that.
    """

    checkpoint: Checkpoint
    tensors: dict[str, str]  # tensor name → digest of its array
    files: dict[str, bytes]
    weights: str  # digest over all tensors; statistics refer to their weights by it
    tokenizer: str | None  # digest of the tokenizer, or None without one
    tokens: int | None  # number of tokens in its vocabulary, or None without a tokenizer.json
    joint: dict[str, Document]  # key of a joint training that it was part of → its document there
    own: dict[tuple[str, str], tuple[ArraySource, str]]

    @property
    def saved_weights(self) -> str:
        """The digest over all tensors as a folder has them: of an adapter, merged."""
        folder = self.checkpoint.whole_folder
        if folder == self.checkpoint.folder:
            return self.weights
        return hash_checkpoint(Checkpoint(folder, self.checkpoint.label, remote_code=True), silent).weights


def hash_checkpoint(checkpoint: Checkpoint, progress: Progress) -> HashedCheckpoint:
    """Return the digests of a whole checkpoint (CheckpointError: NaN or infinity, or a file of another form)."""
    import torch

    files, architecture = checkpoint.files(), checkpoint.architecture
    if ROUTER_FILE in files:
        trained_files.unpack_rows(
            files[ROUTER_FILE], (architecture.num_hidden_layers, architecture.hidden_size), checkpoint.label
        )
    joint: dict[str, Document] = {}
    digests = {("", name): digest for name, digest in checkpoint.own_digests().items()}
    sources = {("", name): checkpoint.source(name) for name in (*checkpoint.trunk, *checkpoint.mlp)}
    sources = {place: source for place, source in sources.items() if place not in digests} | checkpoint.own_arrays()
    matrices = {name: checkpoint.shapes[name] for name in checkpoint.family.layer_matrices(architecture)}
    for training in joint_trainings():
        if (part := training.read(files, architecture.hidden_size, checkpoint.label)) is not None:
            joint[training.key] = part
            arrays = training.open_arrays(checkpoint.folder, matrices, architecture.hidden_size, checkpoint.label)
            sources |= {(training.key, name): array for name, array in arrays.items()}
    tokenizer, tokens = identify(files)
    # In a forked process torch replaces its pool of threads at the first use, and threads that use it at once find none
    # (`caffe2::pthreadpool`): so it is set up here.
    torch.set_num_threads(torch.get_num_threads())
    with (
        progress("hashing", sum(source.nbytes for source in sources.values()), "B") as advance,
        ThreadPoolExecutor(HASHERS, thread_name_prefix="hashing") as pool,
    ):
        for (place, source), digest in zip(sources.items(), pool.map(digest_of, sources.values()), strict=True):
            digests[place] = digest
            advance(source.nbytes)
    found = {of: {name: digests[kind, name] for kind, name in digests if kind == of} for of in ("", *joint)}
    for training, document in parts_in(joint):
        training.check_arrays(document, found[training.key], checkpoint.label)
    own = {place: (source, digests[place]) for place, source in sources.items() if place[0]}
    weights = json_digest(found[""])
    return HashedCheckpoint(checkpoint, found[""], files, weights, tokenizer, tokens, joint, own)
