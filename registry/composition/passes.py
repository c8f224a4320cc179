"""Passes of tokens through models: the working folder, the cache, and versions as the folders that models load from."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from registry.composition.stored import write_dense
from registry.io.work_dirs import working_folder
from registry.member import Member
from registry.progress import Progress
from registry.statistics.cache import FileCache
from registry.workspace import Workspace
from store.lock import exclusive


@dataclass(frozen=True)
class PassContext:
    """The cache of a composition's passes, and `work`, a folder for the models that they need, each for one pass."""

    work: Path
    cache: FileCache
    progress: Progress


@contextmanager
def pass_context(workspace: Workspace, members: Sequence[Member]) -> Iterator[PassContext]:
    """Open a working folder for passes, deleted when the context ends.

    It is in the registry's home, or in the system's temporary folder if the home cannot be written. Once one of
    `members`, the versions that passes use, is opted out, nothing more is put into the cache.
    """
    home, versions = workspace.home, [member.version for member in members]

    @contextmanager
    def putting() -> Iterator[None]:
        with exclusive(home.cache_lock, "keeping statistics"):
            workspace.catalog.check_active(versions)
            yield

    with working_folder(home.work, [version.digest for version in versions]) as work:
        yield PassContext(work, FileCache(home.cache, work, putting), workspace.progress)


@contextmanager
def stored_folder(member: Member, context: PassContext) -> Iterator[Path]:
    """Write a registered version as the dense folder that it was registered from, for as long as the context lasts."""
    with TemporaryDirectory(dir=context.work) as above:
        folder = Path(above) / "model"
        write_dense([member], folder, context.progress)
        yield folder
