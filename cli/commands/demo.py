"""reg demo."""

from pathlib import Path

import click

from cli.option_groups import GroupedCommand
from cli.options import file_path
from cli.output import as_json, print_json, print_table, progress
from cli.score_tables import print_tables, tables_of
from registry.demo.demo_folder import check_demo_folder


@click.command(cls=GroupedCommand, examples=("reg demo", "reg demo --out demo --force"))
@click.option(
    "--out",
    type=file_path,
    metavar="DIR",
    default=Path("demo"),
    show_default=True,
    help="The folder to write to.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Replace an earlier demo in --out; other files there stay.",
)
@as_json
def demo(out: Path, force: bool, as_json: bool) -> None:
    """Train a tiny base and three experts, compose and evaluate them, check the guarantees. Takes about a minute."""
    check_demo_folder(out)
    from registry.demo import run_demo

    result = run_demo(out, progress(), force=force)
    if as_json:
        document = {key: value for key, value in vars(result).items() if key not in ("orders", "rows")}
        orders = {",".join(order): digest for order, digest in result.orders.items()}
        rows = [row.document() for row in result.rows]
        print_json(document | {"rows": rows, "orders": orders})
        return
    print_tables(tables_of(result.rows, list(result.domains)))
    click.echo("\nSchedule-invariant: three orders of registration, one folder (SHA-256 over every byte)")
    print_table(("order", "composed folder"), [(", ".join(order), digest) for order, digest in result.orders.items()])
    same = len(set(result.orders.values())) == 1
    click.echo(f"equal: {'yes' if same else 'NO'}")
    click.echo(f"\nExact opt-out: {result.withdrawn} opted out and purged, compared with never registered")
    print_table(
        ("registry", "composed folder"),
        [("after opt-out", result.opted_out), ("never registered", result.never_registered)],
    )
    click.echo(f"equal: {'yes' if result.opted_out == result.never_registered else 'NO'}")
    click.echo(f"\n{out} contains the checkpoints, the text, the registry and the composition, to try commands on:")
    click.echo(f"  reg --home {out}/registry list")
    if not same or result.opted_out != result.never_registered:
        raise click.ClickException("a guarantee does not hold")
