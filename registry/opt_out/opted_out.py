"""Members of compositions that were opted out since."""

from pathlib import Path

from registry.composition.integrity import ComposedFolder
from registry.composition.manifest import CompositionManifest
from registry.errors import RegError
from registry.names.resolve import composition_of, version_of_content
from registry.workspace import PathLike, Workspace
from store.catalog import VersionRecord


def opted_out_members(workspace: Workspace, composition: PathLike) -> list[VersionRecord]:
    """Return the versions that a composition was made from and that were opted out (see `Registry.opted_out`)."""
    try:
        if Path(composition).is_dir():
            folder = ComposedFolder.read(Path(composition))
            digest, manifest = folder.digest, folder.manifest
        elif (record := composition_of(workspace.catalog, str(composition))) is not None:
            label = f"composition {record.digest[:12]}"
            digest, manifest = record.digest, CompositionManifest.from_document(record.document, label)
        else:
            return []
    except RegError:  # not a composition, or one that is refused by whatever reads it
        return []
    found = [version_of_content(workspace.catalog, one.name, one.digest, digest) for one in manifest.versions]
    return [version for version in found if version is not None and version.state != "active"]
