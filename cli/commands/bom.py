"""Command of bills of materials: bom."""

from pathlib import Path

import click

from cli.option_groups import command
from cli.options import file, file_path, flag
from cli.output import done, next_step, printed_json
from cli.session import Session, pass_session
from cli.version_output import warn_of_opted_out
from registry.io.display import few, printable
from registry.io.model_folder import require_composed


@command("reg bom moe/", "reg bom moe/ --out moe.cdx.json")
@click.argument("folder", metavar="FOLDER", type=file_path)
@file("--out FILE", "Another file. [default: FOLDER/bom.cdx.json]")
@flag("--force", "Replace --out; the file in FOLDER is always replaced.")
@pass_session
def bom(session: Session, folder: Path, out: Path | None, force: bool) -> None:
    """Write the bill of materials of a composed FOLDER, an ML-BOM in CycloneDX 1.7.

    It has the model card, members and base model with digests, licenses and lineage, how they were trained, stored
    evaluations, and the SHA-256 of every file. What is unknown is left out, and printed. Sign afterwards: reg sign and
    reg push --sign sign FOLDER/bom.cdx.json too, and reg push pushes it.
    """
    require_composed(folder)  # before a registry is opened
    with session.registry() as registry:
        written = registry.bom(folder, out, replace=force)
        warn_of_opted_out(registry, [folder])
    if printed_json(written):
        return
    unknown = [f"  unknown: {field} of {printable(few([*models]))}" for field, models in written.unknown.items()]
    done(str(written.file), f"wrote {written.file}  SHA-256 {written.sha256}", *unknown)
    if out is None:
        next_step(["sign", str(folder), "--key", "KEY"])
