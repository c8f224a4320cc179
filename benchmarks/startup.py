"""Cold commands against Python importing the library that they cannot do without.

A registry of 10,000 versions, for commands that only look, is written straight into a catalog's tables. Composing and
registering are of two tiny experts: their whole time, and the time until the first step that they report progress of.
The first output of every command is measured by `first_output.py`.
"""

import json
import shutil
import sys
from functools import partial
from pathlib import Path

from sqlalchemy import insert
from sqlalchemy.orm import Session

from benchmarks import first_output
from benchmarks.alternating import Comparison, Setup, alternate, run
from benchmarks.random_experts import fill as fill_experts
from benchmarks.random_experts import make_checkpoint, text_of
from store.catalog import Catalog
from store.catalog.tables import Expert, Statistics, Tag, Version

VERSIONS = 10_000
ROUNDS = 7
TARGET = 1.5
UNTIL_WORK = """
import os, sys
import cli.session
cli.session.progress = lambda: lambda *step: os._exit(0)
from cli.main import main
main(sys.argv[1:])
"""
"""A command that ends with its first step of progress."""
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
    (scratch / "first-output").mkdir()
    return found + working(scratch, reg) + first_output.compared(first_output.CALLS, scratch / "first-output")


def working(scratch: Path, reg: str) -> list[Comparison]:
    """Return the comparisons of commands that compute."""
    home, names = fill_experts(scratch, 2, **first_output.TINY)
    checkpoint, text, out = make_checkpoint(scratch / "late", 9), scratch / "text.txt", scratch / "moe"
    text.write_text(text_of(9), encoding="utf-8")
    few = ["--data", str(text), "--tokens", "256", "--seq-len", "128", "--allow-unrelated"]
    commands = {
        "compose": ["--home", str(home), "compose", "--experts", ",".join(names), "--out", str(out)],
        "add-expert": ["--home", str(home), "add-expert", "late", str(checkpoint), *few],
    }
    settings = Setup(before_ours=partial(shutil.rmtree, out, True))
    whole, until = ["import torch"], ["import os, torch; os._exit(0)"]
    found = []
    for name, words in commands.items():
        for note, ours, imports, target in (
            ("until its work starts", [sys.executable, "-c", UNTIL_WORK, *words], until, TARGET),
            ("whole, tiny experts", [reg, *words], whole, TARGET if name == "compose" else None),
        ):
            claim = f"`reg {name}` against `import torch`"
            other = [sys.executable, "-c", *imports]
            found.append(alternate(claim, ours, other, ROUNDS, target=target, setup=settings, note=note))
    return found


if __name__ == "__main__":
    run(measure)
