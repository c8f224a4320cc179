"""Files of what was trained together that were changed: parts and routers of soups, masks and rows of SIMoEs."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save

from registry import Recipe, Registry
from registry.checkpoint.trained_files import pack_document
from registry.methods.simoe.versions import MASK, ROW, SIMOE_ARRAYS, SIMOE_FILE
from registry.methods.soup.versions import SOUP_FILE, SOUP_ROUTER, SoupRouter, pack_router
from tests.fuzz.fuzz_world import EXPERTS, SETTINGS, SPARSE, World, soup_router
from tests.fuzz.reading import CLI_SHARE, Act, check_finite, cli, put
from tests.mutations import Draw, changed_json, changed_safetensors

ONE_WEIGHT: tuple[dict[str, float], ...] = ({"a": 1.0}, {"c": 1.0}, {"a": -1.0}, {"a": float("nan")})
WEIGHTS: tuple[dict[str, float], ...] = (*ONE_WEIGHT, {"b": 3, "a": 1}, {"a": 1e308, "b": 1e308}, {})


def soup(world: World, draw: Draw) -> Act:
    """Return a registration of a soup of which a file was changed, and an instantiation of it."""
    shared, home, out = world.copy(world.soup), world.copied_home(), world.scratch / "out"
    what = draw.random()
    if what < 0.35:
        put(shared / SOUP_FILE, changed_json(draw, (world.soup / SOUP_FILE).read_bytes()))
    elif what < 0.6:
        put(shared / SOUP_ROUTER, changed_safetensors(draw, (world.soup / SOUP_ROUTER).read_bytes()))
    else:
        put(shared / SOUP_ROUTER, pack_router(_extreme_router(draw)))
    theirs = [world.copy(world.soup.with_name(f"soup-{n}"), f"expert-{n}") for n, _ in enumerate(EXPERTS, start=1)]
    of_expert, weights = draw.random() < 0.2, draw.choice(WEIGHTS)
    like, by_hand = draw.random() < 0.3, draw.random() < CLI_SHARE

    def act() -> None:
        with Registry(home, create=False) as registry:
            digest = registry.add_base("mix", shared).version.digest
            for number, folder in enumerate(theirs, start=1):
                own = pack_document({"soup": digest, "number": number})
                put(folder / SOUP_FILE, changed_json(draw, own) if of_expert else own)
                registry.add_expert(f"mix-{number}", folder, data=[world.text], settings=SETTINGS)
            if not by_hand:
                registry.instantiate("mix", out, **{"like": [world.text]} if like else {"weights": weights})
        if by_hand:
            words = ",".join(f"{name}={weight}" for name, weight in weights.items())
            cli(home, "instantiate", "mix", "--weights", words, "--out", out)

    return act


def simoe(world: World, draw: Draw) -> Act:
    """Return a registration of an expert of which a file was changed, and a composition with others of its training."""
    whole = draw.choice(world.sparse)
    folder, home, out = world.copy(whole), world.copied_home(), world.scratch / "out"
    what = draw.random()
    if what < 0.35:
        put(folder / SIMOE_FILE, changed_json(draw, (whole / SIMOE_FILE).read_bytes()))
    elif what < 0.6:
        put(folder / SIMOE_ARRAYS, changed_safetensors(draw, (whole / SIMOE_ARRAYS).read_bytes()))
    elif what < 0.7:
        document = json.loads((whole / SIMOE_FILE).read_bytes())
        place = draw.choice(("prompt_tokens", "experts", "number"))
        put(folder / SIMOE_FILE, json.dumps(document | {place: draw.choice((1, 3, 2**31, 2**53, 2**53 + 1))}).encode())
    else:
        put(folder / SIMOE_ARRAYS, _extreme_mask_or_row(draw, whole / SIMOE_ARRAYS))
    experts, by_hand = ["fuzz", *draw.sample(SPARSE, draw.randrange(3))], draw.random() < CLI_SHARE

    def act() -> None:
        if by_hand:
            cli(home, "add-expert", "fuzz", folder, "--data", world.text, "--tokens", 64, "--seq-len", 16)
            words = ("compose", "--experts", ",".join(experts), "--to", "simoe", "--base", "base", "--out", out)
            cli(home, *words)
        else:
            with Registry(home, create=False) as registry:
                registry.add_expert("fuzz", folder, data=[world.text], settings=SETTINGS)
                registry.compose(experts, out, Recipe(to="simoe"), base="base")
        check_finite(out)

    return act


def _extreme_router(draw: Draw) -> SoupRouter:
    """Return a router of numbers from within float32 that nobody trains."""
    router = soup_router(np.random.default_rng(draw.randrange(100)))
    part = getattr(router, draw.choice(sorted(vars(router))))
    part[...] *= np.float32(draw.choice((0.0, 1e-45, 1e20, 3e38)))
    if draw.random() < 0.3:
        part.flat[0] = draw.choice((float("nan"), float("inf"), -3e38))
    return router


def _extreme_mask_or_row(draw: Draw, path: Path) -> bytes:
    """Return the arrays of an expert with a mask or a row that no training gives."""
    tensors = load_file(path)
    if draw.random() < 0.5:
        tensors[MASK] = torch.full_like(tensors[MASK], draw.choice((0, 1, 128, 255)))
    row = tensors[ROW] * draw.choice((0.0, 1e-45, 1e20, 3e38))
    if draw.random() < 0.4:
        row[draw.randrange(len(row))] = draw.choice((float("nan"), float("inf"), -3e38))
    return save(tensors | {ROW: row}, {"format": "pt"})
