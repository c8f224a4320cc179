"""The same claims on a GPU: Grams, the registration pass, a whole registration, and composing experts of an 8B shape.

Gives no rows where torch has no CUDA device. Both sides wait for the device.
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks import random_experts
from benchmarks.alternating import Comparison, Setup, alternate, run
from benchmarks.compose_copy import copy
from benchmarks.random_experts import fill, text_of
from benchmarks.registration_pass import SHAPES, make_checkpoint
from registry import PassSettings, Recipe, Registry
from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.maths.digits import Splitter
from registry.maths.gram import GramAccumulator
from registry.progress import silent
from registry.runtime.loading import load_model
from registry.statistics.forward_pass import take_statistics
from registry.statistics.site_sums import Batches

WIDTHS = (2048, 4096)
TOKENS = 16_384
ROUNDS = 9
EIGHT_B = {
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
"""Three of the 32 layers of Llama-3.1-8B."""

EXPERTS = 3


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparisons; none without a GPU."""
    if not torch.cuda.is_available():
        return []
    return [*grams(), registration(scratch), add_expert(scratch), *composing(scratch)]


def waited(work: Callable[[], object]) -> Callable[[], None]:
    """Return `work` and the wait for the device."""

    def both() -> None:
        work()
        torch.cuda.synchronize()

    return both


def grams() -> list[Comparison]:
    """Return the exact Gram against products of bfloat16 and of float32."""
    found = []
    for width in WIDTHS:
        x = torch.randn((TOKENS, width), device="cuda")
        sums = GramAccumulator(torch.full((width,), 12, dtype=torch.int16, device="cuda"), 16, Splitter())
        for name in ("bfloat16", "float32"):
            rows = x.to(getattr(torch, name))
            claim = f"exact 16-bit Gram on the GPU against {name}, H = {width:,}, T = {TOKENS:,}"
            sides = waited(partial(sums.add, [x])), waited(partial(torch.mm, rows.T, rows))
            found.append(alternate(claim, *sides, ROUNDS, note="from float32, a batch of a running sum"))
    return found


def registration(scratch: Path) -> Comparison:
    """Return the pass at the 1B shape against a bare forward pass."""
    shape = SHAPES[-1]
    folder = make_checkpoint(shape, scratch / "one")
    checkpoint, model = Checkpoint(folder), load_model(folder, "bfloat16", "cuda")
    settings = PassSettings(device="cuda")
    windows = TOKENS // settings.seq_len
    ids = torch.randint(0, shape.config["vocab_size"], (windows, settings.seq_len), dtype=torch.int32)
    calibration = Calibration(ids, torch.full((windows,), settings.seq_len, dtype=torch.int32), "random")

    def ours() -> None:
        take_statistics(checkpoint, "", model, calibration, settings, progress=silent)

    def bare() -> None:
        with torch.no_grad():
            for _, tokens, _ in Batches(calibration, settings.batch_size).after(0):
                model(input_ids=tokens.to("cuda"), use_cache=False)

    claim = f"registration pass on the GPU against a bare forward pass, {shape.name}"
    return alternate(claim, waited(ours), waited(bare), 3, target=1.15, note=f"bfloat16, {TOKENS:,} tokens")


def add_expert(scratch: Path) -> Comparison:
    """Return registering an expert of the 1B shape with its pass on the GPU against the same on the processor."""
    folder, text = random_experts.make_checkpoint(scratch / "late", 0), scratch / "text.txt"
    text.write_text("\n".join([text_of(1)] * 60), encoding="utf-8")
    homes = {device: scratch / f"home-{device}" for device in ("cuda", "cpu")}

    def register(device: str) -> None:
        with Registry(homes[device]) as registry:
            settings = PassSettings(device=device)
            registry.add_expert("late", folder, data=[text], settings=settings, allow_unrelated=True)

    gone = Setup(partial(shutil.rmtree, homes["cuda"], True), partial(shutil.rmtree, homes["cpu"], True))
    sides = partial(register, "cuda"), partial(register, "cpu")
    note = f"bfloat16, {PassSettings().tokens:,} tokens"
    claim = "`add_expert` of 1.2B with the GPU against the processor"
    return alternate(claim, *sides, 2, warm_up=0, setup=gone, note=note)


def composing(scratch: Path) -> list[Comparison]:
    """Return composing at the 8B shape against copying what is written."""
    home, names = fill(scratch, EXPERTS, **EIGHT_B)
    out, whole, to = scratch / "moe", scratch / "whole", scratch / "copy"
    gone = Setup(before_ours=partial(shutil.rmtree, out, True), before_other=partial(shutil.rmtree, to, True))
    found = []
    with Registry(home) as registry:
        for trunk, target in (("mean", 1.2), ("regmean", 3.0)):
            recipe = Recipe(trunk=trunk, router="ridge")
            registry.compose(names, whole, recipe, force=True)
            claim = f"compose with a GPU against `cp -r` and `sync`, 8B shapes, trunk {trunk}"
            sides = partial(registry.compose, names, out, recipe), partial(copy, whole, to)
            note = f"{EXPERTS} experts, {EIGHT_B['num_hidden_layers']} layers"
            found.append(alternate(claim, *sides, 2, target=target, warm_up=0, setup=gone, note=note))
    return found


if __name__ == "__main__":
    run(measure)
