"""The command line of the package."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.crash import faults
from tests.running import add_places, command_line, tell

PLACE = "REG_CRASH_SCRATCH"


def main() -> None:
    """Do what the command line says, and print one line of JSON; the folder stays if something fails."""
    parser = command_line(__doc__, tries=None, kills=200, seed=0)
    parser.add_argument("what", choices=("kill", "random", "full", "mount", "sample"))
    parser.add_argument("commands", nargs="*", help="default all; not of random")
    add_places(parser)
    given = parser.parse_args()
    if (given.database, given.arrays) != ("sqlite", "folder") and given.what != "random":
        parser.error("--database and --arrays are of random")
    if why := faults.why_not():
        sys.exit(f"this needs Linux and a C compiler: {why}")
    scratch = Path(os.environ.get(PLACE) or tempfile.mkdtemp(prefix="reg-crash-", dir=given.scratch))
    os.environ[PLACE] = str(scratch)
    faults.load(scratch, apart=given.what == "mount")

    from registry.io import model_folder
    from tests.catalogs import in_database
    from tests.crash import sweep  # everything heavy, once the library stands before it
    from tests.s3_server import in_storage

    model_folder.ONE_FILE_BYTES = 0  # so that the tiny models have several files, and recompositions take some over
    with in_database(given.database), in_storage(given.arrays):
        figures = sweep.sweep(scratch, given)
    tell(figures, [line for one in figures.values() for line in one["failed"]])
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
