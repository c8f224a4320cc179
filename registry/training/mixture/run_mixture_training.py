"""Training of a mixture's weights, as all of its processes run it alike."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor

from registry.composition.trained import PROJECTORS
from registry.progress import Progress
from registry.runtime.loading import load_model
from registry.training.job import Job
from registry.training.mixture.mixture_weights import BalanceLoss, let_train
from registry.training.mixture.projector_weights import let_projectors_train
from registry.training.processes import Processes, own_device
from registry.training.sharding import gather, load_whole, shard
from registry.training.weight_trainer import Losses, WeightTrainer


def load_mixture(job: Job, processes: Processes) -> Any:
    """Load the mixture of a job; if it is to be sharded, with weights in the main process alone.

    Raises:
        CheckpointError: it does not load.
        InvalidInputError: the device cannot be used.
    """
    device = own_device(job.device)
    return load_whole(job.folder, processes) if job.settings.fsdp else load_model(job.folder, "float32", device)


def run_mixture_training(
    job: Job, model: Any, processes: Processes, state_path: Path | None, scratch: Path, progress: Progress
) -> tuple[dict[str, Tensor], Losses]:
    """Train a loaded mixture in place; return its weights by name if they are sharded, else none, and the losses.

    Args:
        job: the training.
        model: the mixture.
        processes: the processes that train together; sharded weights are returned in the main one alone.
        state_path: the file of states; None to save none, and in workers.
        scratch: a folder for temporary files.
        progress: reports steps.

    Raises:
        InvalidInputError: a loss is not finite.
        StorageError: the disk is full or refuses.
    """
    settings = job.settings
    balance = None
    if settings.train == PROJECTORS:
        let_projectors_train(model)
    else:
        let_train(model, settings.train)
    if settings.fsdp:
        shard(model, processes, job.device)
    if settings.train != PROJECTORS:
        balance = BalanceLoss(model, settings.load_balance)
    trainer = WeightTrainer(
        model,
        [part for part in model.parameters() if part.requires_grad],
        job.windows,
        settings.weights,
        job.dtype == "bfloat16",
        balance.take if balance else None,
        processes,
    )
    with balance.recorded() if balance else nullcontext():
        losses = trainer.train(state_path, scratch, progress)
    return gather(model, scratch / "gathered.safetensors", processes) if settings.fsdp else {}, losses
