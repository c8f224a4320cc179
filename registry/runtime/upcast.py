"""The dtype that a forward pass computes in: the weights' own where the device multiplies it fast, else float32.

Where it is float32 and the weights are narrower, each module's weights are cast while it runs.
The weights stay in memory as they are stored. Beside them are float32 copies of the modules that are running, in room
that is used again by the next module of the same shape. All values equal those of the model loaded in float32.

Shapes: V rows of an embedding, H its channels, B windows, S tokens of a window, U different tokens among them.
"""

import copy
import math
import os
import platform
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from registry.checkpoint.model_files import read_headers, weight_files
from registry.errors import CheckpointError
from registry.io.dtypes import AUTO, NAMES, WEIGHT_DTYPES
from registry.io.process import available_memory
from registry.progress import Progress, remark, silent
from registry.runtime.loading import (
    check_device,
    device_kind,
    device_name,
    load_model,
    quiet_transformers,
    with_fast_products,
    without_weights,
)

WHOLE_SHARE = 0.5  # share of the free memory that weights may take in float32 where the whole model is cast at once

_ISA = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Environment variables that bound the instructions of oneDNN; the first one that is set holds."""

_EMULATING = ("AVX512_CORE", "AVX512_CORE_VNNI")
"""Bounds under which oneDNN accepts bfloat16, and computes it with instructions of float32."""


def load_for_pass(
    folder: Path,
    dtype: str,
    device: str | None,
    *,
    prefer_whole: bool = False,
    progress: Progress = silent,
) -> Any:
    """Return a causal language model in evaluation mode that computes in a dtype.

    In float32 narrower weights are cast module by module. With `prefer_whole` the model is loaded in float32 instead if
    that takes at most half of the free memory: for many short calls, such as sampling token by token.

    With `auto` there is a remark if that stands for another dtype than that of the weights (errors as `load_model`).
    """
    own, uniform, values = _stored(folder)
    report_dtype(dtype, own, device, progress)
    dtype = compute_dtype(dtype, own, device)
    whole = dtype != "float32" or own == "float32" or not uniform
    if whole or (prefer_whole and 4 * values <= WHOLE_SHARE * free_memory(device)):
        return load_model(folder, dtype, device)
    return upcast(load_model(folder, own, device))


def compute_dtype(wanted: str, own: str, device: str | None) -> str:
    """Return the dtype of a pass: the one wanted, or for `auto` that of the weights, `own`, where it is fast."""
    if wanted != AUTO:
        return wanted
    return own if is_fast(own, device_kind(device)) else "float32"


def report_dtype(wanted: str, own: str, device: str | None, progress: Progress) -> None:
    """Report the dtype that `auto` stands for, if it differs from that of the weights."""
    if wanted == AUTO and compute_dtype(wanted, own, device) != own:
        kind = device_kind(device).upper()
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


def free_memory(device: str | None) -> int:
    """Return the bytes of memory that are free where a model runs; `device` None for the GPU if there is one."""
    if device_kind(device) != "cuda":
        return available_memory()
    check_device(device)
    return int(torch.cuda.mem_get_info(device_name(device))[0])


def stored_dtype(folder: Path) -> str:
    """Return the dtype that most weights of a model folder have (CheckpointError: none can be read)."""
    return _stored(folder)[0]


def upcast(model: Any) -> Any:
    """Return a model that computes in float32 over the weights of `model`, which must not be used afterwards."""
    config = copy.deepcopy(model.config)
    config.dtype = torch.float32
    with quiet_transformers(), without_weights():
        result: Any = type(model)._from_config(config, dtype=torch.float32)
    weights = dict(model.named_modules(remove_duplicate=False))
    stored = set(model.state_dict(keep_vars=True))
    room: _Room = defaultdict(list)
    for name, module in result.named_modules(remove_duplicate=False):
        source = weights[name]
        module._parameters.update(source._parameters)
        for key, buffer in source._buffers.items():
            own = module._buffers[key]
            if buffer is None or own is None:
                continue
            if f"{name}.{key}".lstrip(".") in stored:  # from the file; other buffers are those of a model in float32
                own = buffer.to(own.dtype)
            module._buffers[key] = own.to(buffer.device)
    for module in result.modules():
        if any(weight is not None and weight.dtype != torch.float32 for weight in module._parameters.values()):
            _hook(module, room)
    result.generation_config = model.generation_config
    return with_fast_products(result.eval())


_Room = defaultdict[tuple[torch.Size, torch.device], list[Tensor]]
"""Tensors of float32 that no module uses now, by shape and device."""


def _hook(module: nn.Module, room: _Room) -> None:
    """Cast the weights of a module itself while it runs; of an embedding, only the rows that are looked up."""
    running: list[dict[str, nn.Parameter | None]] = []

    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        running.append(dict(module._parameters))
        if isinstance(module, nn.Embedding):
            ids, *others = args
            # (B, S) numbers of V rows → U rows (U, H), and (B, S) numbers of those
            used, numbers = torch.unique(ids, return_inverse=True)
            rows: Float[Tensor, "U H"] = module.weight[used].float()
            module._parameters["weight"] = nn.Parameter(rows, requires_grad=False)
            return (numbers, *others), kwargs
        for name, weight in module._parameters.items():
            if weight is not None and weight.is_floating_point():
                free = room[weight.shape, weight.device]
                cast = free.pop().copy_(weight.detach()) if free else weight.detach().float()
                module._parameters[name] = nn.Parameter(cast, requires_grad=False)
        return None

    def after(_module: nn.Module, _args: Any, _kwargs: Any, _output: Any) -> None:
        if not running:
            return
        original = running.pop()
        for name, weight in original.items():
            cast = module._parameters[name]
            if cast is not None and cast is not weight and not isinstance(module, nn.Embedding):
                room[cast.shape, cast.device].append(cast.data)
            module._parameters[name] = weight

    if isinstance(module, nn.Embedding):
        module.padding_idx = None  # it may be beyond the rows that are looked up
    module.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
    module.register_forward_hook(after, with_kwargs=True, always_call=True)


def _stored(folder: Path) -> tuple[str, bool, int]:
    """Return the dtype of most weights, whether all have it, and the number of values."""
    tensors = read_headers(weight_files(folder)).values()
    counts = {dtype: sum(NAMES[tensor.dtype] == dtype for tensor in tensors) for dtype in WEIGHT_DTYPES}
    own = max(WEIGHT_DTYPES, key=counts.__getitem__)
    if not tensors:
        raise CheckpointError(f"{folder} has no weights", "name the folder of a model")
    floating = [tensor for tensor in tensors if NAMES[tensor.dtype] in (*WEIGHT_DTYPES, "float64")]
    return own, counts[own] == len(floating), sum(math.prod(tensor.shape) for tensor in floating)
