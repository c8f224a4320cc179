"""Command of folders in few bits: quantize."""

from pathlib import Path

import click

from cli.option_groups import command
from cli.options import Choice, composed_path, file, flag, option
from cli.output import done, next_step, printed_json
from cli.session import Session, pass_session
from registry.io.model_folder import require_composed
from registry.quantization.schemes import SCHEMES


@command("reg quantize moe/ --out moe-w4/", "reg quantize moe/ --out moe-w8/ --scheme w8a16")
@click.argument("folder", metavar="FOLDER", type=composed_path)
@file("--out DIR", "A folder that is absent or empty.", required=True)
@option(
    "--scheme SCHEME",
    "w4a16, w8a16 (integers of 4 or 8 bits), or fp8 (float8, activations too).",
    default="w4a16",
    type=Choice([*SCHEMES]),
)
@flag("--nearest", "Round to the nearest, without statistics.")
@pass_session
def quantize(session: Session, folder: Path, out: Path, scheme: str, nearest: bool) -> None:
    """Write a composed FOLDER in few bits, as compressed-tensors, which vLLM and transformers load.

    Integers are made by GPTQ with the Grams of the members' statistics, each expert's by its own, without a pass over
    text. Down projections have none: they, and float8, are rounded to the nearest. Routers and embeddings stay.
    """
    require_composed(folder)  # before a registry is opened
    with session.registry(create=True) as registry:  # none is needed where no statistics are
        made = registry.quantize(folder, out, scheme, statistics=not nearest)
    if printed_json(made):
        return
    by = f", {made.by_statistics} by statistics" if made.by_statistics else ""
    few = f"{made.matrices} matrices in {scheme}{by}, {made.kept} as they were"
    lines = [f"wrote {made.folder}  {few}, {made.nbytes / 1e6:,.1f} MB"]
    for kind, (plain, own) in made.errors.items():
        lines.append(f"  {kind}: outputs are off by {own**0.5:.2%} of their size, to the nearest by {plain**0.5:.2%}")
    done(str(made.folder), *lines)
    next_step(f"vllm serve {made.folder}")
