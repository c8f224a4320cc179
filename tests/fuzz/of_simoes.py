"""Files of an expert of a SIMoE that were changed: its part in the training, and its mask, row and shared weights."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save

from registry import Registry, SimoeRecipe
from registry.checkpoint.simoe_files import MASK, ROW, SIMOE_ARRAYS, SIMOE_FILE
from tests.fuzz.fuzz_world import SPARSE, World
from tests.fuzz.reading import CLI_SHARE, Act, cli, put
from tests.mutations import Draw, changed_json, changed_safetensors


def simoe(world: World, draw: Draw) -> Act:
    """Return a registration of an expert of which a file was changed, and a composition with others of its training."""
    whole = draw.choice(world.sparse)
    folder, home = world.copy(whole), shutil.copytree(world.home, world.scratch / "home")
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
        put(folder / SIMOE_ARRAYS, _extreme(draw, whole / SIMOE_ARRAYS))
    others, by_hand = draw.sample(SPARSE, draw.randrange(3)), draw.random() < CLI_SHARE
    out = world.scratch / "out"

    def act() -> None:
        if by_hand:
            cli(world, "add-expert", "fuzz", folder, home=home)
            cli(
                world,
                "compose",
                "--experts",
                ",".join(["fuzz", *others]),
                "--to",
                "simoe",
                "--base",
                "base",
                "--out",
                out,
                home=home,
            )
            return
        with Registry(home, create=False) as registry:
            registry.add_expert("fuzz", folder)
            registry.compose(["fuzz", *others], out, SimoeRecipe(), base="base")
        for name, tensor in load_file(out / "model.safetensors").items():
            if not bool(torch.isfinite(tensor).all()):
                raise AssertionError(f"{name} has a value that is not finite")

    return act


def _extreme(draw: Draw, path: Path) -> bytes:
    """Return the arrays with a mask or a row that no training gives."""
    tensors = load_file(path)
    if draw.random() < 0.5:
        tensors[MASK] = torch.full_like(tensors[MASK], draw.choice((0, 1, 128, 255)))
    row = tensors[ROW] * draw.choice((0.0, 1e-45, 1e20, 3e38))
    if draw.random() < 0.4:
        row[draw.randrange(len(row))] = draw.choice((float("nan"), float("inf"), -3e38))
    return save(tensors | {ROW: row}, {"format": "pt"})
