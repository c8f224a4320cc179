"""Parts of a loaded model that train, weights or an adapter beside them, and their files afterwards."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from registry.checkpoint import Checkpoint, HashedCheckpoint
from registry.checkpoint.adapter import WEIGHTS
from registry.checkpoint.adapter_config import CONFIG
from registry.checkpoint.hub_download import HubReference, is_hub_reference
from registry.checkpoint.model_files import ROUTER_FILE
from registry.checkpoint.trained_files import RouterRows, pack_rows
from registry.errors import CheckpointError, StorageError
from registry.io.model_folder import fresh_folder, json_file, write_files
from registry.io.safetensors_file import Stream, write_shard
from registry.progress import Progress
from registry.training.coordinated import EXPERT, PUBLIC, CoordinatedMLP, coordinate, within
from registry.training.from_base import write_checkpoint
from registry.training.settings import FREE, ExpertTraining
from registry.training.sharded import array_of, gather, stream_of
from store.arrays import digest_of


class Trainable:
    """A dense model, loaded in float32 from the folder of `checkpoint`, and which of its weights train.

    Attributes:
        model: the model to train.
        layers: its MLPs that train beside frozen ones, layer by layer; empty without `coordinate`.

    Raises:
        CheckpointError: the model's weights do not have the names of the checkpoint's.
    """

    def __init__(self, model: Any, checkpoint: Checkpoint, settings: ExpertTraining) -> None:
        self._checkpoint = checkpoint
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
        free = [own[self._names[name]] for name in checkpoint.mlp]
        free += [own[name] for name in checkpoint.trunk] if settings.trunk == FREE else []
        free += [part for layer in self.layers for part in (layer.row, layer.bias) if part is not None]
        self.model = model
        for part in free:
            part.requires_grad_(True)
        self._frozen: set[str] = set() if settings.trunk == FREE else set(checkpoint.trunk)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The weights that train, or this process's parts of them."""
        return [part for part in self.model.parameters() if part.requires_grad]

    def gather(self, path: Path | None) -> None:
        """Gather sharded weights in a file of the main process, None in workers; all processes must call this."""
        self._gathered = gather(self.model, path)

    def write(self, target: Path, hashed: HashedCheckpoint, files: Mapping[str, bytes], progress: Progress) -> None:
        """Write the trained checkpoint to an absent or empty folder, which appears whole or not at all.

        Args:
            hashed: the base model (CheckpointError: a frozen weight has moved).
            files: name → content of files beside it.
        """
        if (rows := self.rows(hashed)) is not None:
            files = {**files, ROUTER_FILE: pack_rows(rows)}
        write_checkpoint(target, hashed, list(self.streams(hashed)), files, progress=progress)

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
        """Return all weights by name."""
        return dict(self.model.named_parameters()) if self._gathered is None else self._gathered


class TrainableAdapter:
    """A model that stays as it is, loaded in float32, and a LoRA of all its linear layers but the head, which trains.

    Attributes:
        model: PEFT's wrapper of the model.

    Raises:
        CheckpointError: the model has no such layer.
        StorageError: PEFT is not installed.
    """

    layers: Sequence[CoordinatedMLP] = ()

    def __init__(self, model: Any, checkpoint: Checkpoint, settings: ExpertTraining) -> None:
        try:
            from peft import LoraConfig, get_peft_model
        except ImportError as error:
            hint = "run: pip install 'expert-registry[train]', or drop --lora"
            raise StorageError("training an adapter needs peft", hint) from error
        rank = settings.lora
        assert rank is not None
        torch.manual_seed(settings.seed)  # of the first factors
        head = model.get_output_embeddings()
        linear = {
            name.rpartition(".")[2]
            for name, part in model.named_modules()
            if isinstance(part, nn.Linear) and part is not head
        }
        if not linear:
            raise CheckpointError(
                f"{checkpoint.label}: no layer of a {checkpoint.family.model_type!r} model is linear, and an adapter "
                "changes linear layers",
                "drop --lora",
            )
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=sorted(linear), task_type="CAUSAL_LM")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of one library to the other
            self.model: Any = get_peft_model(model, config)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The factors."""
        return [part for part in self.model.parameters() if part.requires_grad]

    def gather(self, path: Path | None) -> None:
        """Do nothing: every process has all of it."""

    def write(self, target: Path, hashed: HashedCheckpoint, files: Mapping[str, bytes], progress: Progress) -> None:
        """Write the adapter as PEFT does, in the dtype that the model's weights are stored in (as `Trainable.write`).

        Where they have several dtypes, it is float32.
        """
        from peft import get_peft_model_state_dict

        checkpoint = hashed.checkpoint
        dtypes = {checkpoint.dtype_of(name) for name in checkpoint.shapes}
        dtype = dtypes.pop() if len(dtypes) == 1 else "float32"
        streams = [
            stream_of(name, array_of(part, dtype)) for name, part in get_peft_model_state_dict(self.model).items()
        ]
        config = self.model.peft_config["default"].to_dict()
        base, revision = checkpoint.label, None
        if is_hub_reference(base):
            reference = HubReference.parse(base)
            base, revision = reference.repo_id, reference.revision
        config |= {"base_model_name_or_path": base, "revision": revision, "inference_mode": True}
        config = {key: (sorted(value) or None) if isinstance(value, set) else value for key, value in config.items()}
        nbytes = sum(stream.nbytes for stream in streams)
        with fresh_folder(target, replace=None, nbytes=nbytes) as folder:
            with progress("writing", nbytes, "B") as advance:
                write_shard(folder / WEIGHTS, streams, advance)
            write_files(folder, {CONFIG: json_file(config), **files})
