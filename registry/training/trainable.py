"""The weights of a loaded model that train, and the trained weights in the form of a checkpoint."""

import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from registry.checkpoint import Checkpoint, HashedCheckpoint
from registry.checkpoint.trained_files import RouterRows
from registry.errors import CheckpointError, StorageError
from registry.io.safetensors_file import Stream
from registry.training.coordinated import EXPERT, PUBLIC, CoordinatedMLP, coordinate, within
from registry.training.settings import FREE, ExpertTraining
from registry.training.sharded import array_of, gather, stream_of
from store.arrays import digest_of


class Trainable:
    """A dense model, loaded in float32 from the folder of `checkpoint`, and which of its weights train.

    Attributes:
        model: the model to train: with a low-rank change, its wrapper.
        layers: its MLPs that train beside frozen ones, layer by layer; empty without `coordinate`.

    Raises:
        CheckpointError: the model's weights do not have the names of the checkpoint's.
    """

    def __init__(self, model: Any, checkpoint: Checkpoint, settings: ExpertTraining) -> None:
        self._checkpoint, self._rank = checkpoint, settings.rank
        self._gathered: dict[str, Tensor] | None = None
        own = dict(model.named_parameters())
        if missing := sorted({*checkpoint.trunk, *checkpoint.mlp} - own.keys()):
            raise CheckpointError(
                f"{checkpoint.label}: transformers loads {missing[0]} under another name, so it cannot be trained here",
                "train it elsewhere, and register it: reg add-expert NAME CKPT --data FILE",
            )
        model.requires_grad_(False)
        self._names = {name: name for name in (*checkpoint.trunk, *checkpoint.mlp)}
        self.layers: list[CoordinatedMLP] = []
        if settings.coordinate:
            self.layers = coordinate(
                model, checkpoint.mlp, checkpoint.architecture.hidden_size, bias=settings.router_bias
            )
            self._names |= {name: within(name, EXPERT) for name in checkpoint.mlp}
            own = dict(model.named_parameters())
        mlp = [self._names[name] for name in checkpoint.mlp]
        free = [own[name] for name in checkpoint.trunk] if settings.trunk == FREE else []
        free += [part for layer in self.layers for part in (layer.row, layer.bias) if part is not None]
        self.model = model
        if settings.rank is None:
            free += [own[name] for name in mlp]
        else:
            modules = list(dict.fromkeys(name.rpartition(".")[0] for name in mlp))
            self.model = _with_low_rank(model, modules, settings.rank, settings.seed)
        for part in free:  # after the wrapper, which freezes all that it does not add
            part.requires_grad_(True)
        self._frozen: set[str] = set() if settings.trunk == FREE else set(checkpoint.trunk)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The weights that train, or this process's parts of them."""
        return [part for part in self.model.parameters() if part.requires_grad]

    def gather(self, path: Path | None) -> None:
        """Gather sharded weights in a file of the main process, None in workers; all processes must call this."""
        self._gathered = gather(self.model, path)

    def streams(self, hashed: HashedCheckpoint) -> Iterator[Stream]:
        """Yield the trained tensors in the base model's dtypes (CheckpointError: a frozen one has moved)."""
        checkpoint, own = self._checkpoint, self._whole()
        tensors = {name: own[now] for name, now in self._names.items()}
        public = {name: own[within(name, PUBLIC)] for name in checkpoint.mlp if self.layers}
        frozen = {name: tensor for name, tensor in tensors.items() if name in self._frozen}
        for name, tensor in (*frozen.items(), *public.items()):
            if digest_of(array_of(tensor, checkpoint.dtype_of(name))) != hashed.tensors[name]:
                raise CheckpointError(
                    f"{checkpoint.label}: {name} is frozen, and has changed during the training",
                    "this is a bug in the program or in a library; please report it",
                )
        for name, tensor in tensors.items():
            yield stream_of(name, array_of(tensor, checkpoint.dtype_of(name)))

    def rows(self, hashed: HashedCheckpoint) -> RouterRows | None:
        """Return the router rows that were trained, and their biases, or None without; arguments as `streams`."""
        if not self.layers:
            return None
        own = self._whole()
        names = [name for name, layer in self.model.named_modules() if isinstance(layer, CoordinatedMLP)]
        rows = torch.stack([own[f"{name}.row"].detach().float().cpu() for name in names])  # (L, H)
        biases = [own[bias].detach().float().cpu() for name in names if (bias := f"{name}.bias") in own]
        return RouterRows(hashed.weights, rows.numpy(), torch.cat(biases).numpy() if biases else None)

    def _whole(self) -> dict[str, Tensor]:
        """Return all weights by name, with a low-rank change added."""
        if self._gathered is not None:
            return self._gathered
        if self._rank is not None and hasattr(self.model, "merge_and_unload"):
            self.model = self.model.merge_and_unload()
        return dict(self.model.named_parameters())


def trained_weights(checkpoint: Checkpoint, settings: ExpertTraining) -> int:
    """Return the number of weights that a training changes, from the shapes of a checkpoint."""
    mlp = [checkpoint.shapes[name] for name in checkpoint.mlp]
    rank, sizes = settings.rank, checkpoint.architecture
    count = sum(
        math.prod(shape) if rank is None else rank * sum(shape) for shape in mlp if rank is None or len(shape) == 2
    )
    if settings.trunk == FREE:
        count += sum(math.prod(checkpoint.shapes[name]) for name in checkpoint.trunk)
    if settings.coordinate:
        count += sizes.num_hidden_layers * (sizes.hidden_size + int(settings.router_bias))
    return count


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
