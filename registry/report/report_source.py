"""The subject of a report, checked without torch."""

import os
from pathlib import Path

from registry.io.model_folder import require_composed
from registry.names.resolve import composition_of
from store.catalog import Catalog


def check_source(catalog: Catalog, composition: str | os.PathLike[str]) -> None:
    """Check that `composition` is a composed folder, or the beginning of a composition's digest.

    Raises:
        CheckpointError: it is neither.
        NotFoundError: no composition has such a digest.
    """
    if Path(composition).is_dir() or composition_of(catalog, os.fspath(composition)) is None:
        require_composed(Path(composition))
