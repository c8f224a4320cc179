"""Training of weights of a model by AdamW on the language-model loss, on accelerate: processes and mixed precision.

Shapes: B windows of S tokens that one process passes at once.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.loss.loss_utils import ForCausalLMLoss

from registry.io.dtypes import AUTO
from registry.progress import Progress
from registry.runtime.loading import device_name
from registry.runtime.upcast import is_fast
from registry.training.launcher import Processes
from registry.training.loop import Losses, Objective, finite, train
from registry.training.settings import WeightTraining
from registry.training.training_windows import IGNORED, Windows


@dataclass
class WeightTrainer(Objective):
    """The training of some weights of a model.

    Attributes:
        parts: the weights that train.
        bfloat16: multiply in bfloat16; weights stay in float32.
        penalty: called after each pass of a batch in training; a scalar that is added to its loss.
        processes: the processes that train together; each passes its share of a batch's windows.
        decays: tells whether weight decay applies to a weight; by default to matrices.
        rate_of: returns the highest learning rate of a weight; by default that of the settings.
        ascend: called after a step of AdamW with its number, from 1, to change what no gradient changes.
    """

    model: Any
    parts: Sequence[Tensor]
    windows: Windows
    settings: WeightTraining
    bfloat16: bool
    penalty: Callable[[], Tensor] | None = None
    processes: Processes = field(default_factory=Processes)
    decays: Callable[[Any], bool] = lambda part: part.ndim > 1
    rate_of: Callable[[Any], float] | None = None
    ascend: Callable[[int], None] = lambda step: None
    optimiser: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        groups: dict[tuple[float, float], list[Tensor]] = {}
        for decays in (True, False):
            for part in self.parts:
                if self.decays(part) == decays:
                    decay = settings.weight_decay if decays else 0.0
                    rate = settings.lr if self.rate_of is None else self.rate_of(part)
                    groups.setdefault((decay, rate), []).append(part)
        described = [{"params": own, "weight_decay": decay, "lr": rate} for (decay, rate), own in groups.items()]
        self.optimiser = torch.optim.AdamW(described, betas=settings.betas)
        self._numbers = self.windows.used(settings.windows)
        self._device = next(iter(self.model.parameters())).device
        self._share = settings.batch_size // self.processes.count  # windows of a batch that one process passes

    def train(self, state_path: Path | None, progress: Progress) -> Losses:
        """Train, from the state at `state_path` if there is one, and return the losses (errors as `loop.train`)."""
        from accelerate import Accelerator, DistributedDataParallelKwargs
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)  # of an earlier training in this process
        copies = DistributedDataParallelKwargs(find_unused_parameters=False)  # an expert without a token has gradient 0
        precision = "bf16" if self.bfloat16 else "no"
        self._accelerator = Accelerator(
            mixed_precision=precision, cpu=self._device.type == "cpu", kwargs_handlers=[copies]
        )
        # A sharded model gets autocast as every other, and no wrapper for equal copies.
        self._passed: Any = self._accelerator.prepare_model(self.model, evaluation_mode=self.settings.fsdp)
        self._passed.train()
        losses, before = train(self, state_path, progress)
        return Losses(losses, before, self.loss())

    def loss(self) -> float:
        """Return the loss (nats per token) on held-out windows, or raise InvalidInputError if it is not finite."""
        self.model.eval()
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self.bfloat16):
            loss = self.windows.loss(self.model, self._share)
        self.model.train()
        return finite(loss, "on held-out windows")

    def gradient(self, step: int) -> float:
        """Give the weights their gradients of a step, clipped together, and return its loss (errors as `loop.train`).

        What a model draws depends on the step and the process alone, so that a training that goes on draws the same.
        """
        settings, processes, last = self.settings, self.processes, self.settings.accumulate - 1
        device = self._device
        torch.manual_seed(settings.seed + step + (processes.rank << 32))
        size, others = settings.batch_size * settings.accumulate, self.windows.inputs(step)
        batches = self._numbers[step * size : (step + 1) * size].split(settings.batch_size)
        counted = torch.tensor(float(sum(int(keep[:, 1:].sum()) for _, keep in map(self.windows.take, batches))))
        total = torch.zeros((), device=device)
        for number, batch in enumerate(batches):
            own = batch.split(self._share)[processes.rank]
            with nullcontext() if number == last else self._accelerator.no_sync(self._passed):
                ids, keep = self.windows.take(own)
                more = {name: value.expand(len(own), *value.shape).to(device) for name, value in others.items()}
                logits = self._passed(input_ids=ids.to(device), use_cache=False, **more).logits  # (B, S, V)
                labels = ids.masked_fill(~keep, IGNORED)
                loss: Any = ForCausalLMLoss(logits, labels, logits.shape[-1], num_items_in_batch=counted)
                loss = loss * processes.count  # whose gradients are averaged
                if self.penalty is not None:
                    loss = loss + self.penalty() / len(batches)
                self._accelerator.backward(loss)
            total += loss.detach()
        self._accelerator.clip_grad_norm_(self._passed.parameters(), settings.clip)
        if processes.count > 1:
            torch.distributed.all_reduce(total)
        return finite(float(total / processes.count), f"in step {step + 1}")

    def after_step(self, step: int) -> None:
        """Change what no gradient changes."""
        self.ascend(step)


def device_and_dtype(settings: WeightTraining) -> tuple[str, str]:
    """Return the device of a training, and the dtype of its products."""
    device = device_name(settings.device)
    fast = "bfloat16" if is_fast("bfloat16", device) else "float32"
    return device, fast if settings.dtype == AUTO else settings.dtype
