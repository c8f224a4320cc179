"""Recipes and compositions that were changed: folders, receipts, recipe files, and registries that they are made of."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from registry import Recipe, Registry, TestSettings
from registry.composition import read_recipe
from registry.errors import RegError
from registry.io.model_folder import MARKER
from registry.statistics.file import FILE_NAME
from tests.conftest import files_of
from tests.fuzz.fuzz_world import CONTEXT, EXPERTS, SPARSE, World
from tests.fuzz.reading import Act, check_finite, either, put
from tests.mutations import Draw, as_json, changed_bytes, changed_document, changed_json, spam, value
from tests.running import ROOT


def receipts(world: World, draw: Draw) -> Act:
    """Return a check of a receipt that was changed."""
    path = put(world.scratch / "receipt.json", changed_json(draw, world.receipt.read_bytes()))
    folders = [world.composed] * draw.randrange(2)
    return either(draw, world.home, ("receipt", "verify", path), lambda one: one.verify_receipt(path, folders))


def _a_composition(world: World, draw: Draw) -> Path:
    return draw.choice((world.composed, world.by_context, *world.later))


def composition(world: World, draw: Draw) -> Act:
    """Return what is done with a composed folder whose composition.json was changed."""
    whole = _a_composition(world, draw)
    folder = world.copy(whole)
    put(folder / MARKER, changed_json(draw, (whole / MARKER).read_bytes()))
    if draw.random() < 0.4:
        words = ("receipt", "verify", world.receipt, "--folder", folder)
        return either(draw, world.home, words, lambda one: one.verify_receipt(world.receipt, [folder]))
    return either(draw, world.home, ("reproduce", folder), lambda one: one.reproduce(folder))


def recipe_file(world: World, draw: Draw) -> Act:
    """Return a reading of a recipe file or a `composition.json` that was changed."""
    if draw.random() < 0.3:
        valid = changed_json(draw, (_a_composition(world, draw) / MARKER).read_bytes())
    else:
        files = sorted((ROOT / "docs" / "recipes").iterdir())
        valid = changed_bytes(draw, b"experts: {code: 2}\n" + draw.choice(files).read_bytes())
    path = put(world.scratch / "recipe.yaml", spam(draw) if draw.random() < 0.1 else valid)
    words = ("compose", "--recipe", path, "--plan")
    return either(draw, world.home, words, lambda _: read_recipe(path).recipe)


def arrays(world: World, draw: Draw) -> Act:
    """Return a verification and a composition of a registry of which an array was changed."""
    home = world.copied_home()
    folder = draw.choice(sorted((home / "arrays").glob("??/*")))
    file = draw.choice(sorted(folder.iterdir()))
    if file.name == "zarr.json" or draw.random() < 0.5:
        file = folder / "zarr.json"
        put(file, changed_json(draw, file.read_bytes()))
    else:
        put(file, spam(draw) if draw.random() < 0.1 else changed_bytes(draw, file.read_bytes()))
    return _opened(world, draw, home)


def database(world: World, draw: Draw) -> Act:
    """Return the same of a registry whose database was changed."""
    file = world.copied_home() / "catalog.sqlite"
    put(file, changed_bytes(draw, file.read_bytes()))
    return _opened(world, draw, file.parent)


def _opened(world: World, draw: Draw, home: Path) -> Act:
    choices: tuple[tuple[Recipe, Sequence[str], Path], ...] = (
        (Recipe(), EXPERTS, world.composed),
        (CONTEXT, EXPERTS, world.by_context),
        (Recipe(to="simoe"), SPARSE, world.later[-1]),
    )
    recipe, experts, whole = draw.choice(choices)

    def act() -> None:
        out = world.scratch / "out"
        with Registry(home, create=False) as registry:
            problems = registry.verify().problems
            plan = registry.plan(experts, recipe, base="base" if recipe.to == "simoe" else None)
            registry.write(plan, out)
            if problems and files_of(out) != files_of(whole):
                raise AssertionError(f"composed of what is damaged: {problems[0]}")
        if problems:
            raise RegError(problems[0])

    return act


def context(world: World, draw: Draw) -> Act:
    """Return a composition by context: of a recipe that was changed, or with an expert of hostile token counts."""
    fields: dict[str, Any] = {"router": "context", "trunk": "mean"}
    home, folder = world.home, world.counted
    if by_recipe := draw.random() < 0.5:
        fields["trunk"] = draw.choice(("mean", "regmean"))
        for name, likely in CONTEXT_FIELDS.items():
            if draw.random() < 0.4:
                fields[name] = value(draw) if draw.random() < 0.4 else draw.choice(likely)
    else:
        home, folder = world.copied_home(), world.copy(world.counted)
        with safe_open(world.counted / FILE_NAME, framework="pt") as file:
            metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        contents = draw.choice((tensors["content_counts"], hostile := _hostile_counts(draw, tensors["token_counts"])))
        tensors |= {"token_counts": hostile, "content_counts": contents.clone()}
        if draw.random() < 0.7:  # counts of pairs are compared with these
            tensors.pop("pair_counts", None)
        if draw.random() < 0.5:  # counts are compared with calibration that is kept
            del tensors["calibration.ids"], tensors["calibration.lengths"]
        put(folder / FILE_NAME, save(tensors, metadata))

    def act() -> None:
        with Registry(home, create=False) as registry:
            if not by_recipe:
                registry.add_expert("law", folder)
            experts = EXPERTS if by_recipe else (*EXPERTS, "law")
            registry.write(registry.plan(experts, Recipe(**fields)), world.scratch / "out")
        check_finite(world.scratch / "out")

    return act


def ensemble(world: World, draw: Draw) -> Act:
    """Return an evaluation of an ensemble, a SIMoE or adapters of whose config.json a key of its own was changed."""
    whole = draw.choice([folder for folder in world.later if b'"members"' in (folder / "config.json").read_bytes()])
    folder = world.copy(whole)
    config = json.loads((whole / "config.json").read_bytes())
    own = {key: config[key] for key in config if key.startswith("routing") or key in ENSEMBLE_KEYS}
    rest = {key: config[key] for key in config if key not in own}
    changed = changed_document(draw, own)
    put(folder / "config.json", as_json(draw, rest | changed if isinstance(changed, dict) else changed))
    if draw.random() < 0.8:
        (folder / MARKER).unlink()  # beside it, a file that was changed is told of before anything is loaded
    settings = TestSettings(windows=1, seq_len=16, batch_size=1)
    words = ("evaluate", folder, "--data", f"code={world.text}", "--windows", 1, "--seq-len", 16)
    return either(draw, world.home, words, lambda one: one.evaluate([folder], {"code": [world.text]}, settings))


ENSEMBLE_KEYS = {
    *("members", "mixing", "shared_tensors", "auto_map", "model_type", "architectures"),
    *("member_configs", "input_projectors", "output_projectors", "lead", "tie_word_embeddings"),
    *("logit_scale", "logits_scaling", "final_logit_softcapping"),
    *("interpolated_layers", "interpolated_rows", "prompt_tokens", "num_hidden_layers"),
    *("adapted_layers", "adapted_kinds", "adapted_vectors", "context_window", "context_fast", "context_alarm"),
    *("context_pairs", "context_prefix", "context_turns", "context_next", "context_user", "context_form"),
    "context_nobody",
}


CONTEXT_FIELDS: dict[str, tuple[object, ...]] = {
    "context_window": (0, 1, 1e-3, 0.5, 7, 64, 1e6, 1e300, 2**53, "64", "auto", True),
    "vocabulary": ("shared", "mapped", "own", ""),
    "top_k": (1, 2, 3, 0),
    "temperature": (1e-300, 1e-6, 0.05, 1.0, 1e300, 0),
    "dtype": ("float16", "bfloat16", "float32"),
    "host": ("mixtral", "granitemoe", "remote-code", "flex_olmo", "qwen3_moe"),
    "to": ("moe", "dense", "ensemble"),
}
"""Fields of a recipe that context routing reads, and values of each, most of them valid."""


def _hostile_counts(draw: Draw, counts: torch.Tensor) -> torch.Tensor:
    most, size = 2**63 - 1, len(counts)
    rows = draw.choice((1, 2, size - 1, size, size, size, size + 1, 10 * size))
    made = torch.zeros(rows, dtype=torch.int64)
    made[: min(rows, size)] = counts[:rows]
    for _ in range(draw.choice((0, 1, 2, 5))):
        made[draw.randrange(rows)] = draw.choice((0, 1, -1, 2**31, 2**53 + 1, 2**62, most, -most - 1))
    if draw.random() < 0.2:
        made[:] = torch.tensor(draw.choice((0, 1, -1, most, most // rows, most // (rows + 1))))
    return made
