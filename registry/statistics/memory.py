"""Estimates of the memory that a forward pass takes, and whether the whole model fits.

Shapes: L layers, C channels of a site (H, or heads times their size), F intermediate size of the MLP; T tokens of a
batch, in windows of S.
"""

import math
from dataclasses import dataclass

from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError
from registry.families.sites import ATTENTION_OUTPUT, HEAD_INPUT, SITES
from registry.io.torch_blocks import torch_dtype
from registry.progress import Progress, remark
from registry.runtime.compute_dtype import compute_dtype
from registry.runtime.upcast import free_memory
from registry.statistics.settings import PassSettings

LIBRARIES = 3 << 28
"""Bytes that Python, torch and transformers take, with compiled kernels and buffers: 0.8 GB."""


@dataclass(frozen=True)
class PassMemory:
    """Upper estimates of the memory of a pass, in bytes.

    Attributes:
        model: the whole model, loaded.
        whole: the whole model with the sums of all layers.
        by_layer: one layer with its sums.
    """

    model: int
    whole: int
    by_layer: int

    @classmethod
    def of(cls, checkpoint: Checkpoint, settings: PassSettings, seq_len: int) -> "PassMemory":
        """Return the memory of a pass over windows of `seq_len` tokens."""
        architecture, family = checkpoint.architecture, checkpoint.family
        hidden, heads = architecture.hidden_size, architecture.num_attention_heads
        dtype = compute_dtype(settings.dtype, checkpoint.dtype, settings.device)
        itemsize = torch_dtype(dtype).itemsize
        sizes = {name: math.prod(shape) for name, shape in checkpoint.shapes.items()}
        in_layer = [number for name, number in sizes.items() if name.startswith(f"{family.layers}.0.")]
        layer = sum(in_layer)
        # In float32 narrower weights stay as they are, beside copies of the modules that run.
        narrow = dtype == "float32" and checkpoint.dtype != "float32"
        model = sum(sizes.values()) * (2 if narrow else itemsize) + (4 * layer if narrow else 0)
        # Within a layer: the MLP's gate, up and down inputs, the stream and its copies, and the scores of attention.
        tokens = settings.batch_size * seq_len
        channels = heads * architecture.head_dim
        activations = itemsize * tokens * (4 * architecture.intermediate_size + 8 * max(hidden, channels))
        activations += 4 * tokens * heads * seq_len
        widths = {site: channels if site == ATTENTION_OUTPUT else hidden for site in SITES[settings.sites]}
        # Running sums: int64, and int32 by limbs until they are folded into it.
        sums = {site: 16 * (width + 1) ** 2 for site, width in widths.items()}
        head = sums.pop(HEAD_INPUT, 0)
        of_layer = sum(sums.values())
        running = LIBRARIES + activations
        count = architecture.num_hidden_layers
        # The layer's weights leave the memory before its sums are packed, at another half of their size.
        return cls(
            LIBRARIES + model,
            running + model + count * of_layer + head,
            running + max(itemsize * layer + 8 * max(in_layer), of_layer // 2) + of_layer,
        )


def whole_fits(checkpoint: Checkpoint, settings: PassSettings, seq_len: int, progress: Progress) -> bool:
    """Tell whether a pass may load the whole model; if not, report that it reads layer by layer."""
    need, limit = PassMemory.of(checkpoint, settings, seq_len), _limit(settings)
    if need.whole <= limit:
        return True
    remark(
        progress,
        f"reading the model layer by layer: whole, with its sums, it takes about {_gigabytes(need.whole)} of memory, "
        f"and {_gigabytes(limit)} may be used",
    )
    if need.by_layer > limit:
        remark(progress, f"even so one layer takes about {_gigabytes(need.by_layer)}: give a smaller --batch-size")
    return False


def check_sampling(checkpoint: Checkpoint, settings: PassSettings, seq_len: int) -> None:
    """Check that an expert can sample its text: token by token, which needs the whole model in memory.

    Raises:
        CalibrationError: the model does not fit.
    """
    need, limit = PassMemory.of(checkpoint, settings, seq_len).model, _limit(settings)
    if need > limit:
        raise CalibrationError(
            f"{checkpoint.label}: the expert cannot write calibration text itself: that needs the whole model in "
            f"memory, about {_gigabytes(need)}, and {_gigabytes(limit)} may be used",
            "give text: --data FILE",
        )


def _limit(settings: PassSettings) -> int:
    """Return the bytes that a pass may take: as many as the settings allow, or as are free where the model runs."""
    return free_memory(settings.device) if settings.max_memory is None else settings.max_memory


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB"
