"""The 64th expert against the first: registering it, and composing two of 64 against two of two.

Llama of 102 million weights in bfloat16, random. The other experts of the full registry share their arrays (what they
hold makes no difference to what the next one costs), yet each has rows and summaries of its own.
"""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks import random_experts
from benchmarks.alternating import Comparison, Setup, alternate, run
from benchmarks.random_experts import make_checkpoint
from registry import PassSettings, Recipe, Registry
from registry.workspace import content_digest
from store.catalog import NewVersion

EXPERTS = 64
ROUNDS = 4
SHAPE = {
    "vocab_size": 4096,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 11,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
SETTINGS = PassSettings(tokens=2048, seq_len=256, batch_size=4)


def multiply(registry: Registry, name: str, count: int) -> None:
    """Register `count` more experts that have the arrays of `name`."""
    version = registry.resolve(name)
    links = tuple(registry.arrays_of(version))
    kept = {kind: registry.home.summaries / f"{version.digest}.{kind}" for kind in ("weights", "tokens")}
    for number in range(count):
        assert version.content is not None
        content = version.content | {"license": f"license-{number}"}
        digest = content_digest(content, links)
        new = NewVersion(f"other{number}", "expert", digest, content, version.parameters, links, version.statistics)
        registry.catalog.add_version(new)
        for kind, path in kept.items():
            shutil.copyfile(path, path.with_name(f"{digest}.{kind}"))


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparisons."""
    two, names = random_experts.fill(scratch, 2, **SHAPE)
    full = shutil.copytree(two, scratch / "full")
    text, fresh, first = scratch / "text.txt", make_checkpoint(scratch / "fresh", 99), scratch / "first"
    with Registry(full) as registry:
        multiply(registry, names[0], EXPERTS - 1 - len(names))

    def empty() -> None:
        shutil.rmtree(first, ignore_errors=True)
        with Registry(first) as registry:
            registry.add_base("base", scratch / "base")

    def forget() -> None:
        with Registry(full) as registry:
            if "new" in registry.catalog.names():
                registry.opt_out("new", purge=True)

    def register(home: Path) -> None:
        with Registry(home) as registry:
            done = registry.add_expert("new", fresh, data=[text], settings=SETTINGS, allow_unrelated=True)
        assert done.added

    def compose(home: Path, out: Path) -> None:
        with Registry(home) as registry:
            registry.compose(names, out, Recipe(router="ridge"))

    make_checkpoint(scratch / "base", 0)
    of = f"{SETTINGS.tokens:,} tokens, 102M weights"
    sides = partial(register, full), partial(register, first)
    claim = f"registering the {EXPERTS}th expert against the first"
    found = [alternate(claim, *sides, ROUNDS, target=1.05, setup=Setup(forget, empty), note=of)]
    outs = scratch / "of-many", scratch / "of-two"
    gone = [partial(shutil.rmtree, out, True) for out in outs]
    sides = partial(compose, full, outs[0]), partial(compose, two, outs[1])
    claim = f"composing 2 of {EXPERTS} against 2 of 2"
    found.append(alternate(claim, *sides, ROUNDS, target=1.1, setup=Setup(gone[0], gone[1]), note="102M"))
    return [replace(one, ours_peak=None, other_peak=None) for one in found]


if __name__ == "__main__":
    run(measure)
