"""A registry of random experts of a real shape, for benchmarks of composing."""

import os
import shutil
from pathlib import Path

from benchmarks.compose_memory import CONFIG, make_checkpoint
from registry import PassSettings, Registry

HOMES = "REG_BENCH_HOMES"
"""Environment variable: a folder in which registries stay for the next benchmark that asks for the same."""


def fill(scratch: Path, experts: int, **shape: int) -> tuple[Path, list[str]]:
    """Register a base model and experts with the statistics of a few tokens; return the home and the experts' names.

    Args:
        scratch: where.
        experts: how many.
        shape: keys of a Llama's config.json, in place of those of Llama-3.2-1B.
    """
    for key, value in shape.items():
        setattr(CONFIG, key, value)
    names = [f"expert{number}" for number in range(experts)]
    home = scratch / "home"
    if HOMES in os.environ:
        home = Path(os.environ[HOMES], "-".join(map(str, (experts, *shape.values()))))
        if home.exists():
            return home, names
    text = scratch / "text.txt"
    text.write_text("to be or not to be that is the question " * 400)
    with Registry(home) as registry:
        for seed, name in enumerate(("base", *names)):
            folder = make_checkpoint(scratch / "checkpoint", seed)
            if name == "base":
                registry.add_base(name, folder)
            else:
                settings = PassSettings(tokens=256, seq_len=128, batch_size=2, folds=1)
                registry.add_expert(name, folder, data=[text], settings=settings, allow_unrelated=True)
            shutil.rmtree(folder)
    return home, names
