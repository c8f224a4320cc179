"""reg collect."""

from pathlib import Path
from typing import Any

import click

from cli.cluster import cluster_options, connected
from cli.option_groups import STATISTICS, GroupedCommand
from cli.options import adapter_base, calibration, checkpoint, file_path, pass_settings
from cli.output import as_json, done, next_step, print_json, progress, reg_line
from registry.calibration.corpus import check_files
from registry.checkpoint.model_files import check_checkpoint
from registry.families.sites import TOKEN_COUNTS
from registry.io.model_folder import check_place


@click.command(
    cls=GroupedCommand,
    headings=STATISTICS,
    examples=("reg collect checkpoints/math --data math.jsonl --out checkpoints/math",),
)
@checkpoint
@calibration
@cluster_options
@adapter_base
@click.option("--out", type=file_path, metavar="DIR", required=True, help="Folder for statistics.safetensors.")
@click.option("--keep-calibration", is_flag=True, help="Write the calibration tokens to the file too.")
@as_json
def collect(
    checkpoint: str,
    data: tuple[Path, ...],
    base: str | None,
    out: Path,
    keep_calibration: bool,
    ray: str | None,
    num_gpus: float | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Collect the statistics of CKPT next to its data, so that the data need not move.

    No registry is needed. With the resulting file, CKPT registers elsewhere without data or a forward pass. With
    --data and --sites counts no model runs here either.
    """
    check_checkpoint(checkpoint)
    check_files(data)
    check_place(out)
    from registry.statistics.collect import collect_to

    with connected(ray, num_gpus) as cluster:
        path, collected = collect_to(
            checkpoint,
            out,
            data=data,
            settings=pass_settings(**settings),
            keep_calibration=keep_calibration,
            base=base,
            cluster=cluster,
            progress=progress(),
        )
    tokens = dict.fromkeys(collected.sites or [TOKEN_COUNTS], collected.tokens)
    if as_json:
        print_json(
            {
                "file": path,
                "weights": collected.weights,
                "tokens": tokens,
                "calibration_digest": collected.calibration_digest,
                "calibration_label": collected.calibration_label,
            }
        )
        return
    done(str(path), f"wrote {path}: {', '.join(tokens)} on {collected.tokens:,} tokens: {collected.calibration_label}")
    registering = ["add-expert", "NAME", checkpoint, *(["--base", base] if base else [])]
    in_place = out.resolve() == Path(checkpoint).resolve()
    next_step(registering if in_place else f"copy {path} into the checkpoint's folder, then {reg_line(registering)}")
