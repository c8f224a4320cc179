"""The weights of a loaded model that train, and the trained weights in the form of a checkpoint."""

import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from registry.checkpoint import HashedCheckpoint
from registry.checkpoint.router_rows import RouterRows
from registry.errors import CheckpointError, StorageError
from registry.io.safetensors_writer import Stream
from registry.io.torch_blocks import to_block, torch_dtype
from registry.training.expert.coordinated import EXPERT, PUBLIC, CoordinatedMLP, coordinate, within
from registry.training.expert.expert_settings import FREE, ExpertTraining
from registry.training.expert.initial_rows import begin_rows
from store.arrays import ArraySource, Block, digest_of

Text = tuple[Int64[Tensor, "N S"], Bool[Tensor, "N S"]]
"""Token ids of windows, and which of them count."""


class Trainable:
    """A dense model, and which of its weights train.

    Args:
        model: the model, loaded in float32 from the folder of `hashed`.
        hashed: the checkpoint.
        settings: the settings of the training.

    Attributes:
        model: the model to train: with a low-rank change, its wrapper.
        parameters: the weights that train, by name.

    Raises:
        CheckpointError: the model's weights do not have the names of the checkpoint's.
    """

    def __init__(self, model: Any, hashed: HashedCheckpoint, settings: ExpertTraining) -> None:
        self._hashed, self._rank, self._batch_size = hashed, settings.rank, settings.batch_size
        checkpoint = hashed.checkpoint
        own = dict(model.named_parameters())
        if missing := sorted({*checkpoint.trunk, *checkpoint.mlp} - own.keys()):
            raise CheckpointError(
                f"{checkpoint.label}: transformers loads {missing[0]} under another name, so it cannot be trained here",
                "train it elsewhere, and register it: reg add-expert NAME CKPT --data FILE",
            )
        model.requires_grad_(False)
        self._names = {name: name for name in (*checkpoint.trunk, *checkpoint.mlp)}
        self._layers: list[CoordinatedMLP] = []
        if settings.coordinate:
            self._layers = coordinate(
                model, checkpoint.mlp, checkpoint.architecture.hidden_size, bias=settings.router_bias
            )
            self._names |= {name: within(name, EXPERT) for name in checkpoint.mlp}
            own = dict(model.named_parameters())
        mlp = [self._names[name] for name in checkpoint.mlp]
        free = [own[name] for name in checkpoint.trunk] if settings.trunk == FREE else []
        free += [part for layer in self._layers for part in (layer.row, layer.bias) if part is not None]
        self.model = model
        if settings.rank is None:
            free += [own[name] for name in mlp]
        else:
            self.model = _with_low_rank(model, _modules(mlp), settings.rank, settings.seed)
        for part in free:  # after the wrapper, which freezes all that it does not add
            part.requires_grad_(True)
        self._tensors = {name: own[now] for name, now in self._names.items()}
        self._public = {name: own[within(name, PUBLIC)] for name in checkpoint.mlp if self._layers}
        self.parameters = {name: part for name, part in self.model.named_parameters() if part.requires_grad}

    def begin_rows(self, own: Text, public: Text) -> None:
        """Set the first router rows to the differences of the embeddings of two texts.

        Args:
            own: token ids (N, S) of the expert's text, and which of them count.
            public: the same of public text.

        Raises:
            CalibrationError: the mean of a text is zero or not finite.
        """
        begin_rows(self.model, self._layers, own, public, self._batch_size)

    def streams(self) -> Iterator[Stream]:
        """Yield the tensors of the trained checkpoint, each in the dtype that it has in the base model.

        Raises:
            CheckpointError: a weight that is frozen has moved.
        """
        checkpoint = self._hashed.checkpoint
        trained = {name for name, tensor in self._tensors.items() if tensor.requires_grad}
        if self._rank is not None:
            self.model = self.model.merge_and_unload()
            own = dict(self.model.named_parameters())
            trained |= set(checkpoint.mlp)
            self._tensors = {name: own[now] for name, now in self._names.items()}
        frozen = {name: tensor for name, tensor in self._tensors.items() if name not in trained}
        for name, tensor in (*frozen.items(), *self._public.items()):
            if digest_of(_source(tensor, checkpoint.dtype_of(name))) != self._hashed.tensors[name]:
                raise CheckpointError(
                    f"{checkpoint.label}: {name} is frozen, and has changed during the training",
                    "this is a bug in the program or in a library; please report it",
                )
        for name, tensor in self._tensors.items():
            dtype = checkpoint.dtype_of(name)
            yield Stream(name, dtype, checkpoint.shapes[name], partial(_blocks, tensor, dtype))

    def rows(self) -> RouterRows | None:
        """Return the router rows that were trained, and their biases, or None without."""
        if not self._layers:
            return None
        rows = torch.stack([layer.row.detach().float().cpu() for layer in self._layers])  # (L, H)
        biases = [layer.bias.detach().float().cpu() for layer in self._layers if layer.bias is not None]
        return RouterRows(self._hashed.weights, rows.numpy(), torch.cat(biases).numpy() if biases else None)


def _modules(names: Sequence[str]) -> list[str]:
    """Return the modules of weights, each once."""
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names))


def _with_low_rank(model: Any, modules: Sequence[str], rank: int, seed: int) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise StorageError(
            "low-rank training needs peft", "run: pip install 'expert-registry[train]', or give --mlp full"
        ) from error

    torch.manual_seed(seed)  # of the first factors
    linear = [name for name in modules if isinstance(model.get_submodule(name), torch.nn.Linear)]
    config = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=linear, bias="none")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of one library to the other
        return get_peft_model(model, config)


def _blocks(tensor: Tensor, dtype: str) -> Iterator[Block]:
    yield to_block(tensor.detach().to(torch_dtype(dtype)))


def _source(tensor: Tensor, dtype: str) -> ArraySource:
    return ArraySource(dtype, tuple(tensor.shape), partial(_blocks, tensor, dtype))
