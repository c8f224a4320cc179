"""Commands that register or examine checkpoints: add-expert, add-experts, add-base, check, collect."""

from pathlib import Path
from typing import Any

import click

from cli.errors import CliError
from cli.next_steps import after_registration
from cli.option_groups import STATISTICS, command, typed_words
from cli.options import file, file_path, flag, integer, option
from cli.output import done, next_step, print_line, print_table, printed_json, progress, reg_line
from cli.session import Session, pass_session
from cli.shared_options import (
    annotations,
    calibration,
    checkpoint,
    cluster_options,
    connected,
    examined,
    keep_calibration,
    pass_options,
    remote_code,
    take,
)
from cli.version_output import overlap_documents, overlap_lines, print_registration, relation_documents, relation_lines
from registry import registration
from registry.calibration.corpus import check_files
from registry.checkpoint.model_files import check_checkpoint
from registry.families.sites import COUNTS, TOKEN_COUNTS
from registry.io.display import counted, short
from registry.io.model_folder import check_creatable
from registry.statistics.settings import PassSettings


@command(
    "reg add-expert math checkpoints/math --data math.jsonl",
    "reg add-expert math hf://ORG/math-expert",
    "reg add-expert poems adapters/poems --base base --data poems.jsonl",
    headings=STATISTICS,
)
@click.argument("name")
@checkpoint
@calibration
@cluster_options
@annotations
@examined
@file(
    "--signers FILE", "Register only what one of these allowed signers signed (reg push-expert --sign).", advanced=True
)
@keep_calibration
@pass_session
def add_expert(session: Session, /, name: str, checkpoint: str, data: tuple[Path, ...], **settings: Any) -> None:
    """Register CKPT as the next version of expert NAME.

    CKPT is a Hugging Face folder or hf://ORG/NAME[@REVISION]: a whole model, or a PEFT adapter, which stays one if its
    base model is registered, and is merged into it if not.

    Statistics are collected on --data, else on a calibration.* file in CKPT. Without both, the statistics in CKPT (from
    reg collect) are used, and the options of the pass have no effect. Without these too, the expert generates its own
    calibration text. With --sites counts, tokens are only counted, and no model runs unless it generates the text.
    """
    with connected(settings) as cluster, session.registry(create=True, cluster=cluster) as registry:
        passes = take(PassSettings, settings)
        registration = registry.add_expert(name, checkpoint, data=data, settings=passes, **settings)
    labels = [statistics.calibration_label for statistics in registration.version.statistics]
    own = registration.self_sampled or any(label.startswith("calibration.") for label in labels)
    print_registration(registration, carried=not data and not own)


@command(
    "reg add-experts experts.yaml", "OMP_NUM_THREADS=1 reg add-experts experts.yaml --ray local", headings=STATISTICS
)
@click.argument("file", type=file_path, metavar="FILE")
@pass_options
@cluster_options
@pass_session
def add_experts(session: Session, /, file: Path, **settings: Any) -> None:
    """Register the experts that FILE lists, as add-expert does each.

    FILE is YAML: a list of name, checkpoint, and optionally data, license, tags, alias, base, keep_calibration,
    allow_unrelated and remote_code. Paths start from the folder of FILE.

    All are checked before the first is registered. Experts that are registered already are skipped, so that an
    interrupted command goes on where it stopped. With --ray, each expert is one task.
    """
    passes = take(PassSettings, settings)
    registration.read_experts(file, passes)  # before anything is connected to
    with connected(settings) as cluster, session.registry(create=True, cluster=cluster) as registry:
        result = registry.add_experts(file, settings=passes)
    registered = [(name, one.version, one.added) for name, one in result.registered.items()]
    document = {
        "experts": [
            {"name": name, "ref": version.ref, "digest": version.digest, "added": added}
            for name, version, added in registered
        ],
        "failed": [
            {"name": name, "kind": type(error).__name__, "message": error.message, "next": error.hint}
            for name, error in result.failed.items()
        ],
    }
    if not printed_json(document):
        for _, version, added in registered:
            registering = f"registered {version.ref}  {short(version.digest)}"
            done(version.ref, registering if added else f"{version.ref} is registered already")
    if result.failed:
        names = ", ".join(result.failed)
        first = next(iter(result.failed.values()))
        raise CliError(
            f"{counted(len(result.failed), 'expert')} of {len(result.failed) + len(result.registered)} could not be "
            f"registered: {names}; {next(iter(result.failed))}: {first.message}",
            first.hint or reg_line(["add-experts", str(file)]),
            type(first).__name__,
        )
    last = [*result.registered.values()][-1]
    next_step(after_registration(last.version, last.relations, last.overlaps, last.beside))


@command("reg add-base base checkpoints/base --license apache-2.0", "reg add-base base hf://ORG/NAME@REVISION")
@click.argument("name")
@checkpoint
@annotations
@remote_code
@integer("--own-text N", "Let the model write N tokens, and count them (such as 24576).", 0, least=0)
@pass_session
def add_base(session: Session, /, name: str, checkpoint: str, **settings: Any) -> None:
    """Register CKPT, a Hugging Face folder or hf://ORG/NAME[@REVISION], as the next version of base model NAME.

    An adapter is merged into the base model that its configuration names. With --own-text, the model writes text, as
    conversations where its tokenizer has a chat template: a composition --to adapters then sends what no expert knows
    to the base model.
    """
    with session.registry(create=True) as registry:
        registration = registry.add_base(name, checkpoint, **settings)
    print_registration(registration)


@command("reg check checkpoints/math", "reg check checkpoints/math --data math.jsonl", headings=STATISTICS)
@checkpoint
@calibration
@examined
@pass_session
def check(session: Session, /, checkpoint: str, data: tuple[Path, ...], **settings: Any) -> None:
    """Report on CKPT as add-expert would, without registering it.

    With --data, or if CKPT carries statistics, its overlaps with the registered experts are included.
    """
    with session.registry(create=True) as registry:
        passes = take(PassSettings, settings)
        report = registry.check(checkpoint, data=data, settings=passes, **settings)
    overlaps = None if report.overlaps is None else overlap_documents(report.overlaps)
    if printed_json(vars(report) | {"relations": relation_documents(report.relations), "overlaps": overlaps}):
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
        text = "it needs statistics: --sites all" if passes.sites == COUNTS else "give its text with --data"
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
        next_step(["add-expert", "NAME", *typed_words()])


@command("reg collect checkpoints/math --data math.jsonl --out checkpoints/math", headings=STATISTICS)
@checkpoint
@calibration
@cluster_options
@option(
    "--base BASE",
    "The base model of an adapter CKPT: a folder or hf://ORG/NAME. [default: from the adapter's configuration]",
)
@file("--out DIR", "Folder for statistics.safetensors.", required=True)
@flag("--keep-calibration", "Write the calibration tokens to the file too.")
def collect(
    checkpoint: str, data: tuple[Path, ...], base: str | None, out: Path, keep_calibration: bool, **settings: Any
) -> None:
    """Collect the statistics of CKPT next to its data, so that the data need not move.

    No registry is needed. With the resulting file, CKPT registers elsewhere without data or a forward pass. With
    --data and --sites counts no model runs here either.
    """
    check_checkpoint(checkpoint)
    check_files(data)
    check_creatable(out)
    from registry.statistics.collect import collect_to

    with connected(settings) as cluster:
        path, collected = collect_to(
            checkpoint,
            out,
            data=data,
            settings=take(PassSettings, settings),
            keep_calibration=keep_calibration,
            base=base,
            cluster=cluster,
            progress=progress(),
        )
    tokens = dict.fromkeys(collected.sites or [TOKEN_COUNTS], collected.tokens)
    if printed_json(
        {
            "file": path,
            "weights": collected.weights,
            "tokens": tokens,
            "calibration_digest": collected.calibration_digest,
            "calibration_label": collected.calibration_label,
        }
    ):
        return
    done(str(path), f"wrote {path}: {', '.join(tokens)} on {collected.tokens:,} tokens: {collected.calibration_label}")
    registering = ["add-expert", "NAME", checkpoint, *(["--base", base] if base else [])]
    in_place = out.resolve() == Path(checkpoint).resolve()
    next_step(registering if in_place else f"copy {path} into the checkpoint's folder, then {reg_line(registering)}")
