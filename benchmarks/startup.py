"""Commands that only look, as cold command lines, against Python importing the library that they cannot do without.

A registry of 10,000 versions is written straight into a catalog's tables.
"""

import json
import sys
from pathlib import Path

from sqlalchemy import insert
from sqlalchemy.orm import Session

from benchmarks.alternating import Comparison, alternate, run
from store.catalog import Catalog
from store.catalog.tables import Expert, Statistics, Tag, Version

VERSIONS = 10_000
ROUNDS = 11
SITES = ("attention_input", "attention_output", "head_input", "mlp_input")


def fill(home: Path) -> None:
    """Make a registry of `VERSIONS` experts, of one version each."""
    home.mkdir(parents=True)
    content = json.dumps({"family": "llama", "architecture": {"hidden_size": 4096, "num_hidden_layers": 32}})
    time = "2025-01-01T00:00:00.000000Z"
    rows: dict[type, list[dict[str, object]]] = {table: [] for table in (Expert, Version, Statistics, Tag)}
    for number in range(1, VERSIONS + 1):
        rows[Expert].append({"id": number, "name": f"expert-{number:05d}", "kind": "expert", "created_at": time})
        version = {"id": number, "expert_id": number, "number": 1, "digest": f"{number:064x}", "content": content}
        rows[Version].append(version | {"parameters": 8_000_000_000, "state": "active", "created_at": time})
        rows[Tag].append({"version_id": number, "key": "domain", "value": f"domain {number % 100}"})
        for site in SITES:
            taken = {"calibration_digest": f"{number:064x}", "calibration_label": "train.jsonl.gz"}
            rows[Statistics].append({"version_id": number, "site": site, "tokens": 24_576, "saturated": 0} | taken)
    catalog = Catalog(f"sqlite:///{home / 'catalog.sqlite'}", home / "lock")
    with Session(catalog.engine.execution_options(writing=True)) as session, session.begin():
        for table, of_table in rows.items():
            session.execute(insert(table), of_table)
    catalog.close()


def measure(scratch: Path) -> list[Comparison]:
    """Return the comparisons."""
    home = scratch / "home"
    fill(home)
    reg = str(Path(sys.executable).with_name("reg"))
    found = []
    for words, library, target in (
        (["--help"], "click", 2.5),
        (["list"], "sqlalchemy", 2.5),
        (["list", "--offset", str(VERSIONS - 20)], "sqlalchemy", None),
        (["list", "--tag", "domain=domain 7"], "sqlalchemy", None),
        (["log"], "sqlalchemy", None),
    ):
        claim = f"`reg {' '.join(words)}` against `import {library}`"
        ours, other = [reg, "--home", str(home), *words], [sys.executable, "-c", f"import {library}"]
        note = f"{VERSIONS:,} versions" if "list" in words else ""
        found.append(alternate(claim, ours, other, ROUNDS, target=target, note=note))
    return found


if __name__ == "__main__":
    run(measure)
