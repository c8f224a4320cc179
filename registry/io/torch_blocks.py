"""Between torch tensors and the blocks that the array store and safetensors files hold."""

import torch
from torch import Tensor

from store.arrays import Block

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
}
"""The names of dtypes, as everywhere outside torch."""


def to_block(tensor: Tensor) -> Block:
    """Return the tensor's bits as the array store carries them: bfloat16 as uint16, everything else as itself."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        import numpy as np

        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def to_tensor(block: Block, dtype: str) -> Tensor:
    """Return the tensor whose bits `block` carries; it shares memory with `block` where torch allows."""
    import numpy as np

    if dtype == "bfloat16":
        return torch.from_numpy(block.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(block)
