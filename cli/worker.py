"""Commands that train, in a process that a launcher started as a worker of another."""

import click

from registry.training.processes import is_worker


def trained_as_worker() -> bool:
    """Train with the main process if this one is its worker; print nothing, and exit with 1 if that failed.

    Returns:
        True in a worker, for which nothing is left to do.
    """
    if not is_worker():
        return False
    from registry.training import run_worker

    if not run_worker():
        click.get_current_context().exit(1)
    return True
