"""Writes the golden database of the newest revision; run once when a revision is added, then never again for it.

python -m tests.store.make_golden
"""

import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

from store.catalog import Catalog, schema
from tests.store.test_catalog import link, new


def main() -> None:
    """Write `golden/<revision>.sqlite`."""
    target = Path(__file__).parent / "golden" / f"{schema.HEAD}.sqlite"
    target.parent.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        catalog = Catalog(f"sqlite:///{folder}/catalog.sqlite", Path(folder) / "lock")
        catalog.add_version(new("base", "0", "9", kind="base", statistics=()))
        code, _ = catalog.add_version(new("code", "1", arrays="12"))
        first, _ = catalog.add_version(new("math", "2", arrays="3"))
        catalog.withdraw([first])
        catalog.purge([first])
        catalog.forget_unreferenced(1, link("3").nbytes)
        second, _ = catalog.add_version(new("math", "4", arrays="24"))
        catalog.set_alias(second, "stable", protect=True)
        trained = [link("5", "gate", "trained")]
        catalog.record_composition("d" * 64, {"recipe": {"lam": 0.01}}, [code, second], "moe", trained)
        catalog.record_evaluation("d" * 64, "e" * 64, {"figures": {"average": 88.7}})
        catalog.close()
        with sqlite3.connect(f"{folder}/catalog.sqlite") as connection:
            connection.execute("VACUUM INTO ?", (str(target),))
        connection.close()


if __name__ == "__main__":
    main()
