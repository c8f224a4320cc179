"""Directions of the residual stream that carry least: what taking W of them for evidence would cost.

    python -m benchmarks.least_directions --shared DIR

A context layer adds W channels to the H of the stream. Instead it could take over the W directions with the least
variance, after a rotation of all tensors to them. For five trained experts this prints the share of variance in those
directions, of the stored Grams of MLP inputs and of the stream itself, and the normalised score that an expert keeps on
its own text if the stream is projected onto the other directions before every layer and before the head.
"""

import argparse
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from benchmarks.context_cost import NEAR, near_experts, token_ids
from registry import Registry
from registry.families.sites import MLP_INPUT
from registry.member import Member
from registry.runtime.loading import load_model, load_tokenizer

WIDTHS = (4, 8, 16, 32, 64)
WINDOWS = 16


def shares(moment: Tensor) -> list[float]:
    """Return the share of variance in the W directions with the least, for each W of `WIDTHS`."""
    values = torch.linalg.eigvalsh(moment).clamp(min=0.0)  # ascending
    return [float(values[:width].sum() / values.sum()) for width in WIDTHS]


def gram_moments(home: Path) -> list[Tensor]:
    """Return the second moment of the MLP input of each layer, (H, H), a mean over the experts."""
    with Registry(home) as registry:
        members = registry.plan(NEAR).members
        assert all(isinstance(each, Member) for each in members)
        layers = members[0].architecture.num_hidden_layers
        return [torch.stack([_moment(each, layer) for each in members]).mean(dim=0) for layer in range(layers)]


def _moment(member: Member, layer: int) -> Tensor:
    statistics = member.statistics(MLP_INPUT, layer)
    gram = statistics.gram
    return gram / statistics.count


@torch.no_grad()
def stream_moment(model: Any, ids: Tensor) -> Tensor:
    """Return the second moment of the stream before every layer and the head, each token at the size 1, (H, H)."""
    states = torch.cat([state.flatten(0, 1) for state in model(input_ids=ids, output_hidden_states=True).hidden_states])
    states = torch.nn.functional.normalize(states.double(), dim=-1)
    return states.T @ states / len(states)


@torch.no_grad()
def loss_of(model: Any, ids: Tensor, kept: Tensor | None) -> float:
    """Return the mean loss with the stream projected by `kept`, (H, H), before every layer and before the head."""

    def project(_module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return (given[0] @ kept, *given[1:]), named

    modules = [*model.model.layers, model.model.norm]
    hooks = [each.register_forward_pre_hook(project, with_kwargs=True) for each in modules if kept is not None]
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    for hook in hooks:
        hook.remove()
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()))


def scores(models: Sequence[Any], texts: Sequence[Tensor], moment: Tensor) -> list[float]:
    """Return the mean normalised score of the experts on their own text, for each W of `WIDTHS`."""
    _, directions = torch.linalg.eigh(moment)
    found = []
    for width in WIDTHS:
        used = directions[:, width:].float()
        kept = used @ used.T
        each = [loss_of(m, text, None) - loss_of(m, text, kept) for m, text in zip(models, texts, strict=True)]
        found.append(fmean(100 * math.exp(gain) for gain in each))
    return found


def exponent(moment: Tensor) -> float:
    """Return a of the best fit i^-a to the eigenvalues beyond the largest eighth, in order of size."""
    values = torch.linalg.eigvalsh(moment).flip(0)[len(moment) // 8 :]
    places = torch.arange(len(moment) // 8 + 1, len(moment) + 1, dtype=torch.float64).log()
    return float(-torch.linalg.lstsq(torch.stack([places, places * 0 + 1], dim=1), values.log()[:, None]).solution[0])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True, help="folder with `experts` and `corpora`")
    shared = parser.parse_args().shared
    torch.set_num_threads(1)

    def row(name: str, values: Sequence[float]) -> None:
        print(f"{name:40s}", *(f"{value:10.5f}" for value in values))

    row("W", WIDTHS)
    with tempfile.TemporaryDirectory(prefix="reg-least-") as scratch:
        near_experts(shared, Path(scratch))
        for layer, moment in enumerate(gram_moments(Path(scratch) / "near")):
            row(f"share of variance, MLP input {layer}", shares(moment))
    models, train, test = [], [], []
    for name in NEAR:
        folder, text = shared / "experts" / name, shared / "corpora" / name
        tokenizer = load_tokenizer(folder)
        models.append(load_model(folder, "float32", "cpu"))
        train.append(token_ids(tokenizer, text / "train.jsonl.gz", 256 * WINDOWS).view(-1, 256))
        test.append(token_ids(tokenizer, text / "test.jsonl.gz", 256 * WINDOWS).view(-1, 256))
    moment = torch.stack([stream_moment(m, ids) for m, ids in zip(models, train, strict=True)]).mean(dim=0)
    row("share of variance, stream", shares(moment))
    row("normalised score", scores(models, test, moment))
    print(f"eigenvalues of the stream fall as i^-{exponent(moment):.2f}")


if __name__ == "__main__":
    main()
