"""Files of a checkpoint that were changed: weights, index, configuration, adapter, tokenizer, statistics, training."""

import json
from pathlib import Path

from registry import Registry
from registry.checkpoint import Checkpoint
from registry.checkpoint.version_files import parse_training
from registry.statistics.collect import collect_to, text_calibration
from tests.fuzz.fuzz_world import SETTINGS, World
from tests.fuzz.reading import Act, checked, put
from tests.mutations import Draw, changed_bytes, changed_json, changed_safetensors

SMALL = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"),
    *("added_tokens.json", "vocab.json", "chat_template.json", "chat_template.jinja"),
)


def _with_changed(world: World, draw: Draw, given: Path, name: str) -> Path:
    """Return a copy of a folder with one file changed."""
    folder, known = world.copy(given), given / name
    change = {".safetensors": changed_safetensors, ".jinja": changed_bytes}.get(known.suffix, changed_json)
    put(folder / name, change(draw, known.read_bytes() if known.is_file() else b'{"a": 1}'))
    return folder


def safetensors(world: World, draw: Draw) -> Act:
    """Return a look at weights whose file was changed."""
    return checked(world, draw, _with_changed(world, draw, world.bare, "model.safetensors"))


def index(world: World, draw: Draw) -> Act:
    """Return a look at an index of shards that was changed, or at a shard that is another."""
    folder = _with_changed(world, draw, world.sharded, "model.safetensors.index.json")
    if draw.random() < 0.2:
        shard = draw.choice(sorted(folder.glob("*.safetensors")))
        put(shard, changed_safetensors(draw, shard.read_bytes()))
    return checked(world, draw, folder)


def config(world: World, draw: Draw) -> Act:
    """Return a look at a config.json that was changed."""
    given = draw.choice((world.bare, world.carried, world.mixture))
    folder = _with_changed(world, draw, given, "config.json")
    if given is world.mixture or draw.random() < 0.6:
        return checked(world, draw, folder)
    words = [world.text] if draw.random() < 0.5 else []  # without, the expert writes its own text
    return lambda: collect_to(folder, world.scratch / "out", data=words, settings=SETTINGS)


def adapter(world: World, draw: Draw) -> Act:
    """Return a look at an adapter whose configuration or weights were changed."""
    name = "adapter_config.json" if draw.random() < 0.7 else "adapter_model.safetensors"
    return checked(world, draw, _with_changed(world, draw, world.adapter, name), "base")


def tokenizer(world: World, draw: Draw) -> Act:
    """Return a look at the tokenizer's files, of which one was changed, and a tokenizing by it."""
    folder = _with_changed(world, draw, draw.choice((world.bare, world.counted)), draw.choice(SMALL))
    data = draw.choice((world.text, world.talk))

    def act() -> None:
        with Registry(world.home, create=False) as registry:
            registry.check(folder)
        text_calibration(Checkpoint(folder), [data], SETTINGS)

    return act


def statistics(world: World, draw: Draw) -> Act:
    """Return a look at a checkpoint whose statistics were changed; those of conversations have `content_counts`."""
    given = draw.choice((world.carried, world.carried, world.counted))
    return checked(world, draw, _with_changed(world, draw, given, "statistics.safetensors"))


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
