"""A registry of experts of four families and two sizes that share the tests' tokenizer."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from registry import PassSettings, Registry
from registry.composition import Hetero, HeteroRecipe
from registry.runtime.loading import quiet_transformers
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint

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
    with Registry(root / "home") as registry:
        for name, folder in experts.items():
            registry.add_expert(name, folder, data=[zoo.train[name]], settings=SETTINGS, keep_calibration=True)
        registry.add_expert("code", zoo.experts["code"], allow_unrelated=True)
        compose(registry, root / "composed")
    return World(root / "home", {**experts, "code": zoo.experts["code"]}, root / "composed")


def compose(registry: Registry, out: Path, names: tuple[str, ...] = NAMES, **recipe: Any) -> Hetero:
    """Compose experts, which the first `FIRST` tokens weigh."""
    plan = registry.compose(names, out, HeteroRecipe(**{"routing_tokens": FIRST, "top_k": 2} | recipe))
    assert isinstance(plan, Hetero)
    return plan


def load(folder: Path, **options: Any) -> Any:
    """Return the model as plain transformers loads it, no key missing, unexpected or mismatched."""
    with quiet_transformers():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, **{"dtype": torch.float32} | options, trust_remote_code=True, output_loading_info=True
        )
    model, info = loaded
    assert not any(info.values()), info
    return model.eval()


def dense(folder: Path) -> Any:
    """Return a member as plain transformers loads it."""
    with quiet_transformers():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def tables(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the embedding and the head of a checkpoint, float64."""
    model = dense(folder)
    return model.get_input_embeddings().weight.detach().double(), model.lm_head.weight.detach().double()


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of a folder."""
    return load_file(folder / "model.safetensors")


def config_of(folder: Path) -> dict[str, Any]:
    """Return the config.json of a folder."""
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def forced(model: Any, index: int) -> Callable[..., torch.Tensor]:
    """Return a function of tokens that gives the logits of one member alone."""

    def weigh(scores: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        only = torch.full_like(scores, -torch.inf)
        only[..., index] = 0.0
        return only

    @torch.no_grad()
    def logits(ids: torch.Tensor, **arguments: Any) -> torch.Tensor:
        model._weigh = weigh
        try:
            found: torch.Tensor = model(input_ids=ids, **arguments).logits
        finally:
            del model._weigh
        return found

    return logits
