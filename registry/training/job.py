"""Job of a training's workers: what the main process sends them, so that they need neither the registry nor the text.

Shapes: N windows of S tokens.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from registry.calibration import Calibration
from registry.runtime.loading import load_model
from registry.training.processes import Processes, own_device
from registry.training.sharding import load_whole
from registry.training.training_windows import Windows


@dataclass(frozen=True)
class Job:
    """Everything that all processes of a training need alike.

    Attributes:
        kind: `expert` or `mixture`.
        folder: the model to train.
        settings: settings of the training, as its dataclass.
        device: `cpu` or `cuda`.
        dtype: the dtype of the products.
        windows: the windows of its text.
        public: windows of public text; None without.
    """

    kind: str
    folder: Path
    settings: Any
    device: str
    dtype: str
    windows: Windows
    public: Calibration | None = None

    def send(self, processes: Processes) -> None:
        """Send the job from the main process to its workers."""
        if processes.count == 1:
            return
        tensors = self._tensors()
        processes.send(
            {
                "kind": self.kind,
                "folder": str(self.folder),
                "settings": asdict(self.settings),
                "device": self.device,
                "dtype": self.dtype,
                "seed": self.windows.seed,
                "tensors": [[list(part.shape), str(part.dtype).removeprefix("torch.")] for part in tensors],
            }
        )
        for part in tensors:
            torch.distributed.broadcast(part.contiguous(), 0)

    def load(self, processes: Processes) -> Any:
        """Load the model; if it is to be sharded, with weights in the main process alone.

        Raises:
            CheckpointError: it does not load.
            InvalidInputError: the device cannot be used.
        """
        device = own_device(self.device)
        if self.settings.fsdp:
            return load_whole(self.folder, processes)
        return load_model(self.folder, "float32", device)

    def _tensors(self) -> Sequence[Tensor]:
        texts = [self.windows.all, *([] if self.public is None else [self.public])]
        return [self.windows.training, self.windows.held_out, *(part for of in texts for part in (of.ids, of.lengths))]


def receive_job(processes: Processes, settings_of: dict[str, type]) -> Job | None:
    """Wait for the job of the main process; None if that failed before it had one.

    Args:
        processes: the processes of the training.
        settings_of: the dataclass of the settings of each kind of job.
    """
    message = processes.receive()
    if message is None:
        return None
    parts = [torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in message["tensors"]]
    for part in parts:
        torch.distributed.broadcast(part, 0)
    training, held_out, *texts = parts
    found = [Calibration(ids, lengths, "the main process's") for ids, lengths in zip(*[iter(texts)] * 2, strict=True)]
    return Job(
        message["kind"],
        Path(message["folder"]),
        settings_of[message["kind"]](**message["settings"]),
        message["device"],
        message["dtype"],
        Windows(found[0], training, held_out, message["seed"]),
        *found[1:],
    )
