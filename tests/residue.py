"""Searching files for what should be gone: every 16-byte window, at every offset.

A window is known by a 64-bit hash: none is missed, and a false alarm is as likely as a collision, about one in 10⁶.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

SIZE = 16
TRIVIAL = 4
"""A window of fewer distinct byte values than this is nobody's: runs of zeros, signs of small integers."""

_SHIFT = 64 - 26

Hashes = npt.NDArray[np.uint64]


def hashes(data: bytes) -> Hashes:
    """Return the hash of every window of `data`, by offset."""
    if len(data) < SIZE:
        return np.zeros(0, dtype=np.uint64)
    words = np.empty(len(data) - 7, dtype=np.uint64)
    for shift in range(8):
        count = (len(data) - shift) // 8
        words[shift::8] = np.frombuffer(data, dtype="<u8", offset=shift, count=count)
    first, last = words[:-8], words[8:]
    mixed = (first ^ (first >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15) + last
    return (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)


def trivial(data: bytes) -> npt.NDArray[np.bool_]:
    """Tell for every window whether it has fewer than `TRIVIAL` distinct byte values."""
    windows = np.sort(np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, dtype=np.uint8), SIZE), axis=1)
    distinct: npt.NDArray[np.int64] = (np.diff(windows, axis=1) != 0).sum(axis=1) + 1
    few: npt.NDArray[np.bool_] = distinct < TRIVIAL
    return few


def windows_of(blobs: Iterable[bytes]) -> Hashes:
    """Return the hashes of all windows of some data, each once, in order."""
    return np.unique(np.concatenate([np.zeros(0, dtype=np.uint64), *map(hashes, blobs)]))


def own_windows(own: Iterable[bytes], others: Iterable[bytes]) -> Hashes:
    """Return the windows of `own` that are not trivial and occur nowhere in `others`."""
    found = [hashes(blob)[~trivial(blob)] for blob in set(own) if len(blob) >= SIZE]
    return np.setdiff1d(np.unique(np.concatenate(found)), windows_of(others), assume_unique=True)


def search(folder: Path, windows: Hashes) -> dict[str, int]:
    """Return, by path below `folder`, how many of `windows` (in order) begin in a file, where any does."""
    hinted = np.zeros(1 << (64 - _SHIFT), dtype=np.bool_)  # few hashes need the search proper
    hinted[windows >> np.uint64(_SHIFT)] = True
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            here = hashes(path.read_bytes())
            here = here[hinted[here >> np.uint64(_SHIFT)]]
            at = np.minimum(np.searchsorted(windows, here), len(windows) - 1)
            if count := int((windows[at] == here).sum()):
                found[str(path.relative_to(folder))] = count
    return found
