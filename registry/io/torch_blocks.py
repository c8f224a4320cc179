"""Conversions between torch tensors and the blocks of the array store and of safetensors files.

torch is imported in the functions that need it, so that reading headers does not load it.
"""

from typing import TYPE_CHECKING

from store.arrays import ArraySource, Block

if TYPE_CHECKING:
    import torch


def torch_dtype(name: str) -> "torch.dtype":
    """Return the torch dtype with a name, such as `bfloat16`."""
    import torch

    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), name
    return dtype


def dtype_name(dtype: "torch.dtype") -> str:
    """Return the name of a torch dtype, such as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def to_block(tensor: "torch.Tensor") -> Block:
    """Return a tensor in the array store's carrier dtype: bfloat16 as uint16, float8 as uint8, others unchanged."""
    import numpy as np
    import torch

    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    if tensor.dtype == torch.float8_e4m3fn:
        return tensor.view(torch.uint8).numpy()
    return tensor.numpy()


def to_tensor(block: Block, dtype: str) -> "torch.Tensor":
    """Return the tensor that `block` holds in its carrier dtype; both share memory if torch allows it."""
    import numpy as np
    import torch

    if dtype == "bfloat16":
        return torch.from_numpy(block.view(np.int16)).view(torch.bfloat16)
    if dtype == "float8_e4m3fn":
        return torch.from_numpy(block).view(torch.float8_e4m3fn)
    return torch.from_numpy(block)


def read_tensor(source: ArraySource) -> "torch.Tensor":
    """Return a stored tensor, read as a whole."""
    import torch

    return torch.cat([to_tensor(block, source.dtype) for block in source.blocks()])
