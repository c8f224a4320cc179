"""The program as a launcher starts it, with a fault in one of its processes.

`python -m tests.launched FAULT WORD…` runs `reg WORD…`, with states saved after every step. FAULT is one of

    none             nothing goes wrong
    killed:N         the main process is killed when step N is done
    worker:N         the worker raises an error in step N
    saving           the main process raises an error when it saves a state
    writing          the main process raises an error when it writes what was trained
"""

import importlib
import os
import signal
import sys
from typing import Any

from cli.main import main
from registry.errors import StorageError
from registry.training import state, weight_trainer
from registry.training.processes import is_worker


def run(fault: str, words: list[str]) -> None:
    """Run a command with a fault."""
    state.SAVE_SECONDS = 0.0
    kind, _, step = fault.partition(":")
    log = weight_trainer._Steps.on_log

    def on_log(steps: Any, args: Any, state: Any, control: Any, **others: Any) -> None:
        log(steps, args, state, control, **others)
        if step and state.global_step == int(step):
            if kind == "killed" and not is_worker():
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "worker" and is_worker():
                raise MemoryError("no memory is left")

    weight_trainer._Steps.on_log = on_log  # type: ignore[method-assign, assignment]
    if kind in ("saving", "writing"):
        place = "registry.training.state" if kind == "saving" else "registry.training.from_base"
        setattr(importlib.import_module(place), "save" if kind == "saving" else "write_weights", refuse)
    main(words, prog_name="reg")


def refuse(*_words: Any, **_options: Any) -> None:
    """Fail as a disk does."""
    raise StorageError("the disk is full")


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
