"""An adapter of a registered base model, as a checkpoint whose weights are merged where they are read.

A version of it has the adapter's own arrays, in the role `adapter`, and those of the base's arrays that it changes, in
the role `base`; the others are its own as they are the base's. So an expert takes as many bytes as its adapter.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from registry.checkpoint.adapter import HEADER, WEIGHTS, Merged, copy_carried
from registry.checkpoint.adapter_config import CONFIG
from registry.checkpoint.checkpoint import Checkpoint
from registry.checkpoint.model_files import Stored
from registry.checkpoint.version_files import ADAPTER, BASE, VersionArrays, made_digest
from registry.io.dtypes import SAFETENSORS
from registry.io.limits import JSON_BYTES
from registry.io.model_folder import write_files
from registry.io.safetensors_file import header_bytes
from registry.io.untrusted import own_file, read_small
from registry.progress import Progress
from store.arrays import ArraySource, Block, digest_of
from store.catalog import ArrayLink

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class AdaptedCheckpoint(Checkpoint):
    """The dense model that an adapter makes of a registered base model.

    Attributes:
        base: the base model.
        merged: what the adapter makes of it.
    """

    def __init__(self, adapter: Path, merged: Merged, scratch: Path, progress: Progress) -> None:
        """Check an adapter in a folder, and what it makes of its base, a registered version.

        Args:
            scratch: an empty folder, for its small files, and for all of it where a model is loaded.

        (CheckpointError: as `Checkpoint`.)
        """
        assert isinstance(merged.base, VersionArrays)
        self.base, self.merged, self._adapter, self._progress = merged.base, merged, adapter, progress
        small = scratch / "files"
        small.mkdir()
        write_files(small, merged.files())
        copy_carried(adapter, small)
        super().__init__(small, merged.adapter.label, remote_code=True)  # as the base model was accepted
        for name, parts in merged.changes.items():
            if "head" in parts:  # tied ones must be equal, which is seen where they are read
                for _ in self.source(name).blocks():
                    pass

    @cached_property
    def whole_folder(self) -> Path:
        """A folder that has all of it, weights included; written when it is first asked for."""
        folder = self.folder.with_name("model")
        self.merged.write(folder, self._progress)
        copy_carried(self._adapter, folder)
        return folder

    @property
    def stored(self) -> dict[tuple[str, str], ArrayLink]:
        """The base's arrays: those that the adapter changes are `BASE`."""
        links = {link.name: link for link in self.base.arrays if link.role in ("trunk", "mlp")}
        return {(BASE if name in self.merged.changes else link.role, name): link for name, link in links.items()}

    @property
    def origin(self) -> Mapping[str, Any]:
        """The digest over the base model's weights."""
        return {ADAPTER: {"base": (self.base.version.content or {})["weights"]}}

    @property
    def weight_files(self) -> set[str]:
        """Names of the files that hold its weights: none."""
        return set()

    def source(self, name: str) -> ArraySource:
        """Return one tensor as blocks of rows (errors as `Adapter.merged`, while it is read)."""
        return self.merged.source(name)

    def sample(self, name: str, rows: "npt.NDArray[np.int64]") -> Block:
        """Return some rows of one tensor, in its carrier dtype (see `Merged.sample`)."""
        return self.merged.sample(name, rows, self.base.sample)

    def own_digests(self) -> dict[str, str]:
        """Return the digests of all tensors: those that change are made of what they are made from."""
        links = {link.name: link.digest for link in self.base.arrays if link.role in ("trunk", "mlp")}
        own = {name: digest_of(source) for (_, name), source in self.own_arrays().items()}
        adapter, changes = self.merged.adapter, self.merged.changes
        for name, parts in changes.items():
            tensors = {part: own[adapter.names[tensor]] for part, tensor in parts.items()}
            links[name] = made_digest(name, links[name], own[CONFIG], tensors)
        return links

    def own_arrays(self) -> dict[tuple[str, str], ArraySource]:
        """Return the adapter's tensors, configuration and header, from which its files are written again."""
        config, weights = (own_file(self._adapter, name) for name in (CONFIG, WEIGHTS))
        assert config is not None
        assert weights is not None
        own = {CONFIG: _bytes(read_small(config, JSON_BYTES)), HEADER: _bytes(header_bytes(weights))}
        return {(ADAPTER, name): source for name, source in (own | self.merged.adapter.tensors).items()}

    def _headers(self) -> Mapping[str, Stored]:
        sources = {name: self.merged.base.source(name).dtype for name in self.merged.shapes}
        return {
            name: Stored(SAFETENSORS[dtype], self.merged.shapes[name], 0, 0, self.folder)
            for name, dtype in sources.items()
        }


def _bytes(data: bytes) -> ArraySource:
    import numpy as np

    return ArraySource.of(np.frombuffer(data, dtype=np.uint8), "uint8")
