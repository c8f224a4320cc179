"""Weights of a model that several processes share: sharded with FSDP2, and gathered tensor by tensor.

Each process holds some rows of every weight, gradient and moment. In a pass the weights of one layer at a time are
gathered (Zhao et al. 2023, "PyTorch FSDP", §3). accelerate shards on accelerators alone, and ignores the wish on CPUs.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from registry.errors import CheckpointError
from registry.io.safetensors_file import Stream, in_order, write_shard
from registry.io.torch_blocks import dtype_name, to_block, torch_dtype
from registry.runtime.loading import load_model, unloaded_model
from registry.training.launcher import Processes, own_device
from store.arrays import ArraySource, Block


def load(folder: Path, device: str, processes: Processes, *, fsdp: bool) -> Any:
    """Load the float32 model of a folder; one to shard stays on the CPU, and has weights in the main process alone."""
    device = own_device(device)
    if fsdp and not processes.is_main:
        return unloaded_model(folder)
    return load_model(folder, "float32", "cpu" if fsdp else device)


def shard(model: Any, processes: Processes, device: str) -> None:
    """Shard a model that `load` returned over the processes, layer by layer; its parameters are other objects then.

    Its parts go to `device`, `cpu` or `cuda`.

    Raises:
        CheckpointError: transformers creates other weights for the architecture than it loads.
    """
    count = len(list(model.parameters()))
    if processes.most(int(count != processes.most(count))):  # or the processes would wait for one another
        raise CheckpointError(
            f"{model.name_or_path}: transformers creates other weights for its architecture than it loads",
            "train without --fsdp",
        )
    weights = [part.detach() for part in model.parameters()] if processes.is_main else []
    mesh = init_device_mesh(device, (processes.count,))
    layers = model.config.num_hidden_layers
    lists = (part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == layers)
    for layer in next(lists, ()):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    # The rest of the model is resharded too: what it gathers for held-out windows must not outlive the next step.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    with torch.no_grad():
        for number, part in enumerate(model.parameters()):
            part.copy_(spread(weights[number] if weights else None, part, processes))
        for buffer in model.buffers():
            buffer.copy_(spread(buffer, buffer, processes))


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that this process holds."""
    part: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part.detach()


def spread(value: Tensor | None, like: Tensor, processes: Processes) -> Tensor:
    """Return a whole tensor of the main process, None in workers, in the places of another of the same shape."""
    if processes.count == 1:
        assert value is not None
        return value.to(like.device)
    place: Any = {"dtype": like.dtype, "device": like.device}
    whole = torch.empty(like.shape, **place) if value is None else value.detach().to(**place).contiguous()
    if isinstance(like, DTensor):
        return distribute_tensor(whole, like.device_mesh, like.placements)
    torch.distributed.broadcast(whole, 0)
    return whole


def gather(model: nn.Module, path: Path | None) -> dict[str, Tensor]:
    """Gather the parameters of a sharded model, one after another, in a safetensors file of the main process.

    All processes must call this; `path` is None in workers. Return the parameters by name, read from the file when they
    are used; none in workers.
    """
    write([stream_of(name, array_of(part)) for name, part in model.named_parameters()], path)
    return {} if path is None else load_file(path)


def write(streams: list[Stream], path: Path | None) -> None:
    """Write tensors to a file, or without a path take part in gathering those that are sharded, in the same order."""
    if path is not None:
        write_shard(path, streams)
        return
    for stream in in_order(streams):
        for _ in stream.blocks():
            pass


def array_of(tensor: Tensor, dtype: str | None = None) -> ArraySource:
    """Return a tensor as an array, which is gathered and rounded to a dtype in each pass over it."""
    name = dtype or dtype_name(tensor.dtype)

    def blocks() -> Iterator[Block]:
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        block = to_block(whole.detach().to(torch_dtype(name)))
        yield from ArraySource.of(block, name).blocks() if block.ndim else [block]

    return ArraySource(name, tuple(tensor.shape), blocks)


def stream_of(name: str, array: ArraySource) -> Stream:
    """Return an array to write."""
    return Stream(name, array.dtype, array.shape, array.blocks)
