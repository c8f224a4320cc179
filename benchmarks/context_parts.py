"""The parts of `quality.py` on context routing: whole text at several offsets, changes of subject, tokens read.

Scores are those of the page: 100 · perplexity of the domain's own expert / perplexity of the model on the same tokens.
"""

import math
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor

from benchmarks.quality_parts import FAR, FIVE, SIXTH, Figures, Part, Place, add
from registry import Recipe, Registry
from registry.calibration import Corpus
from registry.composition.plan import Plan
from registry.maths.context.prefix import prefix_means
from registry.methods.moe.context import evidence_of, past_weights, scores_of
from registry.runtime.gates import force_expert, gates, record_routing
from registry.runtime.loading import load_model, load_tokenizer

SETS: dict[str, tuple[str, ...]] = {
    "near": FIVE,
    "far": (*FIVE, *FAR),
    "six": (*FIVE, SIXTH),
    "pairs": ("c_headers", "cpp_headers", "spanish", "portuguese", "literature", SIXTH),
    "languages": ("code", "math", "german", "spanish", "portuguese", "japanese"),
}
"""Name of a set → its experts. In `pairs` every expert has a look-alike."""

RECIPES: dict[str, Recipe] = {
    "ridge": Recipe(router="ridge"),
    "context": Recipe(router="context"),
    "context, window 24": Recipe(router="context", context_window=24.0),
    "context, shared head": Recipe(router="context", vocabulary="shared"),
    "context, whole prefix": Recipe(router="context", context_window=0.0),
}
ORACLES = ("ridge", "context")
"""Recipes with a row of oracle routing."""

SECOND_LAYER, SECOND_WEIGHT = 1, 3.0
"""The layer whose scores a second layer of context would average, and their weight beside a nat of evidence."""

WINDOW, OFFSETS, WINDOWS = 256, (0, 85, 170), 24
"""Tokens of a window; offsets into the test text at which windows are taken, in tokens; windows of a domain at each."""

SPANS = ((0, 8), (8, 32), (32, 64), (64, 127), (0, 32), (32, 127))
"""Tokens after the change of subject, from the first to the one after the last."""

SWITCHES = 80
"""Windows that change their subject, about; the same number of each ordered pair of domains."""

READ = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of tokens read at which routing accuracy is given."""


def context(place: Place, name: str) -> Figures:
    """Return the figures of one set: rows by recipe, with oracle routing of each trunk."""
    experts = sorted(SETS[name])
    with Registry(place.home) as registry:
        add(registry, place, experts)
    texts = {domain: _stream(place, domain) for domain in experts}
    whole = {offset: {domain: _windows(text[offset:], WINDOWS) for domain, text in texts.items()} for offset in OFFSETS}
    switching = _switching({domain: _windows(text, 2 * WINDOWS) for domain, text in texts.items()})
    own_whole: dict[int, dict[str, Tensor]] = {offset: {} for offset in OFFSETS}
    own_switching = {}
    for domain in experts:
        model = load_model(place.checkpoint(domain), "float32", "cpu")
        for offset, windows in whole.items():
            own_whole[offset][domain] = _losses(model, windows[domain])
        own_switching[domain] = _losses(model, switching[domain])[:, WINDOW // 2 :]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, (label, recipe) in enumerate(RECIPES.items()):
            folder = Path(scratch) / str(number)
            with Registry(place.home) as registry:
                plan = registry.plan([f"{expert}@1" for expert in experts], recipe)
                registry.write(plan, folder)
            model = load_model(folder, "float32", "cpu")
            row: Figures = {"name": label, "parameters": plan.parameters, "active": plan.active_parameters}
            row |= _scored(model, experts, whole, own_whole)
            row["switching"] = _spans(model, experts, switching, own_switching)
            rows.append(row)
            if label in ORACLES:
                oracle: Figures = {"name": "oracle of the trunk" if label == "ridge" else f"oracle of {label}"}
                oracle |= _scored(model, experts, whole, own_whole, forced=True)
                oracle["switching"] = _spans(model, experts, switching, own_switching, forced=True)
                rows.append(oracle)
            if label == "ridge":
                shared = replace(plan, recipe=Recipe(router="context", vocabulary="shared"))
                with second_layer(model, shared):
                    row = {"name": "second layer", **_scored(model, experts, whole, own_whole)}
                    row["switching"] = _spans(model, experts, switching, own_switching)
                rows.append(row)
    return {"experts": experts, "rows": rows}


@contextmanager
def second_layer(model: Any, plan: Plan) -> Iterator[None]:
    """Route a mixture with ridge routers by context, and from `SECOND_LAYER` on by a second layer of it too.

    Each token goes to the expert of the largest score of context routing; from that layer on the mean of the layer's
    own logits over the recent text, by the slow window, is added to it, `SECOND_WEIGHT` times. Nothing is built for it:
    the routers' choices are replaced while the context is open.

    Args:
        model: a composition with ridge routers, loaded.
        plan: the same members with context routing, which gives the scores.
    """
    evidence, state = evidence_of(plan), dict[str, Tensor]()
    slow, _ = past_weights(plan, WINDOW)
    scale = plan.recipe.temperature  # back to logits as they are solved, about 0 and 1

    def begin(_module: Any, _args: Any, given: dict[str, Any]) -> None:
        ids = given["input_ids"]
        keep = torch.ones_like(ids, dtype=torch.bool)
        state["scores"] = scores_of(plan, ids, keep, evidence).flatten(0, 1)  # (T, E)

    def choose(layer: int) -> Any:
        def hook(_module: Any, _args: Any, output: Any) -> Any:
            logits, weights, chosen = output
            if layer == SECOND_LAYER:
                rows = (logits.double() * scale).view(-1, WINDOW, logits.shape[-1])
                means = prefix_means(
                    torch.arange(rows.shape[0] * WINDOW).view(-1, WINDOW),
                    torch.ones(rows.shape[:2], dtype=torch.bool),
                    rows.flatten(0, 1),
                    slow,
                )
                state["scores"] = state["scores"] + SECOND_WEIGHT * means.flatten(0, 1)
            best = state["scores"].argmax(dim=-1, keepdim=True)  # (T, 1)
            return logits, torch.ones_like(weights[:, :1]), best.to(chosen.dtype)

        return hook

    with ExitStack() as stack:
        stack.callback(model.register_forward_pre_hook(begin, with_kwargs=True).remove)
        for gate in gates(model):
            stack.callback(gate.module.register_forward_hook(choose(gate.layer)).remove)
        yield


def _stream(place: Place, domain: str) -> Tensor:
    """Return a domain's test text as one row of tokens: documents shuffled, each led by the start token."""
    tokenizer = load_tokenizer(place.checkpoint(domain))
    texts = [document.text for document in Corpus(place.text(domain, "test"), tokenizer)]
    random.Random(0).shuffle(texts)
    ids: list[int] = []
    for row in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]:
        ids += [tokenizer.bos_token_id or 0, *row]
    return torch.tensor(ids)


def _windows(text: Tensor, count: int) -> Tensor:
    step = max(WINDOW, (len(text) - WINDOW) // count)
    starts = [number * step for number in range(count) if number * step + WINDOW <= len(text)]
    return torch.stack([text[start : start + WINDOW] for start in starts])


def _switching(windows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return domain → windows whose second half is of that domain, and whose first is of each other one."""
    names, draw = sorted(windows), random.Random(1)
    each = max(1, round(SWITCHES / (len(names) * (len(names) - 1))))
    made: dict[str, list[Tensor]] = {name: [] for name in names}
    for before in names:
        for after in names:
            for _ in range(each if before != after else 0):
                first, second = (windows[name][draw.randrange(len(windows[name]))] for name in (before, after))
                made[after].append(torch.cat([first[: WINDOW // 2], second[WINDOW // 2 :]]))
    return {name: torch.stack(rows) for name, rows in made.items()}


@torch.no_grad()
def _losses(model: Any, ids: Tensor) -> Tensor:
    """Return the loss of each predicted token, (N, S - 1)."""
    losses = []
    for batch in ids.split(8):
        logits = model(input_ids=batch, use_cache=False).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
        losses.append(loss.view(len(batch), -1))
    return torch.cat(losses)


def _score(own: Tensor, loss: Tensor) -> float:
    return 100 * math.exp(float(own.mean() - loss.mean()))


def _scored(
    model: Any,
    experts: Sequence[str],
    whole: Mapping[int, Mapping[str, Tensor]],
    own: Mapping[int, Mapping[str, Tensor]],
    forced: bool = False,
) -> Figures:
    """Return scores by domain with their spread over offsets, and routing accuracy by layer and by tokens read."""
    by_offset, layers, lengths = [], [], []
    for offset, windows in whole.items():
        scores = {}
        for number, domain in enumerate(experts):
            if forced:
                with force_expert(model, number):
                    loss = _losses(model, windows[domain])
            else:
                with record_routing(model) as routings:
                    loss = _losses(model, windows[domain])
                right = torch.stack([torch.cat(routing.chosen)[:, 0] == number for routing in routings])
                right = right.view(len(routings), -1, WINDOW).double()  # (L, N, S)
                layers.append(right.mean(dim=(1, 2)))
                lengths.append(right[:, :, [count - 1 for count in READ]].mean(dim=(0, 1)))
            scores[domain] = _score(own[offset][domain], loss)
        by_offset.append(scores)
    averages = [fmean(scores.values()) for scores in by_offset]
    found: Figures = {
        "score": {domain: fmean(scores[domain] for scores in by_offset) for domain in experts},
        "average": fmean(averages),
        "spread": pstdev(averages),
    }
    if not forced:
        found |= {
            "by_layer": torch.stack(layers).mean(dim=0).tolist(),
            "by_tokens": torch.stack(lengths).mean(dim=0).tolist(),
        }
    return found


def _spans(
    model: Any,
    experts: Sequence[str],
    switching: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    forced: bool = False,
) -> list[float]:
    """Return the average score in each span after a change of subject."""
    scores: list[list[float]] = [[] for _ in SPANS]
    for number, domain in enumerate(experts):
        if forced:
            with force_expert(model, number):
                loss = _losses(model, switching[domain])
        else:
            loss = _losses(model, switching[domain])
        loss = loss[:, WINDOW // 2 :]
        for place, (first, end) in enumerate(SPANS):
            scores[place].append(_score(own[domain][:, first:end], loss[:, first:end]))
    return [fmean(each) for each in scores]


CONTEXT_PARTS: dict[str, Part] = {f"context-{name}": partial(context, name=name) for name in SETS}
"""Name → part; those of sets of far experts need the folder with them."""
