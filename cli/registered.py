"""How versions are printed."""

from typing import TYPE_CHECKING, Any

import click

from cli.session import print_json

if TYPE_CHECKING:
    from registry.registering import Registration
    from store.catalog import VersionRecord


def version_document(version: "VersionRecord") -> dict[str, Any]:
    """Return a version as `--json` shows it."""
    document = {key: value for key, value in vars(version).items() if key != "id"}
    return {"ref": version.ref, **document}


def print_registration(registration: "Registration", as_json: bool) -> None:
    """Print what add-expert or add-base did."""
    version = registration.version
    if as_json:
        print_json(version_document(version) | {"added": registration.added, "self_sampled": registration.self_sampled})
        return
    if not registration.added:
        click.echo(f"{version.ref} holds this content already; nothing was stored")
        return
    click.echo(f"registered {version.ref}  {version.digest}")
    for statistics in version.statistics:
        if registration.self_sampled:
            click.echo("  no data was given, so the expert wrote its own calibration text")
        click.echo(f"  statistics on {statistics.tokens:,} tokens: {statistics.calibration_label}")
        if statistics.saturated:
            click.echo(f"  {statistics.saturated:,} activations exceeded their bound and were held at it")
