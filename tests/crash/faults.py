"""`faults.c`, compiled, loaded before everything else, and begun in a process of one's own."""

import ctypes
import gc
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

COUNT, KILL, FULL = 1, 2, 3
_SOURCE = Path(__file__).with_name("faults.c")


def why_not() -> str | None:
    """Return why faults cannot be made on this machine, or None where they can."""
    if not sys.platform.startswith("linux"):
        return "LD_PRELOAD and /proc are Linux's"
    return None if shutil.which("cc") else "there is no C compiler"


def load(scratch: Path, *, apart: bool) -> None:
    """Begin this program again with `faults.c` before the C library, unless it was begun so.

    With `apart`, in a mount namespace of its own: as a user who may not have one, in a user namespace, too.
    """
    library = scratch / "faults.so"
    if os.environ.get("LD_PRELOAD") == str(library):
        return
    scratch.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True)
    environment = os.environ | {"LD_PRELOAD": str(library), "PYTHONDONTWRITEBYTECODE": "1"}
    words = [sys.executable, "-m", "tests.crash", *sys.argv[1:]]
    if apart:
        words = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), *words]
    os.execvpe(words[0], words, environment)


def arm(how: int, folder: Path, at: int = -1, trace: int = -1) -> None:
    """Strike at point `at` of the changes below `folder` from now on; tell the open file `trace` of each."""
    ctypes.CDLL(None).faults_arm(how, os.fsencode(folder), ctypes.c_long(at), trace)


def count() -> int:
    """Return how many points there were since `arm`; with FULL, how many changes that need space."""
    counted = ctypes.CDLL(None).faults_count
    counted.restype = ctypes.c_long
    return int(counted())


def distinct() -> list[int]:
    """Return the points that were counted but those before a change that directly follow one after another change.

    At both the same is on disk. The first is among them.
    """
    kind = ctypes.CDLL(None).faults_kind
    kind.argtypes, kind.restype = [ctypes.c_long], ctypes.c_char
    kinds = [kind(at) for at in range(count())]
    return [at for at, (last, own) in enumerate(zip([b"", *kinds], kinds, strict=False)) if (last, own) != (b"a", b"b")]


def forked(action: Callable[[], object]) -> int:
    """Run `action` in a child and return how it ended: an exit code, or minus the signal."""
    sys.stdout.flush()
    gc.freeze()  # or the child's first collection would copy every page that holds an object
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
