"""The loop of a training of weights: that of `transformers.Trainer`, with our progress, and states that are no pickles.

Shapes: S tokens of a window.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import PrinterCallback, TrainerCallback, TrainingArguments
from transformers import Trainer as TransformersTrainer

from registry.errors import InvalidInputError
from registry.io.dtypes import AUTO
from registry.progress import Advance, Progress
from registry.runtime.loading import device_name
from registry.runtime.upcast import is_fast
from registry.training import sharding
from registry.training import state as states
from registry.training.processes import Processes
from registry.training.settings import WeightTraining
from registry.training.state import State
from registry.training.training_windows import IGNORED, Windows

BETAS = (0.9, 0.95)
"""Decay rates of AdamW's moments."""
POINTS = 2000
"""Most numbers of a stored loss curve."""


@dataclass(frozen=True)
class Losses:
    """Language-model losses of a training, in nats per token.

    `steps` are of every step, before its change, with the penalty if there is one; the others are on held-out windows.
    """

    steps: tuple[float, ...]
    before: float
    after: float


@dataclass
class WeightTrainer:
    """The training of some weights of a model.

    Attributes:
        parameters: the weights that train.
        bfloat16: multiply in bfloat16; weights stay in float32.
        penalty: called after each pass of a batch in training; a scalar that is added to its loss.
        processes: the processes that train together; each passes its share of a batch's windows.
        decays: tells whether weight decay applies to a weight; by default to matrices.
        rate_of: returns the highest learning rate of a weight; by default that of the settings.
        after_step: called after a step of AdamW with its number, from 1, to change what no gradient changes.
    """

    model: Any
    parameters: Sequence[torch.nn.Parameter]
    windows: Windows
    settings: WeightTraining
    bfloat16: bool
    penalty: Callable[[], Tensor] | None = None
    processes: Processes = field(default_factory=Processes)
    decays: Callable[[torch.nn.Parameter], bool] = lambda part: part.ndim > 1
    rate_of: Callable[[torch.nn.Parameter], float] | None = None
    after_step: Callable[[int], None] | None = None
    optimiser: torch.optim.AdamW = field(init=False)

    def __post_init__(self) -> None:
        settings = self.settings
        groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
        for decays in (True, False):
            for part in self.parameters:
                if self.decays(part) == decays:
                    decay = settings.weight_decay if decays else 0.0
                    rate = settings.lr if self.rate_of is None else self.rate_of(part)
                    groups.setdefault((decay, rate), []).append(part)
        self.optimiser = torch.optim.AdamW(
            [
                {"params": parts, "weight_decay": decay, "lr": rate, "initial_lr": rate}
                for (decay, rate), parts in groups.items()
            ],
            lr=settings.lr,
            betas=BETAS,
        )

    def train(self, state_path: Path | None, scratch: Path, progress: Progress) -> Losses:
        """Train, from the state at `state_path` if there is one, and return the losses; `scratch` is for the library.

        Raises:
            InvalidInputError: a loss or a weight is NaN or infinite; the last saved state stays.
        """
        settings = self.settings
        current = states.load(state_path, self.parameters, settings.steps)
        if (done := self.processes.most(0 if current is None else current.step)) == 0:
            current = State(0, self.loss(), (), (), ())
        else:
            current = current or State(done, math.nan, (), (), ())  # of a worker, which reports no losses
            current.restore(self.parameters, self.optimiser, self.processes)
            current.remark_on(progress, settings.steps)
        losses = list(current.losses)
        if current.step < settings.steps:
            with progress("training", settings.steps, "step") as advance:
                advance(current.step)
                self._run(current.step, _Steps(self, current, state_path, advance, progress, losses), scratch)
        self.check_finite("after the last step")
        return Losses(tuple(losses), current.loss, self.loss())

    def loss(self) -> float:
        """Return the loss (nats per token) on held-out windows, or raise InvalidInputError if it is not finite."""
        device = next(iter(self.model.parameters())).device
        self.model.eval()
        with torch.autocast(device.type, torch.bfloat16, enabled=self.bfloat16):
            loss = self.windows.loss(self.model, self._share)
        self.model.train()
        return _finite(loss, "on held-out windows")

    def check_finite(self, when: str) -> None:
        """Raise InvalidInputError unless all weights that train are finite."""
        parts = (sharding.local(part) for part in self.parameters)
        if self.processes.most(int(not all(bool(torch.isfinite(part).all()) for part in parts))):
            _finite(math.nan, when)

    @property
    def _share(self) -> int:
        """Number of a batch's windows that one process passes."""
        return self.settings.batch_size // self.processes.count

    def _run(self, start: int, steps: "_Steps", scratch: Path) -> None:
        settings = self.settings
        arguments = TrainingArguments(
            output_dir=str(scratch),
            max_steps=settings.steps - start,
            per_device_train_batch_size=self._share,
            gradient_accumulation_steps=settings.accumulate,
            max_grad_norm=1.0,
            bf16=self.bfloat16,
            use_cpu=next(iter(self.model.parameters())).device.type == "cpu",
            seed=settings.seed,
            logging_strategy="steps",
            logging_steps=1,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            ddp_find_unused_parameters=False,  # experts without a token have a gradient too: 0
        )
        arguments._n_gpu = min(1, arguments.n_gpu)  # several GPUs without a launcher would be threads of one process
        schedule = torch.optim.lr_scheduler.LambdaLR(self.optimiser, settings.rate, last_epoch=start - 1)
        rows = _Rows(self.windows, settings.windows, start * settings.batch_size * settings.accumulate)
        trainer = _InOrder(
            self.model, arguments, train_dataset=rows, callbacks=[steps], optimizers=(self.optimiser, schedule)
        )
        trainer.penalty = self.penalty
        if settings.fsdp:  # the model is sharded: it gets autocast as every other, and no wrapper for equal copies
            prepare: Any = trainer.accelerator.prepare_model
            trainer.accelerator.prepare_model = partial(prepare, evaluation_mode=True)
        trainer.remove_callback(PrinterCallback)
        trainer.train()


class _Rows(Dataset[dict[str, Tensor]]):
    """The windows of a training in their order, of which the first `done` were used before."""

    def __init__(self, windows: Windows, count: int, done: int) -> None:
        self._windows, self._done = windows, done
        self._numbers = windows.used(count)[done:]

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids, keep = self._windows.take(self._numbers[index : index + 1])
        labels = ids[0].masked_fill(~keep[0], IGNORED)  # (S,)
        return {"input_ids": ids[0], "labels": labels} | self._windows.inputs(self._done + index)


class _InOrder(TransformersTrainer):
    """A trainer that takes the windows in their order, and adds a penalty to the loss if there is one."""

    penalty: Callable[[], Tensor] | None = None

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None, **others: Any
    ) -> Any:
        """Return the loss of a batch; one that counts the tokens of all batches of a step is not divided by them."""
        found: Any = super().compute_loss(model, inputs, return_outputs, num_items_in_batch, **others)
        if self.penalty is None:
            return found
        loss, outputs = found if return_outputs else (found, None)
        is_share = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        loss = loss + self.penalty() / (self.args.gradient_accumulation_steps if is_share else 1)
        return (loss, outputs) if return_outputs else loss

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the batches."""
        rows: Any = self.train_dataset
        loader: Any = DataLoader(rows, batch_size=self.args.per_device_train_batch_size, shuffle=False)
        prepared: DataLoader[Any] = self.accelerator.prepare(loader)
        return prepared


@dataclass(eq=False)
class _Steps(TrainerCallback):
    """Progress, the loss curve and saved states of a training that begins from a state, step by step."""

    trainer: WeightTrainer
    start: State
    path: Path | None
    advance: Advance
    progress: Progress
    losses: list[float]
    saved_at: float = field(default_factory=time.monotonic)

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Seed what a model draws in a step, so that a training that goes on draws the same; each process its own."""
        own = self.trainer.processes.rank << 32
        torch.manual_seed(self.trainer.settings.seed + self.start.step + state.global_step + own)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Note the loss of a step, which must be finite, and save the state from time to time."""
        if logs is None or "loss" not in logs:  # the summary at the end
            return
        step, trainer = self.start.step + state.global_step, self.trainer
        if trainer.after_step is not None:
            trainer.after_step(step)
        self.losses.append(_finite(float(logs["loss"]), f"in step {step}"))
        self.advance(1)
        states.remark_on_loss(self.progress, step, trainer.settings.steps, self.losses)
        is_due = self.path is not None and time.monotonic() - self.saved_at >= states.SAVE_SECONDS
        if trainer.processes.most(int(is_due)):
            trainer.check_finite(f"after step {step}")
            current = State.of(step, self.start.loss, trainer.parameters, trainer.optimiser, self.losses)
            if self.path is not None:
                states.save(self.path, current)
            elif trainer.settings.fsdp:
                sharding.take_part(states.streams_of(current))
            self.saved_at = time.monotonic()


def device_and_dtype(settings: WeightTraining) -> tuple[str, str]:
    """Return the device of a training, and the dtype of its products."""
    device = device_name(settings.device)
    fast = "bfloat16" if is_fast("bfloat16", device) else "float32"
    return device, fast if settings.dtype == AUTO else settings.dtype


def curve(losses: Losses) -> dict[str, Any]:
    """Return losses as a JSON document; of a long training the means of as many steps each are stored."""
    every = -(-len(losses.steps) // POINTS)
    groups = [losses.steps[start : start + every] for start in range(0, len(losses.steps), max(1, every))]
    means = [sum(group) / len(group) for group in groups]
    return {"held_out": {"before": losses.before, "after": losses.after}, "every": every, "loss": means}


def training_document(inputs: Mapping[str, Any], losses: Losses) -> dict[str, Any]:
    """Return the content of `expert_training.json`."""
    return {"format": 1, "training": dict(inputs)} | curve(losses)


def _finite(loss: float, where: str) -> float:
    if not math.isfinite(loss):
        raise InvalidInputError(f"the loss {where} is {loss}", "give a smaller --lr, or compute with --dtype float32")
    return loss
