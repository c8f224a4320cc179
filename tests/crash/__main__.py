"""The command line of the package."""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.crash import faults

PLACE = "REG_CRASH_SCRATCH"


def main() -> None:
    """Do what the command line says, and print one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("what", choices=("kill", "random", "full", "mount", "sample"))
    parser.add_argument("commands", nargs="*", help="default all; not of random")
    parser.add_argument("--tries", type=int, help="points of each command; default all, of full and mount 8")
    parser.add_argument("--kills", type=int, default=200, help="of random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", type=Path, help="an absent or empty folder; it is deleted unless something fails")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite", help="of random")
    parser.add_argument("--arrays", choices=("folder", "s3"), default="folder", help="of random")
    given = parser.parse_args()
    if (given.database, given.arrays) != ("sqlite", "folder") and given.what != "random":
        parser.error("--database and --arrays are of random")
    if why := faults.why_not():
        sys.exit(f"this needs Linux and a C compiler: {why}")
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # what is flushed there costs nothing
    scratch = given.scratch or Path(os.environ.get(PLACE) or tempfile.mkdtemp(prefix="reg-crash-", dir=memory))
    os.environ[PLACE] = str(scratch)
    faults.load(scratch, apart=given.what == "mount")

    from registry.io import model_folder
    from tests.catalogs import in_database
    from tests.crash import sweep  # everything heavy, once the library stands before it
    from tests.s3_server import in_storage

    model_folder.ONE_FILE_BYTES = 0  # so that the tiny models have several files, and recompositions take some over
    with in_database(given.database), in_storage(given.arrays):
        figures = sweep.sweep(scratch, given)
    print(json.dumps(figures))
    if any(one["failed"] for one in figures.values()):
        sys.exit(1)
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
