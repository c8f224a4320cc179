"""reg list."""

from typing import Literal

import click

from cli.options import unique_pairs
from cli.registered import version_document
from cli.session import Session, as_json, pass_session, print_json, print_table


@click.command("list")
@click.option("--kind", type=click.Choice(["expert", "base"]), metavar="KIND", help="Only one kind: expert or base.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="K=V",
    help="Only versions with this tag (repeatable).",
    callback=unique_pairs("K=V"),
)
@click.option("--all", "everything", is_flag=True, help="Those opted out too.")
@as_json
@pass_session
def list_(
    session: Session,
    kind: Literal["expert", "base"] | None,
    tags: dict[str, str],
    everything: bool,
    as_json: bool,
) -> None:
    """List what is registered."""
    with session.registry() as registry:
        versions = registry.versions(kind=kind, everything=everything, tags=tags)
    if as_json:
        print_json([version_document(version) for version in versions])
        return
    print_table(
        ("version", "kind", "digest", "parameters", "tokens", "aliases", "tags", "state"),
        [
            (
                version.ref,
                version.kind,
                version.digest[:12],
                f"{version.parameters:,}",
                next((f"{s.tokens:,}" for s in version.statistics), ""),
                ",".join(version.aliases),
                ",".join(f"{key}={value}" for key, value in version.tags.items()),
                version.state,
            )
            for version in versions
        ],
    )
