"""Job of a training's workers: what the main process sends them, so that they need neither registry nor text."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from registry.calibration import Calibration
from registry.runtime.loading import load_model, unloaded_model
from registry.training.processes import Processes, own_device
from registry.training.settings import ExpertTraining, MixtureTraining
from registry.training.training_windows import Windows


@dataclass(frozen=True)
class Job:
    """Everything that all processes of a training need alike: the model's folder, settings, windows of text.

    `dtype` is that of the products; `public` has windows of public text, where a training has any.
    """

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
        texts = [self.windows.all] if self.public is None else [self.windows.all, self.public]
        tensors = [self.windows.training, self.windows.held_out]
        tensors += [part for text in texts for part in (text.ids, text.lengths)]
        processes.send(
            {
                "folder": str(self.folder),
                "settings": asdict(self.settings),
                "device": self.device,
                "dtype": self.dtype,
                "tensors": [[list(part.shape), str(part.dtype).removeprefix("torch.")] for part in tensors],
            }
        )
        for part in tensors:
            torch.distributed.broadcast(part.contiguous(), 0)

    def load(self, processes: Processes) -> Any:
        """Load the model; if it is to be sharded, on the CPU and with weights in the main process alone."""
        device = own_device(self.device)
        if self.settings.fsdp and not processes.is_main:
            return unloaded_model(self.folder)
        return load_model(self.folder, "float32", "cpu" if self.settings.fsdp else device)


def receive_job(processes: Processes) -> Job | None:
    """Wait for the job of the main process; None if that failed before it had one."""
    message = processes.receive()
    if message is None:
        return None
    parts = [torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in message["tensors"]]
    for part in parts:
        torch.distributed.broadcast(part, 0)
    training, held_out, *texts = parts
    found = [Calibration(texts[at], texts[at + 1], "") for at in range(0, len(texts), 2)]
    settings = (MixtureTraining if "train" in message["settings"] else ExpertTraining)(**message["settings"])
    windows = Windows(found[0], training, held_out, settings.seed)
    return Job(Path(message["folder"]), settings, message["device"], message["dtype"], windows, *found[1:])
