"""Proves, for every host with a context layer: a loaded folder routes each token by the mean evidence of its context.

The expected experts are computed from counts alone (`prefix_means`), without a model. They are compared at every token
whose two best experts are not within `TIE` of one another, in nats; in 16 bits, evidence and attention are rounded, and
`HALF_TIE` is the limit.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Recipe, Registry
from registry.calibration import Calibration
from registry.composition.context_routing.member_evidence import choices_of, evidence_of, past_weights
from registry.composition.plan import Plan
from registry.maths.context.prefix import prefix_means
from registry.runtime.gates import record_routing
from tests.conftest import Shared
from tests.models import sentences, train_tokenizer
from tests.registry.hosts.test_hosts import LLAMA3, LONG, YARN, Case, Variant, load, variant_of
from tests.transformers4 import Transformers4

EXPERTS = ("code", "german", "math")
TIE, HALF_TIE = 1e-3, 0.05
WIDE = {"hidden_size": 64, "max_position_embeddings": 96}  # heads of 16 channels have 8 rotary pairs
CASES = {
    "llama": Case("llama", "mixtral", WIDE | {"tie_word_embeddings": True}),
    "llama llama3 rope": Case("llama", "mixtral", WIDE | {"rope_parameters": LLAMA3}),
    "llama yarn rope": Case("llama", "mixtral", WIDE | {"rope_parameters": YARN}),
    "llama attention bias": Case("llama", "granitemoe", WIDE | {"attention_bias": True}),
    "mistral window": Case("mistral", "mixtral", WIDE | {"sliding_window": 8}),
    "phi3 longrope": Case(
        "phi3",
        "mixtral",
        WIDE
        | {
            "original_max_position_embeddings": 32,
            "rope_parameters": LONG | {"short_factor": [1.0] * 8, "long_factor": [1.0, 1.2, 1.5, 2.0, 2.5, 3, 3.5, 4]},
        },
    ),
    "phi3 partial rotary": Case("phi3", "mixtral", WIDE | {"partial_rotary_factor": 0.75}),
    "qwen2 window by layer": Case(
        "qwen2",
        "qwen2_moe",
        WIDE | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        old=False,
    ),
    "qwen2 in granitemoe": Case("qwen2", "granitemoe", WIDE),
    "qwen3": Case("qwen3", "qwen3_moe", WIDE | {"head_dim": 16}),
    "qwen3 window by layer": Case(
        "qwen3",
        "mellum",
        WIDE | {"head_dim": 16, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        old=False,
    ),
    "olmo2": Case("olmo2", "flex_olmo", WIDE),
    "olmo3": Case("olmo3", "flex_olmo", WIDE | {"num_hidden_layers": 4, "sliding_window": 96}),
    "granite": Case(
        "granite",
        "granitemoe",
        WIDE | {"attention_multiplier": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.5},
    ),
    "smollm3": Case("smollm3", "granitemoe_swa", WIDE | {"num_hidden_layers": 4}, old=False),
    "gemma": Case("gemma", "granitemoe", WIDE | {"head_dim": 16}),
}
WINDOWS = (0.0, 16.0, 48.0)


@pytest.fixture(scope="module", params=CASES)
def variant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tokenizer: Any
) -> Iterator[Variant]:
    with variant_of(CASES[request.param], tmp_path_factory.mktemp("variant"), tokenizer, EXPERTS) as made:
        yield made


def texts(tokenizer: Any, length: int = 80) -> torch.Tensor:
    """Return three texts that change their subject, and one of random tokens."""
    words = {name: " ".join(sentences(name, 6, seed=5)) for name in EXPERTS}
    rows = []
    for number in range(3):
        parts = [tokenizer(words[name]).input_ids for name in (*EXPERTS[number:], *EXPERTS[:number])]
        rows.append([token for part in parts for token in part[: length // 3 + 1]][:length])
    noise = torch.randint(1, 320, (1, length), generator=torch.Generator().manual_seed(0))
    return torch.cat([torch.tensor(rows), noise])


def expected(plan: Plan, ids: torch.Tensor, keep: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the expert of each token, (N, S), and by how many nats it leads."""
    keep = torch.ones_like(ids, dtype=torch.bool) if keep is None else keep
    best = prefix_means(ids, keep, evidence_of(plan), past_weights(plan, ids.shape[1])).topk(2, dim=-1)
    return best.indices[..., 0], best.values[..., 0] - best.values[..., 1]


def chosen(model: Any, ids: torch.Tensor, **options: Any) -> list[torch.Tensor]:
    """Return the first expert that each layer's router chooses for each token, (N, S) a layer."""
    with torch.no_grad(), record_routing(model) as routings:
        model(input_ids=ids, **options)
    assert len(routings) == model.config.num_hidden_layers - 1
    return [routing.chosen[0][:, 0].view(ids.shape) for routing in routings]


def assert_same(found: list[torch.Tensor], plan: Plan, ids: torch.Tensor, tie: float = TIE, **keep: Any) -> None:
    """Check the choices of all layers at every token that counts and is no tie."""
    experts, lead = expected(plan, ids, **keep)
    clear = (lead > tie) & keep.get("keep", torch.ones_like(ids, dtype=torch.bool))
    assert clear.float().mean() > 0.5
    for layer, choices in enumerate(found):
        assert torch.equal(choices[clear], experts[clear]), (layer, int((choices != experts)[clear].sum()))


@pytest.mark.parametrize("tau", WINDOWS)
def test_every_layer_takes_the_expert_of_most_evidence(
    variant: Variant, tmp_path: Path, tokenizer: Any, tau: float
) -> None:
    plan = variant.registry.compose(EXPERTS, tmp_path / "moe", variant.recipe(router="context", context_window=tau))
    ids = texts(tokenizer)
    assert_same(chosen(load(tmp_path / "moe"), ids), plan, ids)
    assert len(expected(plan, ids)[0].unique()) == len(EXPERTS)  # the test can fail: all of them are chosen
