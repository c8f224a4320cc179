"""A registry of experts of four families and two sizes that share the tests' tokenizer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from registry import PassSettings, Registry
from registry.composition import Plan, Recipe
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint
from tests.registry.hosts.test_hosts import load

FIRST = 5
"""How many tokens decide."""
SETTINGS = PassSettings(tokens=256, seq_len=16, batch_size=4)
WIDE: dict[str, Any] = {
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 8,
    "num_hidden_layers": 3,
    "tie_word_embeddings": True,
}
NAMES = ("biomed", "code", "law", "math")
LEAD = "math"


@dataclass(frozen=True)
class World:
    """A home with the experts, their checkpoints, and a composition of all of them."""

    home: Path
    experts: dict[str, Path]
    folder: Path


def make_world(root: Path, zoo: Zoo, tokenizer: Any) -> World:
    """Register an expert of each family, and compose them."""
    models = {
        "biomed": make_model("granite", 201, logits_scaling=4.0, embedding_multiplier=3.0),
        "law": make_model("gemma", 301, head_dim=8),
        "math": make_model("qwen3", 401, **WIDE),
    }
    experts = {name: save_checkpoint(model, root / name, tokenizer) for name, model in models.items()}
    experts["code"] = zoo.experts["code"]
    with Registry(root / "home") as registry:
        for name in ("biomed", "law", "math", "code"):
            add_member(registry, name, experts[name], zoo)
        compose(registry, root / "composed")
    return World(root / "home", experts, root / "composed")


def add_member(registry: Registry, name: str, folder: Path, zoo: Zoo) -> None:
    """Register an expert with the text of its name, which is kept; that of the zoo has its own statistics."""
    own: dict[str, Any] = {"data": [zoo.train[name]], "settings": SETTINGS, "keep_calibration": True}
    registry.add_expert(name, folder, **{} if name == "code" else own, allow_unrelated=True)


def compose(registry: Registry, out: Path, names: tuple[str, ...] = NAMES, **recipe: Any) -> Plan:
    """Compose experts, which the first `FIRST` tokens weigh."""
    return registry.compose(names, out, Recipe(to="hetero", **{"routing_tokens": FIRST, "top_k": 2} | recipe))


def tables(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the embedding and the head of a checkpoint, float64."""
    model = load(folder)
    return model.get_input_embeddings().weight.detach().double(), model.lm_head.weight.detach().double()


@torch.no_grad()
def logits_of(model: Any, ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
    """Return the logits of a model."""
    found: torch.Tensor = model(input_ids=ids, **arguments).logits
    return found


def forced(model: Any, index: int) -> Callable[..., torch.Tensor]:
    """Return a function of tokens that gives the logits of one member alone."""

    def weigh(scores: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        only = torch.full_like(scores, -torch.inf)
        only[..., index] = 0.0
        return only

    def logits(ids: torch.Tensor) -> torch.Tensor:
        model._weigh = weigh
        try:
            return logits_of(model, ids)
        finally:
            del model._weigh

    return logits
