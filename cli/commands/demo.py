"""reg demo."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.option_groups import command
from cli.options import file, flag
from cli.output import done, printed_json, progress
from cli.score_tables import print_tables, tables_of
from registry.demo.domains import check_demo_folder
from registry.io.display import counted, short

if TYPE_CHECKING:
    from registry.demo import DemoResult

_MIXED = (
    "    if not self.path: raise ValueError(name) Problem: Solve 4x + 9 = 21 for x. Answer: 4x = 12, so x = 12 / 4 = 3."
)
"""A text that switches from code to math."""


@command("reg demo", "reg demo --out demo --force")
@file("--out DIR", "The folder to write to.", default=Path("demo"))
@flag("--force", "Make a demo again in the folder of an earlier one, with its registry; other files there stay.")
def demo(out: Path, force: bool) -> None:
    """Train a tiny base and three experts, compose and evaluate them, check the guarantees. Takes about two minutes.

    If interrupted, repeat the command: it goes on, with the models that were trained. The registry that it leaves has
    all three experts; the opt-out is tried on a copy.
    """
    check_demo_folder(out)
    from registry.demo import run_demo

    result = run_demo(out, progress(), force=force)
    if not printed_json({"folder": result.folder, **result.document()}):
        print_tables(tables_of(result.rows, list(result.domains)))
        click.echo()
        for line in _closing(result):
            click.echo(line)
        home, moe = (result.folder / "registry").absolute(), result.folder / "moe"
        route = shlex.join(["reg", "route", str(moe), _MIXED])
        done(None, "", "next:", f"  export REG_HOME={shlex.quote(str(home))}", "  reg list", f"  {route}")
    if not result.holds:
        raise click.ClickException("a guarantee does not hold")


def _closing(result: "DemoResult") -> list[str]:
    """Return the result in two sentences, and the guarantees that were seen to hold in a third."""
    average = {row.name: row.average for row in result.rows}
    ours, plain = average.get("moe"), average.get("average")
    base = next((value for name, value in average.items() if name.startswith("base ")), None)
    lines = []
    if ours is not None and plain is not None and base is not None:
        lines.append(
            f"The mixture reaches {ours:.0f} % of its experts; averaged weights reach {plain:.0f} %, the base model "
            f"{base:.0f} %."
        )
    whole, without = map(short, result.compositions.values())
    if result.holds:
        lines += [
            "Bit for bit, every file compared:",
            f"  all {counted(len(result.orders), 'order')} of registering gave one folder, composition {whole};",
            f"  opting {result.withdrawn} out gave the folder of a registry that never held it, composition {without}.",
        ]
    else:
        lines.append("NOT bit for bit: SHA-256 over every byte of each composed folder:")
        lines += [f"  {digest}  registered in the order {', '.join(order)}" for order, digest in result.orders.items()]
        lines.append(f"  {result.opted_out}  after {result.withdrawn} was opted out")
        lines.append(f"  {result.never_registered}  without {result.withdrawn} from the start")
    return lines
