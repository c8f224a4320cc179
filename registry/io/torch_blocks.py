"""Between torch tensors and the blocks that the array store and safetensors files hold.

torch is imported by the functions that need it, so that reading headers and refusing a checkpoint does not load it.
"""

from typing import TYPE_CHECKING

from store.arrays import Block

if TYPE_CHECKING:
    import torch


def torch_dtype(name: str) -> "torch.dtype":
    """Return torch's dtype of a name, such as `bfloat16`."""
    import torch

    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype), name
    return dtype


def dtype_name(dtype: "torch.dtype") -> str:
    """Return the name of a torch dtype, such as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def to_block(tensor: "torch.Tensor") -> Block:
    """Return the tensor's bits as the array store carries them: bfloat16 as uint16, everything else as itself."""
    import numpy as np
    import torch

    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def to_tensor(block: Block, dtype: str) -> "torch.Tensor":
    """Return the tensor whose bits `block` carries; it shares memory with `block` where torch allows."""
    import numpy as np
    import torch

    if dtype == "bfloat16":
        return torch.from_numpy(block.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(block)
