"""The program as a launcher starts it, with a fault in one of its processes.

`python -m tests.launched FAULT WORD…` runs `reg WORD…`, with states saved after every step. FAULT is one of

    none             nothing goes wrong
    killed:N         the main process is killed when step N is done and saved
    worker:N         the worker raises an error then
    text             the worker reads other text
    saving           the main process raises an error when it saves a state
    writing          the main process raises an error when it writes what was trained
"""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from cli.main import main
from registry.errors import StorageError
from registry.training import from_base, loop, state


def run(fault: str, words: list[str]) -> None:
    """Run a command with a fault."""
    loop.SAVE_SECONDS, is_worker = 0.0, os.environ["RANK"] != "0"
    kind, _, step = fault.partition(":")
    expert: Any = importlib.import_module("registry.training.train_expert")  # the package has a function of that name
    save, draw = state.save, expert.draw_windows

    def saved(path: Any, parts: Any, optimiser: Any, before: float, losses: Sequence[float]) -> None:
        save(path, parts, optimiser, before, losses)
        if step and len(losses) == int(step):
            if kind == "killed" and not is_worker:
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "worker" and is_worker:
                raise MemoryError("no memory is left")

    state.save = saved
    if kind == "text" and is_worker:
        expert.draw_windows = lambda files, *others: draw([files[0].with_name("law.train.jsonl")], *others)
    if kind == "saving":
        setattr(state, "replace_shard", refuse)  # noqa: B010 - the module only imports it
    if kind == "writing":
        setattr(from_base, "write_weights", refuse)  # noqa: B010
    main(words, prog_name="reg")


def refuse(*_words: Any, **_options: Any) -> None:
    """Fail as a disk does."""
    raise StorageError("the disk is full")


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
