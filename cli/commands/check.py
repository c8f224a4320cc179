"""reg check."""

from pathlib import Path
from typing import Any

import click

from cli.options import adapter_base, allow_unrelated, calibration, checkpoint, pass_settings, remote_code
from cli.session import Session, as_json, pass_session, print_json, print_table
from cli.version_output import overlap_documents, overlap_lines, relation_documents, relation_lines


@click.command()
@checkpoint
@calibration
@adapter_base
@allow_unrelated
@remote_code
@as_json
@pass_session
def check(
    session: Session,
    /,
    checkpoint: str,
    data: tuple[Path, ...],
    base: str | None,
    allow_unrelated: bool,
    remote_code: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Say what add-expert would say of CKPT, and register nothing.

    With --data, or where CKPT carries statistics, also how far it overlaps with the registered experts.
    """
    with session.registry(create=True) as registry:
        found = registry.check(
            checkpoint,
            data=data,
            settings=pass_settings(**settings),
            base=base,
            allow_unrelated=allow_unrelated,
            remote_code=remote_code,
        )
    if as_json:
        overlaps = None if found.overlaps is None else overlap_documents(found.overlaps)
        print_json(vars(found) | {"relations": relation_documents(found.relations), "overlaps": overlaps})
        return
    rows = [
        ("family", f"{found.family}, {found.dtype}, {found.parameters:,} parameters"),
        ("hosts", ", ".join(found.hosts)),
        ("tokenizer", "none that can be compared" if found.tokens is None else f"{found.tokens:,} tokens"),
        *(("note", note) for note in found.notes),
        *(("weights", line) for line in relation_lines(found.relations) or ["nothing of this shape is registered"]),
    ]
    if found.overlaps is None:
        rows.append(("overlap", "not known: name its text with --data"))
    elif not found.overlaps:
        rows.append(("overlap", "no registered expert to compare with"))
    else:
        rows += [("overlap", f"{overlap.routing:.0%} with {overlap.ref}") for overlap in found.overlaps]
    print_table(("checkpoint", found.label), rows)
    for line in overlap_lines(found.overlaps or ()):
        click.echo(line)
