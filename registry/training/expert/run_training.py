"""Training of an expert's weights, as all of its processes run it alike."""

from pathlib import Path

from registry.checkpoint import Checkpoint
from registry.progress import Progress
from registry.runtime.loading import load_model
from registry.training.expert.initial_rows import WINDOWS, begin_rows
from registry.training.expert.trainable import Trainable
from registry.training.job import Job
from registry.training.processes import Processes, own_device
from registry.training.sharding import load_whole, shard
from registry.training.weight_trainer import Losses, WeightTrainer


def run_training(
    job: Job, checkpoint: Checkpoint, processes: Processes, state_path: Path | None, scratch: Path, progress: Progress
) -> tuple[Trainable, Losses]:
    """Train, and return the weights and the losses; weights that are sharded are whole in the main process alone.

    Args:
        job: the training.
        checkpoint: the base model, in the job's folder.
        processes: the processes that train together.
        state_path: the file of states; None to save none, and in workers.
        scratch: a folder for temporary files.
        progress: reports steps.

    Raises:
        CheckpointError: the base model cannot be trained here.
        CalibrationError: the mean of a text is zero or not finite.
        InvalidInputError: a loss is not finite, or the device cannot be used.
        StorageError: the disk is full or refuses, or a library is not installed.
    """
    settings, windows, device = job.settings, job.windows, own_device(job.device)
    if settings.fsdp:
        model = load_whole(checkpoint.folder, processes)
    else:
        model = load_model(checkpoint.folder, "float32", device)
    trainable = Trainable(model, checkpoint, settings)
    if settings.fsdp:
        shard(trainable.model, processes, device)
    if job.public is not None:
        own, public = windows.take(windows.training[:WINDOWS]), (job.public.ids.long(), job.public.keep)
        begin_rows(trainable.model, trainable.layers, own, public, settings.batch_size, processes)
    trainer = WeightTrainer(
        trainable.model, trainable.parameters, windows, settings, job.dtype == "bfloat16", processes=processes
    )
    losses = trainer.train(state_path, scratch, progress)
    if settings.fsdp:
        trainable.gather(scratch / "trained.safetensors", processes)
    return trainable, losses
