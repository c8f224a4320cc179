"""Work of the processes of a training that are not the main one."""

from registry.checkpoint import Checkpoint
from registry.io.work_dirs import temporary_folder
from registry.progress import silent
from registry.training.job import receive_job
from registry.training.processes import joined
from registry.training.settings import ExpertTraining
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
            with temporary_folder() as scratch:
                if isinstance(job.settings, ExpertTraining):
                    checkpoint = Checkpoint(job.folder, remote_code=True)
                    run_training(job, checkpoint, processes, None, scratch, silent)
                else:
                    run_mixture_training(job, job.load(processes), processes, None, scratch, silent)
        except Exception as error:
            reported = processes.report(error)
            if processes.has_failed():  # of the same, or this process has lost it
                return False
            raise reported from error
        return processes.ends_well()
