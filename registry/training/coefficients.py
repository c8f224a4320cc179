"""Fit of the coefficients of task vectors to text, by the gradient of the language-model loss (Soup-of-Experts, §2.7).

    α = argmin L(θ(α)),  θ(α) = θ_0 + Σ_e α_e (θ_e − θ_0)        Soup-of-Experts (Ablin et al. 2025), eq. 2; ψ in §2.7
    ∂L/∂α_e = ⟨∂L/∂θ, θ_e − θ_0⟩                                 the chain rule of that sum

Adam changes the E coefficients alone, from 1/E each; no weight is trained. They are float64, and the weights that the
gradient is taken at are computed from them again after every step. θ_0 and θ_e are read from the store, tensor by
tensor and member by member. In memory are the model, the gradient of one tensor, the base model's tensor and some rows
of one member's: none of it grows with the number of members.

Shapes: E members, R rows of a tensor, B windows of S tokens.
"""

import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor, nn

from registry.calibration import Corpus, random_places
from registry.composition.compose import plan_composition, write_plan
from registry.composition.plan import Plan
from registry.composition.recipe.recipe import CoefficientFit, Recipe, fitted_members
from registry.composition.stored import pass_over
from registry.errors import CalibrationError, CheckpointError, InvalidInputError
from registry.io.torch_blocks import torch_dtype
from registry.io.work_dirs import resumable, working_folder
from registry.maths.trunk.combination import Pass, tile_rows
from registry.member import Member
from registry.names.reference import require_list
from registry.progress import Progress
from registry.runtime.loading import device_name, load_model, load_tokenizer
from registry.training.loop import Objective, train
from registry.training.settings import FitSettings
from registry.training.training_windows import Windows, check_vocabulary, make_windows, next_token_loss, shortened
from registry.workspace import PathLike, Workspace
from store.digest import json_digest

TASK_ARITHMETIC = "task-arithmetic"
LEAST_WINDOWS = 10
"""Windows from which on one is held out."""


@dataclass(frozen=True)
class Fitted:
    """The result of a fit: its recipe, and the loss of every step in nats per token, before its change."""

    recipe: Recipe
    losses: tuple[float, ...]

    @property
    def coefficients(self) -> Mapping[str, float]:
        """The fitted coefficients, by member."""
        coefficients: Mapping[str, float] = self.recipe.coefficients
        return coefficients

    @property
    def record(self) -> CoefficientFit:
        """The record of the fit, with the losses before and after."""
        assert self.recipe.fit is not None
        return self.recipe.fit


def fit_coefficients(
    workspace: Workspace,
    experts: Sequence[str],
    files: Sequence[PathLike],
    recipe: Recipe | None = None,
    settings: FitSettings | None = None,
    *,
    base: str | None = None,
) -> Fitted:
    """Fit the coefficients of a dense composition to text (arguments and errors as `Registry.fit`)."""
    settings, paths = settings or FitSettings(), [Path(file) for file in require_list(files, "files")]
    recipe = _without_coefficients(recipe or Recipe(to="dense", trunk=TASK_ARITHMETIC))
    if not paths:
        raise InvalidInputError("there is no text to fit the coefficients to", "name a file: --fit FILE")
    Corpus(paths, None)  # refuses what is no file before a weight is read
    names = [workspace.resolve(ref).name for ref in require_list(experts, "experts")]
    equal = dict.fromkeys(names, 1.0 / max(1, len(names)))
    plan = plan_composition(workspace, experts, recipe.replace(coefficients=equal), base=base)
    versions, progress = plan.versions, workspace.progress
    digests = [version.digest for version in versions]
    with workspace.reading(*versions), working_folder(workspace.home.work, digests) as work:
        folder = work / "equal"
        write_plan(workspace, plan, folder)
        settings = replace(settings, seq_len=shortened(settings.seq_len, folder, progress))
        windows = _windows(paths, load_tokenizer(folder), settings, plan.lead.architecture.vocab_size)
        model = load_model(folder, "float32", settings.device)
        shutil.rmtree(folder)
        kind = torch.device(device_name(settings.device)).type
        inputs = [plan.digest, vars(settings) | {"device": kind}, windows.all.digest]
        fit = _Fit(plan, CombinedWeights(plan, model), model, windows, settings)
        with resumable(_states_in(workspace.home.partial), json_digest(["fit", *inputs]), digests) as state_path:
            losses, before = train(fit, state_path, progress)
            after = fit.loss()
    assert plan.base is not None
    record = CoefficientFit(
        members=fitted_members(((one.name, one.version.digest) for one in plan.members), plan.base.version.digest),
        data=windows.all.digest,
        tokens=windows.all.tokens,
        steps=settings.steps,
        batch_size=settings.batch_size,
        seq_len=settings.seq_len,
        lr=settings.lr,
        seed=settings.seed,
        device=kind,
        before=before,
        after=after,
    )
    coefficients = dict(zip(plan.names, fit.parts[0].tolist(), strict=True))
    return Fitted(recipe.replace(coefficients=coefficients, fit=record), losses)


class CombinedWeights:
    """The weights of a model by coefficients of the members' task vectors.

    The model is the plan's, one dense model by task arithmetic, loaded in float32 with any coefficients. Rows that the
    base model lacks depend on no coefficient, and stay as they were loaded.

    Raises:
        CheckpointError: the model has other weights than the composition.
    """

    def __init__(self, plan: Plan, model: Any) -> None:
        assert plan.base is not None
        self._members, self._base, self._model = plan.members, plan.base, model
        stored = {tensor.name for tensor in plan.tensors}
        head = model.get_output_embeddings()
        # transformers has another name for the head of some families than their files.
        self._parameters: dict[str, nn.Parameter] = {
            plan.lead.family.head if name not in stored and part is head.weight else name: part
            for name, part in model.named_parameters()
        }
        if other := self._parameters.keys() ^ stored:
            raise CheckpointError(
                f"transformers gives the model {plan.model_type} other weights than its files, such as {min(other)}, "
                "so no coefficients can be fitted",
                "give coefficients: --coefficients NAME=X,…",
            )
        model.requires_grad_(True)
        self._passes: dict[tuple[str, str], Pass] = {}
        self._current: list[float] = []

    @torch.no_grad()
    def set(self, coefficients: Sequence[float]) -> None:
        """Give the model the weights θ(α), from the stored arrays in float32, unless it has them already."""
        if self._current == (given := list(coefficients)):
            return
        self._current = []
        for name, part in self._parameters.items():
            base = self._base_tensor(name)
            part.data[: len(base)] = base
            for member, coefficient in zip(self._members, coefficients, strict=True):
                for start, difference in self._task_vector(member, name, base):
                    part.data[start : start + len(difference)].add_(difference, alpha=coefficient)
        self._current = given

    def gradient(self, ids: Int64[Tensor, "B S"], keep: Bool[Tensor, "B S"]) -> tuple[float, Float64[Tensor, "E"]]:
        """Return the mean loss of a batch in nats per token, and its gradient by the coefficients."""
        products = torch.zeros(len(self._members), dtype=torch.float64, device=self._model.device)
        handles = [
            part.register_post_accumulate_grad_hook(partial(self._multiply, name, products))
            for name, part in self._parameters.items()
        ]
        try:
            loss = next_token_loss(self._model, ids, keep, "mean")
            loss.backward()
        finally:
            for handle in handles:
                handle.remove()
            self._model.zero_grad(set_to_none=True)
        return float(loss.detach()), products.cpu()

    @torch.no_grad()
    def _multiply(self, name: str, products: Float64[Tensor, "E"], part: nn.Parameter) -> None:
        """Add the products of a tensor's gradient and its task vectors, and drop the gradient."""
        gradient, part.grad = part.grad, None
        assert gradient is not None
        base = self._base_tensor(name)
        for number, member in enumerate(self._members):
            for start, difference in self._task_vector(member, name, base):
                rows = gradient[start : start + len(difference)]
                products[number] += rows.mul(difference).sum(dtype=torch.float64)

    def _base_tensor(self, name: str) -> Tensor:
        """Return a tensor of the base model, (R, …) in the dtype in which it is stored."""
        link = self._base.weight(name)
        whole = torch.empty(link.shape, dtype=torch_dtype(link.dtype), device=self._model.device)
        start = 0
        for block in self._blocks(self._base, name):
            whole[start : start + len(block)] = block
            start += len(block)
        return whole

    def _task_vector(self, member: Member, name: str, base: Tensor) -> Iterator[tuple[int, Float32[Tensor, "r ..."]]]:
        """Yield the first number and the task vector θ_e − θ_0 of some rows at a time, those that both models have."""
        start = 0
        for block in self._blocks(member, name):
            own = base[start : start + len(block)].float()
            if len(own):
                yield start, block[: len(own)].to(base.device).float().sub_(own)
            start += len(block)

    def _blocks(self, member: Member, name: str) -> Iterator[Tensor]:
        """Yield a member's tensor, some rows at a time; checked after the last of them."""
        key = member.version.digest, name
        if key not in self._passes:
            self._passes[key] = pass_over(member, name, tile_rows(math.prod(member.weight(name).shape[1:])))
        return self._passes[key]()


class _Fit(Objective):
    label, goes_on = "fitting coefficients", "an interrupted fit goes on"
    settings: FitSettings

    def __init__(
        self, plan: Plan, weights: CombinedWeights, model: Any, windows: Windows, settings: FitSettings
    ) -> None:
        self._names, self._weights, self._model = plan.names, weights, model
        self._windows, self.settings = windows, settings
        self._numbers = windows.used(settings.steps * settings.batch_size).split(settings.batch_size)
        self._coefficients = torch.full((len(plan.names),), 1 / len(plan.names), dtype=torch.float64)
        self.parts = [self._coefficients]
        self.optimiser = torch.optim.Adam(self.parts, lr=settings.lr)
        self._good: Tensor | None = None

    def loss(self) -> float:
        """Return the loss on held-out windows in nats per token, or raise InvalidInputError if it is not finite."""
        self._weights.set(self._coefficients.tolist())
        loss = self._windows.loss(self._model, self.settings.batch_size)
        if not math.isfinite(loss):
            raise self._not_finite(f"the loss is {loss} on held-out windows")
        return loss

    def gradient(self, step: int) -> float:
        """Give the coefficients the gradient of a step, and return its loss."""
        before = self._coefficients.clone()
        self._weights.set(before.tolist())
        loss, gradient = self._weights.gradient(*self._windows.take(self._numbers[step]))
        if not (math.isfinite(loss) and bool(torch.isfinite(gradient).all())):
            what = "its gradient is not finite" if math.isfinite(loss) else f"the loss is {loss}"
            raise self._not_finite(f"{what} in step {step + 1}")
        self._good, self._coefficients.grad = before, gradient
        return loss

    def remark_on_loss(self, progress: Progress, losses: Sequence[float]) -> None:
        """Say nothing: the losses are few, and of one batch each."""

    def _not_finite(self, what: str) -> InvalidInputError:
        """Return the error of a loss that is not finite, with the last coefficients of which it was."""
        smaller = f"fit with a smaller rate than {self.settings.lr:g}: --fit-lr {self.settings.lr / 10:g}"
        if self._good is None:
            return InvalidInputError(f"{what}, with equal coefficients", "check the experts: reg evaluate, reg verify")
        values = ",".join(f"{name}={value!r}" for name, value in zip(self._names, self._good.tolist(), strict=True))
        return InvalidInputError(
            f"{what}, and the fit has stopped; the last coefficients of a finite loss are {values}",
            f"{smaller}; or take those: reg compose … --coefficients {values}",
        )


def _without_coefficients(recipe: Recipe) -> Recipe:
    """Return a recipe to fit coefficients of, or raise InvalidInputError where they have no part in it."""
    if (recipe.to, recipe.trunk) != ("dense", TASK_ARITHMETIC):
        raise InvalidInputError(
            f"coefficients are fitted for one dense model of task vectors, and the recipe makes --to {recipe.to} "
            f"--trunk {recipe.trunk}",
            f"choose --to dense --trunk {TASK_ARITHMETIC}",
        )
    if recipe.coefficients:
        raise InvalidInputError(
            "there are coefficients already, and a fit makes them itself", "drop --coefficients, or --fit"
        )
    return recipe


def _windows(paths: Sequence[Path], tokenizer: Any, settings: FitSettings, vocabulary: int) -> Windows:
    """Return the windows of the text, some held out, or raise CalibrationError if there is too little."""
    each = -(-settings.tokens // len(paths))
    size, seed = settings.seq_len, settings.seed
    corpora = [Corpus([path], tokenizer) for path in paths]
    if empty := next((corpus.label for corpus in corpora if next(iter(corpus), None) is None), None):
        raise CalibrationError(f"{empty} holds no text to fit coefficients to", "give --fit a file of documents")
    texts = [random_places(corpus, tokenizer, tokens=each, seq_len=size, seed=seed) for corpus in corpora]
    windows = make_windows(texts, size, seed)
    if int((windows.all.lengths > 1).sum()) < LEAST_WINDOWS:
        raise CalibrationError(
            f"{windows.all.tokens:,} tokens of {windows.all.label} are read, and a fit needs {LEAST_WINDOWS} windows "
            f"of {size}, of which one is held out",
            "give more text with --fit, or more of it: --fit-tokens",
        )
    hint = "register the experts with the tokenizer that they were trained with"
    check_vocabulary(windows.all, vocabulary, windows.all.label, hint)
    return windows


def _states_in(above: Path) -> Path | None:
    """Return the folder of states, None if the home cannot be written."""
    try:
        above.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return above if os.access(above, os.W_OK) else None
