"""Files of a checkpoint that were changed: weights, index, configuration, adapter, tokenizer, statistics, training."""

import json

from registry import Registry
from registry.checkpoint import Checkpoint
from registry.checkpoint.training_record import parse_training
from registry.statistics.collect import collect_to, text_calibration
from tests.fuzz.fuzz_world import SETTINGS, World
from tests.fuzz.reading import Act, checked, put
from tests.mutations import Draw, changed_json, changed_safetensors

SMALL = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"),
    *("added_tokens.json", "vocab.json", "chat_template.json"),
)


def safetensors(world: World, draw: Draw) -> Act:
    """Return a look at weights whose file was changed."""
    folder = world.copy(world.bare)
    put(folder / "model.safetensors", changed_safetensors(draw, (world.bare / "model.safetensors").read_bytes()))
    return checked(world, draw, folder)


def index(world: World, draw: Draw) -> Act:
    """Return a look at an index of shards that was changed, or at a shard that is another."""
    folder = world.copy(world.sharded)
    name = "model.safetensors.index.json"
    put(folder / name, changed_json(draw, (world.sharded / name).read_bytes()))
    if draw.random() < 0.2:
        shard = draw.choice(sorted(folder.glob("*.safetensors")))
        data = shard.read_bytes()
        put(shard, changed_safetensors(draw, data))
    return checked(world, draw, folder)


def config(world: World, draw: Draw) -> Act:
    """Return a look at a config.json that was changed."""
    folder = world.copy(draw.choice((world.bare, world.carried)))
    put(folder / "config.json", changed_json(draw, (world.bare / "config.json").read_bytes()))
    if draw.random() < 0.6:
        return checked(world, draw, folder)
    words = [world.text] if draw.random() < 0.5 else []  # without, the expert writes its own text
    return lambda: collect_to(folder, world.scratch / "out", data=words, settings=SETTINGS)


def adapter(world: World, draw: Draw) -> Act:
    """Return a look at an adapter whose configuration or weights were changed."""
    folder = world.copy(world.adapter)
    if draw.random() < 0.7:
        put(folder / "adapter_config.json", changed_json(draw, (world.adapter / "adapter_config.json").read_bytes()))
    else:
        name = "adapter_model.safetensors"
        put(folder / name, changed_safetensors(draw, (world.adapter / name).read_bytes()))
    return checked(world, draw, folder, "--base", "base")


def tokenizer(world: World, draw: Draw) -> Act:
    """Return a look at the tokenizer's files, of which one was changed, and a tokenizing by it."""
    folder = world.copy(world.bare)
    name = draw.choice(SMALL)
    known = (world.bare / name).read_bytes() if (world.bare / name).is_file() else b'{"a": 1}'
    put(folder / name, changed_json(draw, known))

    def act() -> None:
        checkpoint = Checkpoint(folder)
        with Registry(world.home, create=False) as registry:
            registry.check(folder)
        text_calibration(checkpoint, [world.text], SETTINGS)

    return act


def statistics(world: World, draw: Draw) -> Act:
    """Return a look at a checkpoint whose statistics.safetensors was changed."""
    given = draw.choice((world.carried, world.carried, world.counted))
    folder = world.copy(given)
    name = "statistics.safetensors"
    put(folder / name, changed_safetensors(draw, (given / name).read_bytes()))
    return checked(world, draw, folder)


def training(world: World, draw: Draw) -> Act:
    """Return a reading of an expert's record of its training that was changed."""
    document = {
        "format": 1,
        "training": {"steps": 5, "tokens": 640, "trunk": "frozen", "warmup": None},
        "held_out": {"before": 5.5, "after": 4.5},
        "every": 2,
        "loss": [5.25, 4.75, 4.5],
    }
    changed = changed_json(draw, json.dumps(document).encode())
    return lambda: parse_training(changed, "x@1/expert_training.json").at
