"""The forward pass layer by layer: a layer runs over all windows before the next, and one layer's sums are in memory.

The residual streams of all windows wait between two layers, so that every layer still runs once for each window. All
sums equal those of `take_statistics`, to the bit.

The model is loaded (`mlp_statistics`), or one layer of its checkpoint is read at a time (`take_statistics_by_layer`):
the sums of a layer then go to a file, and the streams wait in two files, one before the layer and one after it, which
the system keeps in memory as far as it has room. So the memory grows with the size of a layer alone. That is done where
the whole model does not fit (`whole_fits`).

Shapes: N windows of a calibration, S tokens of a window, B windows of a batch, V rows of the embedding; H hidden size,
L layers.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError, CheckpointError, StorageError
from registry.families.sites import ATTENTION_OUTPUT, HEAD_INPUT, MLP_INPUT, SITES
from registry.io.process import return_freed_memory
from registry.io.torch_blocks import to_tensor, torch_dtype
from registry.io.work_dirs import resumable_folder
from registry.maths.statistics import Statistics
from registry.progress import Advance, Progress, remark
from registry.runtime.layerwise import LayerCalls, Layers
from registry.runtime.loading import device_name
from registry.runtime.row_file import RowFile
from registry.runtime.upcast import compute_dtype, free_memory, report_dtype
from registry.statistics import file as statistics_file
from registry.statistics.file import Collected, LazyLayers, lazy_layers
from registry.statistics.forward_pass import computed_by
from registry.statistics.settings import PassSettings
from registry.statistics.site_sums import Batches, Counting, HookPoint, SiteSums, dense_hook_points
from store.digest import json_digest

LIBRARIES = 3 << 28  # bytes that Python, torch and transformers take, with compiled kernels and buffers: 0.8 GB


@dataclass(frozen=True)
class PassMemory:
    """Upper estimates in bytes: of the model, of a pass of the whole model, and of one with a layer and its sums."""

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
    """Raise CalibrationError if a model is too large to sample text: token by token, with all of it in memory."""
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


Stream = Float[Tensor, "B S H"]


def run_module(
    module: Callable[[Stream], Stream],
    sums: SiteSums,
    points: Sequence[HookPoint],
    batches: Batches,
    before: Callable[[int, Int64[Tensor, "B S"]], Stream],
    after: Callable[[int, Stream], None],
    advance: Advance,
) -> None:
    """Run a layer, or the norm before the head, over all batches, and add up the sites within it.

    Args:
        points: the hook points of its sites; others may be among them.
        before: returns a batch's stream before the module, given the batch's first window and its tokens.
        after: takes a batch's stream after the module, given the batch's first window.

    Raises CalibrationError if an activation is NaN or infinite.
    """
    with torch.no_grad(), sums.attached(points):
        for first, ids, keep in batches.after(0):
            sums.next_batch(first, keep)
            after(first, module(before(first, ids)))
            advance(1)


def mlp_statistics(
    checkpoint: Checkpoint, model: Any, calibration: Calibration, batch_size: int, progress: Progress
) -> Iterator[Statistics]:
    """Yield the statistics of each layer's MLP inputs, on the CPU: to the bit those of `take_statistics`.

    Besides the model, N · S · H activations and the sums of one layer are in memory. Between two layers the model is
    whole (CalibrationError: an activation is NaN or infinite).
    """
    calls, batches = LayerCalls(model, checkpoint.family.layers), Batches(calibration, batch_size)
    counting = Counting.of(checkpoint, "router", model.device)
    layers: Any = model.get_submodule(checkpoint.family.layers)
    waiting: dict[int, Stream] = {}

    def before(first: int, ids: Int64[Tensor, "B S"]) -> Stream:
        return waiting[first] if first in waiting else calls.embed(ids)

    with progress("collecting", len(layers), "layer") as advance:
        for number, (layer, mlp) in enumerate(zip(layers, checkpoint.family.mlps(model), strict=True)):
            sums, points = SiteSums(counting, [(MLP_INPUT, number)]), [HookPoint(MLP_INPUT, number, mlp)]
            run = functools.partial(calls.run, number, layer)
            run_module(run, sums, points, batches, before, waiting.__setitem__, lambda amount: None)
            yield sums.pop((MLP_INPUT, number))
            advance(1)


_HEAD = "head"


def take_statistics_by_layer(
    checkpoint: Checkpoint,
    weights: str,
    calibration: Calibration,
    settings: PassSettings,
    *,
    partial: Path | None = None,
    progress: Progress,
) -> Collected:
    """Return the statistics of `calibration` in the checkpoint's own model, with one layer of it in memory at a time.

    They stay in deleted files, which last as long as the result: each layer is read when it is asked for.

    Args:
        partial: a folder for the files of a running pass; the same pass, started again, resumes after the last layer
            that it finished. None for the system's temporary folder, and no resuming.

    Raises:
        CalibrationError, CheckpointError: an activation is NaN or infinite; a tensor cannot be read.
        StorageError: `partial` cannot be written, or was deleted meanwhile.
    """
    computed = computed_by(checkpoint, settings)
    report_dtype(settings.dtype, checkpoint.dtype, settings.device, progress)
    header = Collected(weights, {}, calibration.digest, calibration.label, computed)
    layers = _CheckpointLayers(checkpoint, torch_dtype(computed["dtype"]), torch.device(device_name(settings.device)))
    counting = Counting.of(checkpoint, settings.sites, layers.device)
    key = json_digest([weights, calibration.digest, computed, "layer by layer"])
    with resumable_folder(partial, key, [weights]) as folder:
        pass_ = _LayerPass(layers, counting, Batches(calibration, settings.batch_size), header, folder)
        try:
            finished = pass_.run(progress)
        except FileNotFoundError as error:
            raise StorageError(
                f"{folder} was deleted while statistics were collected there",
                "if its expert was not opted out meanwhile, repeat the command",
            ) from error
    sites: dict[str, LazyLayers] = {}
    for site in counting.scales:
        of = counting.same.get(site, site)
        parts = [lazy_layers(part.sites[of]) for part in finished if of in part.sites]
        sites[site] = LazyLayers(tuple(item for part in parts for item in part))
    return replace(header, sites=sites)


class _CheckpointLayers(Layers):
    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(checkpoint.family, checkpoint.config, device, dtype)
        self.checkpoint, self.dtype = checkpoint, dtype

    def embed(self, ids: Int64[Tensor, "B S"]) -> Float[Tensor, "B S H"]:
        """Return the stream before the first layer, by the rows of the embedding that the ids use."""
        used, numbers = ids.unique(return_inverse=True)
        name = self.checkpoint.family.embedding
        rows = to_tensor(self.checkpoint.sample(name, used.numpy()), self.checkpoint.dtype_of(name))
        return self.embedded(rows, numbers)

    def tensor(self, name: str) -> Tensor:
        """Return one tensor in the dtype of the computation, never whole in two dtypes at once."""
        source, start = self.checkpoint.source(name), 0
        found = torch.empty(source.shape, dtype=self.dtype)
        for block in source.blocks():
            found[start : start + len(block)] = to_tensor(block, source.dtype)
            start += len(block)
        return found


@dataclass(frozen=True)
class _LayerPass:
    """A pass layer by layer, with its files.

    Attributes:
        folder: of the files: `<layer>.safetensors` and `head.safetensors` with finished sums, and the streams before
            layers of even and of odd numbers.
    """

    layers: _CheckpointLayers
    counting: Counting
    batches: Batches
    header: Collected  # what the file of every layer must have
    folder: Path

    def run(self, progress: Progress) -> list[Collected]:
        """Run all layers that are not finished, and return the sums of each, and last those of the head's input."""
        count, points = self._count, dense_hook_points(self.layers.checkpoint, self.layers.model)
        head = HEAD_INPUT in self.counting.scales
        finished = self._finished()
        if finished:
            remark(progress, f"resuming an interrupted pass: {len(finished)} of {count} layers are counted already")
            self.layers.embed(next(self.batches.after(0))[1])  # for the layers' other arguments
        with progress("collecting", (count + head) * len(self.batches), "batch") as advance:
            advance(len(finished) * len(self.batches))
            for number in range(len(finished), count + head):
                sums = self._sums_of(number, points, advance)
                finished.append(self._save(_HEAD if number == count else str(number), sums))
        return finished

    def _sums_of(self, number: int, points: Sequence[HookPoint], advance: Advance) -> SiteSums:
        """Run a layer over all batches, or with number L the norm before the head, and return the sums of its sites."""
        is_head, layers = number == self._count, self.layers
        own = [one for one in self.counting.site_layers if one[1] == number and one[0] != HEAD_INPUT]
        sums = SiteSums(self.counting, [(HEAD_INPUT, 0)] if is_head else own)
        before, after = self._stream(number), self._stream(number + 1)

        def stream_before(first: int, ids: Int64[Tensor, "B S"]) -> Stream:
            if number == 0:
                return layers.embed(ids)
            return before.read(slice(first, first + self.batches.size)).to(layers.device)

        write = (lambda first, stream: None) if is_head else after.write  # no stream is needed after the head's norm
        path = layers.norm if is_head else f"{layers.checkpoint.family.layers}.{number}"
        with layers.resident(path, layers.tensor) as module:
            call = module if is_head else functools.partial(layers.run, number, module)
            run_module(call, sums, points, self.batches, stream_before, write, advance)
        if not is_head:
            after.flush()
        return sums

    @property
    def _count(self) -> int:
        return self.layers.checkpoint.architecture.num_hidden_layers

    def _stream(self, number: int) -> RowFile:
        """Return the streams before a layer; each row is a window's (S, H)."""
        shape = (self.batches.calibration.ids.shape[1], self.layers.checkpoint.architecture.hidden_size)
        return RowFile(self.folder / f"stream.{number % 2}", shape, self.layers.dtype)

    def _save(self, name: str, sums: SiteSums) -> Collected:
        """Write the sums of a module to a file, release them, and return the file opened."""
        path = self.folder / f"{name}.safetensors"
        parts = ((one[0], 0, sums.pop(one)) for one in list(sums.sums))
        statistics_file.save(path, self.header, parts)
        return_freed_memory()
        return statistics_file.load(path)

    def _finished(self) -> list[Collected]:
        """Return the sums of the layers that an interrupted run has finished; files that do not fit are deleted."""
        finished: list[Collected] = []
        files = set(self.folder.glob("*.safetensors"))
        while (path := self.folder / f"{len(finished)}.safetensors") in files:
            try:
                state = statistics_file.load(path)
            except CheckpointError:
                break  # damaged
            if replace(state, sites={}) != self.header:
                break
            finished.append(state)
            files.remove(path)
        windows = len(self.batches) * self.batches.size
        # The streams are those after the last layer that was finished: without its file, all begins again.
        if files - {self.folder / f"{_HEAD}.safetensors"} or (finished and len(self._stream(len(finished))) != windows):
            for path in self.folder.glob("*.safetensors"):
                path.unlink()
            return []
        return finished
