"""reg add-experts."""

from pathlib import Path
from typing import Any

import click

from cli.cluster import cluster_options, connected
from cli.errors import CliError
from cli.next_steps import after_registration
from cli.option_groups import STATISTICS, GroupedCommand
from cli.options import file_path, pass_options, pass_settings
from cli.output import as_json, count, done, next_step, print_json, reg_line, short
from cli.session import Session, pass_session
from registry import registration


@click.command(
    cls=GroupedCommand,
    headings=STATISTICS,
    examples=("reg add-experts experts.yaml", "OMP_NUM_THREADS=1 reg add-experts experts.yaml --ray local"),
)
@click.argument("file", type=file_path, metavar="FILE")
@pass_options
@cluster_options
@as_json
@pass_session
def add_experts(
    session: Session, /, file: Path, ray: str | None, num_gpus: float | None, as_json: bool, **settings: Any
) -> None:
    """Register the experts that FILE lists, as add-expert does each.

    FILE is YAML: a list of name, checkpoint, and optionally data, license, tags, alias, base, keep_calibration,
    allow_unrelated and remote_code. Paths start from the folder of FILE.

    All are checked before the first is registered. Experts that are registered already are skipped, so that an
    interrupted command goes on where it stopped. With --ray, each expert is one task.
    """
    registration.read_experts(file, pass_settings(**settings))  # before anything is connected to
    with connected(ray, num_gpus) as cluster, session.registry(create=True, cluster=cluster) as registry:
        result = registry.add_experts(file, settings=pass_settings(**settings))
    if as_json:
        print_json(
            {
                "experts": [
                    {"name": name, "ref": one.version.ref, "digest": one.version.digest, "added": one.added}
                    for name, one in result.registered.items()
                ],
                "failed": [
                    {"name": name, "kind": type(error).__name__, "message": error.message, "next": error.hint}
                    for name, error in result.failed.items()
                ],
            }
        )
    for one in () if as_json else result.registered.values():
        ref = one.version.ref
        said = f"registered {ref}  {short(one.version.digest)}" if one.added else f"{ref} is registered already"
        done(ref, said)
    if result.failed:
        names = ", ".join(result.failed)
        first = next(iter(result.failed.values()))
        raise CliError(
            f"{count(len(result.failed), 'expert')} of {len(result.failed) + len(result.registered)} could not be "
            f"registered: {names}; {next(iter(result.failed))}: {first.message}",
            first.hint or reg_line(["add-experts", str(file)]),
            type(first).__name__,
        )
    last = [*result.registered.values()][-1]
    next_step(after_registration(last.version.name, last.relations, last.overlaps))
