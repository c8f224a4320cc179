"""Proves: ensembles weighed by the prompt's perplexity, or whose logits are mixed, compute what their papers say.

References are plain loops over the tokens of one sequence and over the members' dense models, loaded on their own; the
equations are named beside them. They take logits as they are where the model takes log probabilities.
"""

import json
import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from registry import Recipe, Registry
from registry.errors import CheckpointError
from registry.methods.ensemble.host import EnsembleHost
from registry.methods.ensemble.output import ROUTINGS
from registry.runtime.gates import record_routing
from registry.runtime.loading import has_our_code
from tests.conftest import Zoo
from tests.registry.composition.composed import check_generated
from tests.registry.composition.test_ensemble import FIRST, IDS, NAMES, by_first, load, mixed, write_from
from tests.transformers4 import Transformers4

CONFIG: dict[str, Any] = {
    "members": ["a", "b"],
    "routing": "task-vector",
    "routing_prior": None,
    "routing_temperature": 1.0,
    "routing_tokens": 32,
    "routing_top_k": 2,
    "shared_tensors": {"x": [0, 0, 2]},
    "auto_map": {"AutoModelForCausalLM": "modeling_ensemble.EnsembleForCausalLM"},
}
GREEDY: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}

Write = Callable[..., Any]


@pytest.fixture
def experts(zoo: Zoo) -> list[Path]:
    return [zoo.experts[name] for name in NAMES]


@pytest.fixture
def write(filled: Registry, tmp_path: Path) -> Write:
    """Write an ensemble of the experts, and load it."""

    def written(**recipe: Any) -> Any:
        return load(write_from(filled, NAMES, tmp_path / "ensemble", **recipe)[1])

    return written


@lru_cache(maxsize=3)
def dense_model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@torch.no_grad()
def logits_of(experts: Sequence[Path], tokens: Sequence[int]) -> list[torch.Tensor]:
    """Return each expert's logits (S, V) on one sequence, in float64."""
    return [dense_model(folder)(input_ids=torch.tensor([list(tokens)])).logits[0].double() for folder in experts]


def log_likelihood(logits: torch.Tensor, tokens: Sequence[int], stop: int) -> float:
    """Return Σ_{t=2..stop} log p(x_t | x_<t)."""
    total = 0.0
    for place in range(1, stop):
        scores = logits[place - 1]
        total += float(scores[tokens[place]] - scores.exp().sum().log())
    return total


def prompt_weights(
    every: Sequence[torch.Tensor], tokens: Sequence[int], stop: int, top_k: int, temperature: float
) -> list[float]:
    """Return α = SoftMax(TopK(1 / PPL(x | θ_i))) of the first `stop` tokens (MergeME, §3.1.3)."""
    inverse = []
    for logits in every:
        perplexity = math.exp(-log_likelihood(logits, tokens, stop) / (stop - 1))
        inverse.append(1 / perplexity / temperature)
    kept = sorted(range(len(every)), key=lambda index: -inverse[index])[:top_k]
    total = sum(math.exp(inverse[index]) for index in kept)
    return [math.exp(inverse[index]) / total if index in kept else 0.0 for index in range(len(every))]


def of_probabilities(every: Sequence[torch.Tensor], place: int, weights: Sequence[float]) -> torch.Tensor:
    """Return log Σ_j w_j p_j(x) (BTM, §2, eq. 1)."""
    mixture = torch.zeros_like(every[0][place])
    for logits, weight in zip(every, weights, strict=True):
        mixture += weight * logits[place].softmax(-1)
    return mixture.log()


def of_logits(every: Sequence[torch.Tensor], place: int, weights: Sequence[float]) -> torch.Tensor:
    """Return log SoftMax(Σ_j w_j z_j), z_j the logits as they are (FlexOlmo, A.1)."""
    mixture = torch.zeros_like(every[0][place])
    for logits, weight in zip(every, weights, strict=True):
        mixture += weight * logits[place]
    return mixture.log_softmax(-1)


MIXINGS = {"probabilities": of_probabilities, "logits": of_logits}


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize(("top_k", "temperature"), [(1, 1.0), (2, 3e-4), (3, 3e-4)])
def test_first_tokens_decide(write: Write, experts: list[Path], mixing: str, top_k: int, temperature: float) -> None:
    model = write(
        routing="prompt-perplexity", top_k=top_k, temperature=temperature, routing_tokens=FIRST, mixing=mixing
    )
    found, even = mixed(model), [1 / len(NAMES)] * len(NAMES)
    for row, tokens in enumerate(IDS.tolist()):
        every = logits_of(experts, tokens)
        weights = prompt_weights(every, tokens, FIRST, top_k, temperature)
        assert sum(weight > 0 for weight in weights) == top_k
        for place in range(len(tokens)):
            own = MIXINGS[mixing](every, place, weights if place >= FIRST - 1 else even)
            assert torch.allclose(found[row, place], own.float(), atol=3e-5), (row, place)
    other = mixed(model.__class__.from_pretrained(model.name_or_path, routing_tokens=FIRST + 3))
    assert (other - found).abs().max() > 0.01  # it can fail


@pytest.mark.check(after=1)
@pytest.mark.parametrize("mixing", MIXINGS)
def test_whole_prompt_decides_and_stays(write: Write, experts: list[Path], mixing: str) -> None:
    model = write(routing="prompt-perplexity", top_k=2, temperature=1e-3, routing_tokens=0, mixing=mixing)
    prompt = IDS[:, :9].clone()
    mask = torch.ones_like(prompt)
    prompt[1, :4], mask[1, :4] = 0, 0
    generated = model.generate(prompt, attention_mask=mask, **GREEDY)
    for row, start in ((0, 0), (1, 4)):
        tokens = prompt[row, start:].tolist()
        weights = prompt_weights(logits_of(experts, tokens), tokens, len(tokens), 2, 1e-3)
        for _ in range(GREEDY["max_new_tokens"]):
            every = logits_of(experts, tokens)
            tokens.append(int(MIXINGS[mixing](every, len(tokens) - 1, weights).argmax()))
        assert generated[row, start:].tolist() == tokens
    # In a call without a cache, all places have the weights of the whole text.
    tokens = IDS[0].tolist()
    every = logits_of(experts, tokens)
    weights = prompt_weights(every, tokens, len(tokens), 2, 1e-3)
    expected = torch.stack([MIXINGS[mixing](every, place, weights) for place in range(len(tokens))]).float()
    assert torch.allclose(mixed(model, IDS[:1])[0], expected, atol=3e-5)


@pytest.mark.check(after=2)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_logits_have_the_weights_that_probabilities_have(write: Write, experts: list[Path], routing: str) -> None:
    recipe: dict[str, Any] = by_first(routing) | {"top_k": 2, "temperature": 0.1}
    seen = []
    for mixing in ("probabilities", "logits"):
        with record_routing(model := write(**recipe, mixing=mixing)) as (record,):
            found = mixed(model)
        seen.append(record.logits[-1].exp().view(*IDS.shape, len(NAMES)))
    assert torch.equal(*seen)
    for row, tokens in enumerate(IDS.tolist()):
        every = logits_of(experts, tokens)
        for place in range(len(tokens)):
            own = of_logits(every, place, seen[0][row, place].tolist())
            assert torch.allclose(found[row, place], own.float(), atol=5e-5), (row, place)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_mixed_logits_with_caches_padding_and_beams(write: Write, routing: str) -> None:
    model = write(**by_first(routing), top_k=2, temperature=0.1, mixing="logits")
    check_generated(model, IDS[:, :8], left=4, tokens=8)
    whole, cache, parts = mixed(model), None, []
    for start, stop in ((0, 1), (1, 4), (4, 13), (13, 14), (14, 20)):
        with torch.no_grad():
            output = model(input_ids=IDS[:, start:stop], cache=cache, use_cache=True)
        cache = output.cache
        parts.append(output.logits)
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=2e-5)  # products of other shapes round otherwise
    for keep in (1, 5, torch.tensor([7, 2])):
        expected = whole[:, keep] if isinstance(keep, torch.Tensor) else whole[:, -keep:]
        assert torch.allclose(mixed(model, logits_to_keep=keep), expected, atol=2e-5)
    assert torch.allclose(whole.exp().sum(-1), torch.ones(IDS.shape), atol=1e-5)


@pytest.mark.check
def test_beams_and_batches_of_a_prompt_are_those_of_each_alone(write: Write) -> None:
    model = write(routing="prompt-perplexity", top_k=1, routing_tokens=0)
    ids = torch.cat([IDS[:, :9], IDS[:, 9:18]])
    mask = torch.ones_like(ids)
    ids[1, :3], mask[1, :3] = 0, 0
    for beams in (1, 3):
        options = GREEDY | {"num_beams": beams}
        together = model.generate(ids, attention_mask=mask, **options)
        for row, start in enumerate((0, 3, 0, 0)):
            alone = model.generate(ids[row : row + 1, start:], attention_mask=mask[row : row + 1, start:], **options)
            assert torch.equal(together[row : row + 1, start:], alone)


def test_members_that_are_not_chosen_do_not_run_after_the_choice(write: Write, experts: list[Path]) -> None:
    model = write(routing="prompt-perplexity", top_k=1, routing_tokens=FIRST)
    tokens = IDS[0].tolist()
    weights = prompt_weights(logits_of(experts, tokens), tokens, FIRST, 1, 1.0)
    best, ran = weights.index(1.0), list[tuple[int, int]]()
    for index, member in enumerate(model.members):
        member.register_forward_hook(
            lambda _, __, options, ___, index=index: ran.append((index, options["input_ids"].shape[1])),
            with_kwargs=True,
        )
    every = [(index, FIRST) for index in range(3)]
    found = mixed(model, IDS[:1], use_cache=False)
    assert ran == [*every, (best, 20)]
    # After the tokens that decide it is its dense model, bit for bit: a weight of 1, and a pass over the whole text.
    assert torch.equal(found[:, FIRST:], mixed(dense_model(experts[best]), IDS[:1]).log_softmax(-1)[:, FIRST:])
    ran.clear()
    with torch.no_grad():
        output = model(input_ids=IDS[:1, :12], use_cache=True, logits_to_keep=1)
        assert ran == [*every, (best, 12 - FIRST)]
        ran.clear()
        model(input_ids=IDS[:1, 12:14], cache=output.cache, use_cache=True)
    assert ran == [(best, 2)]
    ran.clear()
    mixed(model, IDS[:1, : FIRST - 1])
    assert ran == [(index, FIRST - 1) for index in range(3)]


def test_a_prompt_of_one_token_says_nothing(write: Write, experts: list[Path]) -> None:
    model = write(routing="prompt-perplexity", top_k=1, routing_tokens=0)
    tokens = IDS[0, :1].tolist()
    expected = of_probabilities(logits_of(experts, tokens), 0, [1 / 3] * 3)
    assert torch.allclose(mixed(model, IDS[:1, :1])[0, 0], expected.float(), atol=2e-5)
    for routing_tokens in (0, FIRST):  # and a row of padding alone breaks nothing
        model = write(routing="prompt-perplexity", top_k=1, routing_tokens=routing_tokens)
        mask = torch.ones_like(IDS)
        mask[0] = 0
        assert torch.allclose(mixed(model, IDS, attention_mask=mask)[1], mixed(model, IDS[1:])[0], atol=5e-5)


@pytest.mark.parametrize("routing_tokens", [FIRST, 0])
def test_transformers_4_agrees(write: Write, tmp_path: Path, transformers4: Transformers4, routing_tokens: int) -> None:
    model = write(routing="prompt-perplexity", top_k=2, routing_tokens=routing_tokens, mixing="logits")
    folder = tmp_path / "ensemble"
    assert torch.allclose(transformers4.logits(folder, IDS, "float32", tmp_path), mixed(model), atol=2e-5)
    generated = transformers4.logits(folder, IDS, "float32", tmp_path, **GREEDY)
    assert torch.equal(generated, model.generate(IDS, **GREEDY))


def test_gradients_are_finite(write: Write) -> None:
    for recipe in ({"routing": "prompt-perplexity", "routing_tokens": FIRST, "top_k": 2}, {"mixing": "logits"}):
        model = write(**recipe)
        model(input_ids=IDS, labels=IDS).loss.backward()
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        assert gradients
        assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"members": "ab"}, "members is 'ab', it must be a list"),
        ({"routing": "vote"}, "routing is 'vote', it must be one of posterior"),
        ({"routing_top_k": 3}, "routing_top_k is 3, it must be from 1 to 2, the number of members"),
        ({"routing_temperature": 0.0}, "routing_temperature is 0.0, it must be a finite number, more than 0"),
        ({"routing_prior": [1.0]}, "routing_prior has 1 numbers, expected 2"),
        ({"routing_tokens": None}, "routing_tokens is None, it must be from 2"),
        ({"routing_tokens": 10**12}, "routing_tokens is 1000000000000, it must be from 2 to 16,777,216"),
        ({"routing": "prompt-perplexity"}, r"routing 'prompt-perplexity' needs modeling_mixed\.py"),
        ({"shared_tensors": {"x": [0, 0]}}, r"shared_tensors of x is \[0, 0\], expected 3 numbers"),
        ({"shared_tensors": {"x": [1, 2, 2]}}, "expected 3 numbers of models that keep their own"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling_mixed.X"}}, "has no key 'mixing'"),
    ],
)
def test_configurations_of_another_form_are_refused(changes: dict[str, Any], message: str) -> None:
    EnsembleHost().check(CONFIG, "config.json")
    EnsembleHost().check(CONFIG | {"routing": "posterior", "routing_prior": [0.5, 1], "shared_tensors": {}}, "x")
    with pytest.raises(CheckpointError, match=message) as caught:
        EnsembleHost().check(CONFIG | changes, "config.json")
    assert caught.value.hint


def test_code_of_another_repository_is_not_run(tmp_path: Path, filled: Registry) -> None:
    filled.compose(NAMES[:1], tmp_path / "out", Recipe(to="ensemble"))
    assert has_our_code(tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_bytes())
    config["auto_map"]["AutoModelForCausalLM"] = "someone/else--modeling_ensemble.EnsembleForCausalLM"
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    assert not has_our_code(tmp_path / "out")
