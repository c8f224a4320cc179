"""Proves: with a context layer, a host computes for each expert what it computes without it.

Compared are two compositions of the same experts and trunk, one routed by context, with each expert forced. In float64
they differ by what the context layer rounds: norm weights times √(H/H′) are written in float32, 6e-8 of them, and the
reserved channels add at most 1e-6 to a row's mean square. Some layers of norms give 1e-5 of the largest logit at most,
which is the tolerance; in float32, sums of another width are rounded otherwise, and the tolerance is 4e-5. A folder
whose norms are not scaled for the width fails it a thousandfold.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.runtime.gates import force_expert
from tests.conftest import Shared
from tests.registry.hosts.test_hosts import CASES, IDS, Case, Variant, load, shared_variant, variant_of

NATIVE = sorted(name for name, case in CASES.items() if not case.host.startswith("routed_"))
NO_CONTEXT = ("cohere", "cohere2")
"""Cases whose native host has no context layer."""

CARRIED = [name for name in NATIVE if name not in NO_CONTEXT]
EPSILON = {
    "llama, large epsilon": Case("llama", "mixtral", {"rms_norm_eps": 0.05}),
    "gemma, large epsilon": Case("gemma", "granitemoe", {"rms_norm_eps": 0.05, "head_dim": 8}),
    "olmo2, small epsilon": Case("olmo2", "flex_olmo", {"rms_norm_eps": 1e-9}),
}
"""Cases in which the epsilon of norms matters, or, where norms of queries share it, does not."""

EXACT, SHARED, ROUNDED = 1e-5, 1e-4, 4e-5
"""Largest difference of a logit over the largest one: in float64, in float64 with a shared epsilon, in float32."""


@pytest.fixture(scope="module", params=CARRIED)
def variant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shared: Shared
) -> Iterator[Variant]:
    with shared_variant(request.param, tmp_path_factory.mktemp("variant"), shared) as made:
        yield made


def pair(variant: Variant, folder: Path, **settings: Any) -> tuple[Path, Path]:
    """Compose both experts without a context layer and with it, on one trunk; return the folders."""
    recipe = {"trunk": "mean"} | settings
    variant.registry.compose(["code", "math"], folder / "plain", variant.recipe(**recipe))
    variant.registry.compose(["code", "math"], folder / "context", variant.recipe(router="context", **recipe))
    return folder / "plain", folder / "context"


def forced(model: Any, expert: int) -> torch.Tensor:
    """Return the logits of a model with every token sent to one expert."""
    with torch.no_grad(), force_expert(model, expert):
        logits: torch.Tensor = model(input_ids=IDS).logits
    return logits


def apart(plain: Any, context: Any) -> float:
    """Return the largest difference of a logit over the largest logit, each expert forced in turn."""
    found = []
    for expert in range(2):
        expected = forced(plain, expert)
        found.append(float((forced(context, expert) - expected).abs().max() / expected.abs().max()))
    return max(found)


def double(folder: Path) -> Any:
    """Load a folder to compute in float64."""
    return load(folder, torch.float64, experts_implementation="eager")


def test_each_expert_computes_what_it_computes_without_the_layer(variant: Variant, tmp_path: Path) -> None:
    folders = pair(variant, tmp_path)
    shares_epsilon = variant.case.host == "flex_olmo"
    assert apart(*map(load, folders)) < (SHARED if shares_epsilon else ROUNDED)
    plain, context = map(double, folders)
    assert apart(plain, context) < (SHARED if shares_epsilon else EXACT)
    assert (forced(plain, 0) - forced(plain, 1)).abs().max() > 0.05  # the test can fail: experts differ
    with torch.no_grad():  # and it fails on norms that are scaled for another width
        for name, weight in context.named_parameters():
            if "norm" in name and weight.shape == (context.config.hidden_size,):
                weight.mul_(1.01)
    assert apart(plain, context) > SHARED * 10


@pytest.mark.parametrize("name", EPSILON)
def test_epsilon_is_scaled_for_the_width(name: str, tmp_path: Path, tokenizer: Any) -> None:
    with variant_of(EPSILON[name], tmp_path, tokenizer) as variant:
        plain, context = map(double, pair(variant, tmp_path))
    print("FIG", name, apart(plain, context))
    assert apart(plain, context) < EXACT
