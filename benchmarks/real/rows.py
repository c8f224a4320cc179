"""The models that are compared: of each row of the tables, how it is made of adapters."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peft import ArrowConfig, PeftModel, create_arrow_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from benchmarks.mergekit import configuration, evenly, installed
from benchmarks.real.llama import KINDS, InLlama, exported
from benchmarks.real.place import JOINT, Place, rows_of
from registry import Recipe, Registry
from registry.errors import UnsupportedFamilyError
from registry.hosts.remote_code import REMOTE_CODE

Load = Callable[[Place, Sequence[str], Path], Any]
"""Return a model of members; the folder is free for what it writes (ValueError: it cannot be made of these)."""


def plain(place: Place) -> Any:
    """Return the base model."""
    return AutoModelForCausalLM.from_pretrained(place.base, dtype=torch.float32)


def one(place: Place, name: str) -> Any:
    """Return the base model with one adapter."""
    return PeftModel.from_pretrained(plain(place), place.adapter(name))


def joint(place: Place, names: Sequence[str], scratch: Path) -> Any:
    """Return the base model with the adapter of all domains' text."""
    if not place.adapter(JOINT).exists():
        raise ValueError("no such adapter was trained")
    return one(place, JOINT)


def merged(how: str, weight: float | None = None, **options: Any) -> Load:
    """Return what merges adapters with PEFT, each with this weight, else with 1 / their number."""

    def load(place: Place, names: Sequence[str], scratch: Path) -> Any:
        first, *others = of_one_rank(place, names)
        model = PeftModel.from_pretrained(plain(place), first, adapter_name=names[0])
        for name, folder in zip(names[1:], others, strict=True):
            model.load_adapter(folder, adapter_name=name)
        weights = [weight or 1 / len(names)] * len(names)
        torch.manual_seed(0)  # DARE drops at random
        model.add_weighted_adapter(list(names), weights, "all", combination_type=how, **options)
        model.set_adapter("all")
        return model

    return load


def of_one_rank(place: Place, names: Sequence[str]) -> list[Path]:
    """Return the folders of adapters, with zeros up to the largest rank where theirs is smaller, which changes nothing.

    PEFT's Arrow and its linear merge take adapters of one rank alone.
    """
    folders = [place.adapter(name) for name in names]
    configs = [json.loads((folder / "adapter_config.json").read_text()) for folder in folders]
    rank, found = max(config["r"] for config in configs), list[Path]()
    for folder, config in zip(folders, configs, strict=True):
        if more := rank - config["r"]:
            tensors = load_file(folder / "adapter_model.safetensors")
            padded = {
                name: F.pad(one, (0, 0, 0, more) if "lora_A" in name else (0, more)) for name, one in tensors.items()
            }
            folder = place.work / "padded" / folder.name
            folder.mkdir(parents=True, exist_ok=True)
            save_file(padded, folder / "adapter_model.safetensors", {"format": "pt"})
            scaled = {**config, "r": rank, "lora_alpha": config["lora_alpha"] * rank / config["r"]}
            (folder / "adapter_config.json").write_text(json.dumps(scaled))
        found.append(folder)
    return found


def arrow(top_k: int) -> Load:
    """Return what routes adapters with PEFT's Arrow."""

    def load(place: Place, names: Sequence[str], scratch: Path) -> Any:
        paths = [str(folder) for folder in of_one_rank(place, names)]
        return create_arrow_model(plain(place), paths, ArrowConfig(top_k=min(top_k, len(paths))))

    return load


def mergekit(place: Place, names: Sequence[str], scratch: Path) -> Any:
    """Return what `mergekit-moe` makes of the experts, merged whole, by hidden states of prompts, two a token."""
    whole, prompts = place.work / "whole", {}
    try:
        command = installed()
        for name in names:
            one(place, name).merge_and_unload().save_pretrained(whole / name)
            rows = rows_of(place.text(name, "train"))
            texts = [
                row.get("text") or place.tokenizer.apply_chat_template(row["messages"], tokenize=False) for row in rows
            ]
            prompts[whole / name] = evenly(texts)
        asked = configuration(whole / "asked.yml", place.base, prompts, 2)
        subprocess.run([str(command), str(asked), str(scratch), "--quiet"], check=True, capture_output=True)
    except (RuntimeError, subprocess.CalledProcessError) as error:
        raise ValueError(f"mergekit-moe: {getattr(error, 'stderr', b'') or error}") from error
    finally:
        shutil.rmtree(whole, ignore_errors=True)
    return AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.float32)


def composed(recipe: Recipe) -> Load:
    """Return what composes members with us, with a modelling file where transformers has no class for it."""

    def load(place: Place, names: Sequence[str], scratch: Path) -> Any:
        with Registry(place.work / "home") as registry:
            try:
                registry.compose(names, scratch, recipe)
            except UnsupportedFamilyError:
                registry.compose(names, scratch, recipe.replace(host=REMOTE_CODE))
        return AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.float32, trust_remote_code=True)

    return load


def in_llama(recipe: Recipe, kind: str) -> Load:
    """Return what composes members with us for llama.cpp, in a kind of file that it has."""

    def load(place: Place, names: Sequence[str], scratch: Path) -> Any:
        with Registry(place.work / "home") as registry:
            registry.compose(names, scratch / "moe", recipe)
            path = exported(registry, scratch / "moe", kind)
        return InLlama(path)

    return load


def dense(trunk: str, **options: Any) -> Load:
    """Return what merges whole weights with us."""
    return composed(Recipe(to="dense", trunk=trunk, trunk_options=options))


DUME = Recipe(
    router="ridge", trunk="mean", refine=1, top_k=1, normalize=True, gating="softmax-topk", temperature=1.0,
    host=REMOTE_CODE,
)  # fmt: skip
"""Equation 4 of that paper: the one expert's weight is its softmax over all, in closed form near 1 / their number."""

IN_LLAMA = {f"--to moe in llama.cpp {kind}": in_llama(Recipe(), kind) for kind in KINDS}
"""Rows that are measured if they are asked for: llama.cpp is built first."""

ROWS: dict[str, Load] = {
    "base": lambda place, names, scratch: plain(place),
    "one adapter trained on all domains": joint,
    "average": merged("cat"),
    "sum": merged("cat", 1.0),
    "PEFT linear": merged("linear"),
    "PEFT svd": merged("svd"),
    "PEFT ties": merged("ties_svd", density=0.5),
    "PEFT dare": merged("dare_linear_svd", density=0.5),
    "PEFT Arrow top 1": arrow(1),
    "PEFT Arrow top 3": arrow(3),
    "mergekit-moe": mergekit,
    "--to dense --trunk mean": dense("mean"),
    "--to dense --trunk ties": dense("ties", density=0.8, scale=1.0),
    "--to dense --trunk dare": dense("dare", density=0.8, scale=1.0),
    "--to dense --trunk task-arithmetic": dense("task-arithmetic", scale=0.3),
    "DUME as published": composed(DUME),
    "DUME with weight 1": composed(Recipe(router="ridge", trunk="mean", refine=1, top_k=1, normalize=True)),
    "--router ridge": composed(Recipe(router="ridge")),
    "--to ensemble": composed(Recipe(to="ensemble")),
    "--to moe": composed(Recipe()),
    **IN_LLAMA,
    "--to adapters --top-k 1": composed(Recipe(to="adapters", top_k=1)),
    "--to adapters --no-base-member": composed(Recipe(to="adapters", no_base_member=True)),
    "--to adapters": composed(Recipe(to="adapters")),
}
