"""The kind of a node, as far as the bits of a pass depend on it: processor, threads and libraries, as one line of text.

Products of float32 matrices on 1 and on 3 threads differ in their last bits, and so do those of two generations of
processors. Tasks therefore use as many threads as the process that divides the work, and results of two kinds of nodes
are not combined.
"""

import os
import platform
from functools import cache
from pathlib import Path

_VARIABLES = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")
"""Environment variables that choose among the instructions of a processor."""


def node_kind(device: str, threads: int | None = None) -> str:
    """Return the kind of this node: processor or GPU, its instructions, torch's threads, and the libraries' versions.

    Args:
        device: a torch device.
        threads: of torch; default those of this process now.
    """
    from importlib.metadata import version

    import torch

    libraries = f"torch {torch.__version__}, transformers {version('transformers')}"
    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}, {libraries}"
    chosen = "".join(f", {name}={os.environ[name]}" for name in _VARIABLES if os.environ.get(name))
    capability, threads = torch.backends.cpu.get_cpu_capability(), threads or torch.get_num_threads()
    return f"{device}: {_processor()}, {capability}, {threads} threads{chosen}, {libraries}"


@cache
def _processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
