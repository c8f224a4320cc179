"""Write the tables of docs/scale.md: python -m benchmarks.scale [--measure] [--database URL] [--scratch DIR]

Without --measure the tables are computed from the rates of the last measurement, `rates.json` beside this file.
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.scale.arithmetic import Rates
from benchmarks.scale.page import PAGE, rewritten, tables
from benchmarks.scale.rates import Check, measure

FILE = Path(__file__).with_name("rates.json")


def load() -> tuple[Rates, list[Check]]:
    """Return the rates and checks of the last measurement."""
    document = json.loads(FILE.read_text())
    return Rates(**document["rates"]), [Check(**check) for check in document["checks"]]


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure the rates of this machine first")
    parser.add_argument("--database", help="an empty database for the rates of the catalog; default SQLite")
    parser.add_argument("--scratch", type=Path, help="a folder on the disk that is measured")
    given = parser.parse_args()
    if given.measure:
        with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
            rates, checks = measure(Path(scratch), given.database)
        document = {"rates": asdict(rates), "checks": [asdict(check) for check in checks]}
        FILE.write_text(json.dumps(document, indent=2) + "\n")
    PAGE.write_text(rewritten(PAGE.read_text(), tables(*load())))


if __name__ == "__main__":
    main()
