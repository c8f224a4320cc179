"""Announcement of a training: what it will change, and by how much work, before anything that takes time."""

from registry.progress import Progress, remark

GOES_ON = "an interrupted training goes on"
"""Beginning of the remark of a training that was interrupted, which says how many steps were done before."""


def announce(
    progress: Progress, what: str, weights: int, *, steps: int, tokens: int, device: str, processes: int = 1
) -> None:
    """Report what will be trained.

    Args:
        progress: receives the remark.
        what: the weights, in words.
        weights: their number.
        steps: of the whole training.
        tokens: those of the windows of all steps.
        device: the device.
        processes: the number of processes.
    """
    apart = f" in {processes} processes" if processes > 1 else ""
    some = "step" if steps == 1 else "steps"
    remark(progress, f"training {what}: {weights:,} weights, {steps:,} {some}, {tokens:,} tokens, on {device}{apart}")
