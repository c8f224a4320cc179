"""Windows of a soup's training: each step's come from a random mixture of the domains (algorithm 2).

Shapes: k domains, T steps, B windows of a step or a batch, N windows, M held-out ones, H hidden size.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from registry.calibration import Calibration, Corpus, random_places
from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError
from registry.maths.soup_weights import draw_domain_weights, draw_domains
from registry.methods.soup.settings import SoupTraining
from registry.progress import Progress, remark
from registry.runtime.layerwise import seen_inputs
from registry.training.training_windows import HELD_OUT, Windows, check_vocabulary, make_windows

EMBEDDED = 64
"""Most windows of a domain whose mean is its centroid."""


@dataclass(frozen=True)
class SoupWindows(Windows):
    """Windows of all domains; `training` has the window of every place in all steps, in order.

    Attributes:
        domain_weights: h of every step.
        held_out_domains: the domain of every held-out window.
        starts: the number of each domain's first window, and at the end the number of all.
    """

    domain_weights: Float64[Tensor, "T k"]
    held_out_domains: Int64[Tensor, "M"]
    starts: tuple[int, ...]

    def used(self, count: int) -> Int64[Tensor, "count"]:
        """Return the numbers of the first windows of a training, which are drawn already."""
        return self.training[:count]

    def inputs(self, step: int) -> dict[str, Tensor]:
        """Return the domain weights of a step."""
        return {"domain_weights": self.domain_weights[step].float()}

    def held_out_batches(self, size: int) -> Iterator[tuple[Int64[Tensor, "B"], dict[str, Tensor]]]:
        """Yield the numbers of held-out windows of one domain after the other, with all weight on the domain."""
        for domain, alone in enumerate(torch.eye(self.domain_weights.shape[1])):
            for numbers in self.held_out[self.held_out_domains == domain].split(size):
                yield numbers, {"domain_weights": alone.expand(len(numbers), -1)}


def read_soup_windows(
    domains: Mapping[str, Corpus],
    checkpoint: Checkpoint,
    tokenizer: Any,
    settings: SoupTraining,
    progress: Progress,
) -> SoupWindows:
    """Draw every step's domain weights and windows, and read as many windows of each domain as that takes.

    Each window of a domain is used once before any is used again.

    (CalibrationError: a domain has no text, or a token is beyond the model's vocabulary.)
    """
    draw = torch.Generator().manual_seed(settings.seed)
    mixtures = draw_domain_weights(len(domains), settings.support_of(len(domains)), settings.steps, draw)
    drawn = draw_domains(mixtures, settings.batch_size * settings.accumulate, draw).flatten()  # (T, B) → (T B,)
    training, held_out, owners = torch.zeros_like(drawn), [], []
    parts: list[Calibration] = []
    starts = [0]
    for number, (name, corpus) in enumerate(domains.items()):
        places = (drawn == number).nonzero().flatten()
        windows = _read(name, corpus, tokenizer, len(places), settings, checkpoint)
        if (passes := len(places) / len(windows.training)) > 1:
            remark(progress, f"domain {name} is read {passes:.1f} times: it has less text")
        if len(places):
            training[places] = windows.used(len(places)) + starts[-1]
        held_out.append(windows.held_out + starts[-1])
        owners.append(torch.full_like(windows.held_out, number))
        parts.append(windows.all)
        starts.append(starts[-1] + len(windows.all.ids))
    joined = Calibration(
        torch.cat([part.ids for part in parts]),
        torch.cat([part.lengths for part in parts]),
        ", ".join(part.label for part in parts),
    )
    return SoupWindows(joined, training, torch.cat(held_out), settings.seed, mixtures, torch.cat(owners), tuple(starts))


def _read(
    name: str, corpus: Corpus, tokenizer: Any, count: int, settings: SoupTraining, checkpoint: Checkpoint
) -> Windows:
    size = settings.seq_len
    try:
        found = random_places(corpus, tokenizer, tokens=(count + HELD_OUT) * size, seq_len=size, seed=settings.seed)
        windows = make_windows([found], size, settings.seed)
    except CalibrationError as error:
        hint = "give fewer --clusters, or more text with --domains"
        if settings.clusters is None:
            of_text = f"give it more text: --domains {shlex.quote(f'{name}=FILE')}"
            hint = of_text if error.hint is None or "--data" in error.hint else error.hint
        raise CalibrationError(f"domain {name}: {error.message}", hint) from error
    check_vocabulary(found, checkpoint.architecture.vocab_size, f"domain {name}")
    return windows


def centroids(model: Any, checkpoint: Checkpoint, windows: SoupWindows, batch_size: int) -> Float[Tensor, "k H"]:
    """Return the centroid of each domain: the mean over some windows of their mean MLP inputs in the last layer."""
    device, means = next(iter(model.parameters())).device, []
    (*_, last) = checkpoint.family.mlps(model)
    with seen_inputs([last]) as seen, torch.no_grad():
        for first, end in pairwise(windows.starts):
            rows = []
            for numbers in torch.arange(first, min(end, first + EMBEDDED)).split(batch_size):
                ids, keep = windows.take(numbers)
                model.base_model(input_ids=ids.to(device), use_cache=False)
                x, counted = seen[0].double().cpu(), keep[..., None].double()  # (B, S, H), (B, S, 1)
                rows.append((x * counted).sum(dim=1) / counted.sum(dim=1))  # (B, H)
            means.append(torch.cat(rows).mean(dim=0))
    return torch.stack(means).float()
