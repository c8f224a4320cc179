"""Tasks for tests: the first of them to run kills its process, or waits until it is killed; or all wait for all."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from registry.progress import Progress
from registry.statistics import slices
from registry.statistics.slices import Slice

MARKER = "marker"
_take = slices.take_in_task


def marker_of(out: Path) -> Path:
    """Return the file that the first task writes its node's id to."""
    return out / MARKER


def killed_once(shared: Any, part: Slice, *, progress: Progress) -> str:
    """Take a slice; the first task of all dies in the middle."""
    if _is_first(shared):
        os.kill(os.getpid(), signal.SIGKILL)
    return _take(shared, part, progress=progress)


def stuck_once(shared: Any, part: Slice, *, progress: Progress) -> str:
    """Take a slice; the first task of all does not end by itself."""
    if _is_first(shared):
        time.sleep(120)
    return _take(shared, part, progress=progress)


def together(shared: Any, part: Slice, *, progress: Progress) -> str:
    """Take a slice once as many tasks have begun as the marker says: no process takes two of them."""
    file = marker_of(shared.folder.parents[1])
    file.with_name(f"{MARKER}-{part.first}").touch()
    for _ in range(3000):  # a loaded machine is slow, not wrong
        if len([*file.parent.glob(f"{MARKER}-*")]) >= int(file.read_text()):
            return _take(shared, part, progress=progress)
        time.sleep(0.1)
    raise AssertionError("the other tasks have not begun")


def _is_first(shared: Any) -> bool:
    import ray

    file = marker_of(shared.folder.parents[1])
    try:
        with file.open("x") as made:
            made.write(f"{ray.get_runtime_context().get_node_id()} {os.getpid()}")
    except FileExistsError:
        return False
    return True
