"""reg check."""

from pathlib import Path
from typing import Any

import click

from cli.option_groups import STATISTICS, GroupedCommand, typed_words
from cli.options import adapter_base, allow_unrelated, calibration, checkpoint, pass_settings, remote_code, tokenizer_of
from cli.output import as_json, next_step, print_json, print_line, print_table
from cli.session import Session, pass_session
from cli.version_output import overlap_documents, overlap_lines, relation_documents, relation_lines
from registry.families.sites import COUNTS


@click.command(
    cls=GroupedCommand,
    headings=STATISTICS,
    examples=("reg check checkpoints/math", "reg check checkpoints/math --data math.jsonl"),
)
@checkpoint
@calibration
@adapter_base
@allow_unrelated
@remote_code
@tokenizer_of
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
    tokenizer_of: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Report on CKPT as add-expert would, without registering it.

    With --data, or if CKPT carries statistics, its overlaps with the registered experts are included.
    """
    with session.registry(create=True) as registry:
        report = registry.check(
            checkpoint,
            data=data,
            settings=pass_settings(**settings),
            base=base,
            allow_unrelated=allow_unrelated,
            remote_code=remote_code,
            tokenizer_of=tokenizer_of,
        )
    if as_json:
        overlaps = None if report.overlaps is None else overlap_documents(report.overlaps)
        print_json(vars(report) | {"relations": relation_documents(report.relations), "overlaps": overlaps})
        return
    rows = [
        ("family", f"{report.family}, {report.dtype}, {report.parameters:,} parameters"),
        ("hosts", ", ".join(report.hosts)),
        ("tokenizer", "not comparable" if report.tokens is None else f"{report.tokens:,} tokens"),
        *(("note", note) for note in report.notes),
        *(("weights", line) for line in relation_lines(report.relations) or ["no registered version has this shape"]),
    ]
    if report.text is not None:
        carried = not data and not report.text.startswith("calibration.")
        rows.append(("text", f"{report.text}, of the statistics in the checkpoint" if carried else report.text))
    if report.overlaps is None:
        text = "it needs statistics: --sites all" if settings["sites"] == COUNTS else "give its text with --data"
        rows.append(("overlap", f"not known: {text}"))
    elif not report.overlaps:
        rows.append(("overlap", "no registered expert to compare with"))
    else:
        rows += [("overlap", f"{overlap.routing:.0%} with {overlap.ref}") for overlap in report.overlaps]
    print_table(("checkpoint", report.label), rows)
    for line in overlap_lines(report.overlaps or ()):
        print_line(line)
    same = [one.ref for one in report.relations if one.kind == "expert" and one.verdict == "same weights"]
    if same and not data:  # with text it may be registered again, to take other statistics
        next_step(["show", same[0]])
    else:
        next_step(["add-expert", "NAME", *typed_words(click.get_current_context())])
