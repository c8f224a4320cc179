"""The dtype that a forward pass computes in: the weights' own where the device multiplies it fast, else float32."""

import os
import platform
from functools import cache

import torch

from registry.io.dtypes import AUTO
from registry.progress import Progress, remark
from registry.runtime.loading import device_name

_ISA = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Environment variables that bound the instructions of oneDNN; the first one that is set holds."""

_EMULATING = ("AVX512_CORE", "AVX512_CORE_VNNI")
"""Bounds under which oneDNN accepts bfloat16, and computes it with instructions of float32."""


def compute_dtype(wanted: str, own: str, device: str | None) -> str:
    """Return the dtype of a pass.

    Args:
        wanted: a dtype, or `auto`.
        own: the dtype of the model's weights.
        device: a torch device; None for the GPU if there is one.
    """
    if wanted != AUTO:
        return wanted
    return own if is_fast(own, device_name(device).partition(":")[0]) else "float32"


def report_dtype(wanted: str, own: str, device: str | None, progress: Progress) -> None:
    """Report the dtype that `auto` stands for, if it differs from that of the weights."""
    if wanted == AUTO and compute_dtype(wanted, own, device) != own:
        kind = device_name(device).partition(":")[0].upper()
        remark(progress, f"computing in float32: this {kind} is slow in {own}, the dtype of the weights")


@cache
def is_fast(dtype: str, device: str) -> bool:
    """Tell whether a kind of device multiplies matrices of a dtype at least as fast as those of float32.

    Processors do so in bfloat16 with AVX-512 BF16, AMX or Arm's BF16 instructions, as far as oneDNN may use them, and
    never in float16, of which only the newest have products.
    """
    if dtype == "float32":
        return True
    if device == "cpu":
        return dtype == "bfloat16" and _multiplies_bfloat16()
    if device == "cuda" and dtype == "bfloat16":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return True


def _multiplies_bfloat16() -> bool:
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    if not torch.backends.mkldnn.is_available() or supported is None or not supported():
        return False
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True  # elsewhere oneDNN accepts bfloat16 only where there are instructions for it
    bound = next((os.environ[name].upper() for name in _ISA if os.environ.get(name)), "")
    native = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    return bound not in _EMULATING and any(ask is not None and ask() for ask in native)
