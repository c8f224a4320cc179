"""Folders that are there for as long as something is done with them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from registry.errors import StorageError
from store.permissions import SPACE, writing


@contextmanager
def temporary_folder(where: Path | None = None) -> Iterator[Path]:
    """Give a folder below `where`, else in the system's place for such, and delete it with all that is in it.

    Raises:
        StorageError: it cannot be made, or the disk refused what was written into it.
    """
    try:
        place = where or Path(gettempdir())
    except FileNotFoundError as error:
        raise StorageError(str(error), f"{SPACE}, or name another place for temporary files: TMPDIR") from error
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="reg-", dir=place) as folder:
            yield Path(folder)
