"""Work of the processes of a training that are not the main one."""

from registry.checkpoint import Checkpoint
from registry.io.work_dirs import temporary_folder
from registry.progress import silent
from registry.training.job import Job, receive_job
from registry.training.processes import Processes, joined
from registry.training.train_expert import run_training
from registry.training.train_mixture import run_mixture_training


def run_worker() -> bool:
    """Train with the main process of a launcher, and return whether that ended well; nothing is printed.

    The main process is the one that calls `Registry.train_expert` or `Registry.train`.

    Raises:
        InvalidInputError: the launcher was asked for what this program does itself.
        RegError: this process failed, and the main one did not.
    """
    with joined() as processes:
        try:
            job = receive_job(processes)
            if job is None:
                return False
            _train(job, processes)
        except Exception as error:
            reported = processes.report(error)
            if processes.has_failed():  # of the same, or this process has lost it
                return False
            raise reported from error
        return processes.ends_well()


def _train(job: Job, processes: Processes) -> None:
    with temporary_folder() as scratch:
        if job.kind == "expert":
            run_training(job, Checkpoint(job.folder, remote_code=True), processes, None, scratch, silent)
        else:
            run_mixture_training(job, job.load(processes), processes, None, scratch, silent)
