"""A model folder under examination: what several checks read, each read once and only when it is first needed."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from registry.checkpoint import read_files
from registry.checkpoint.model_files import read_config
from registry.checkpoint.weights import Stored, read_headers, weight_files
from registry.composition.integrity import ComposedFolder
from registry.doctor.finding import Finding
from registry.doctor.tensor_names import is_embedding
from registry.errors import RegError
from registry.io.files import own_file, read_json
from registry.io.model_folder import MARKER
from registry.member import Member, load_members
from registry.progress import Progress
from registry.runtime.loading import has_our_code, load_tokenizer
from registry.workspace import Workspace
from store.catalog import EvaluationRecord

ADDED = "is not a file of the composition"
"""End of the line on a file that was put into the folder later, which breaks nothing."""

FLOATS = ("F64", "F32", "F16", "BF16")
"""dtypes, in the spelling of safetensors, whose values are weights as they are."""


@dataclass
class ExaminedFolder:
    """A model folder, which may come from anywhere.

    Attributes:
        workspace: the registry, if there is one.
        data: domain → files of its text, where they were given.
        device: a torch device; None for the GPU if there is one.
        perplexity: domain → perplexity, once it was computed.
    """

    path: Path
    workspace: Workspace | None
    data: Mapping[str, Sequence[Path]]
    device: str | None
    progress: Progress
    findings: list[Finding] = field(default_factory=list)
    perplexity: dict[str, float] = field(default_factory=dict)

    @property
    def quoted(self) -> str:
        """The folder as a word of a command line."""
        return shlex.quote(str(self.path))

    @property
    def again(self) -> str | None:
        """The command that composes the folder again, if its files are not those that were composed."""
        if self.composed is None or not self.changes:
            return None
        marker, out = self.path / MARKER, self.path.with_name(f"{self.path.name}-again")
        return f"reg compose --recipe {shlex.quote(str(marker))} --out {shlex.quote(str(out))}"

    @property
    def evaluations(self) -> Sequence[EvaluationRecord]:
        """The stored evaluations of the composition, the latest first; none where it is not known."""
        if self.composed is None or self.workspace is None:
            return ()
        return self.workspace.catalog.evaluations(self.composed.digest)

    @property
    def has_errors(self) -> bool:
        """True if a check found an error already."""
        return any(finding.severity == "error" for finding in self.findings)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of config.json."""
        return read_config(self.path)

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """The content of generation_config.json; empty without one."""
        path = own_file(self.path, "generation_config.json")
        return {} if path is None else read_json(path)

    @cached_property
    def tensors(self) -> dict[str, Stored]:
        """Every tensor's place, by name."""
        return read_headers(weight_files(self.path))

    @property
    def parameters(self) -> int:
        """Number of values in all tensors."""
        return sum(math.prod(stored.shape) for stored in self.tensors.values())

    @cached_property
    def small_files(self) -> dict[str, bytes]:
        """config.json and the tokenizer's files by name, of bounded size."""
        return read_files(self.path)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        assert self.small_files is not None  # sizes and links are checked before a library reads the files
        return load_tokenizer(self.path)

    @cached_property
    def embedding_rows(self) -> int | None:
        """Rows of the smallest embedding of tokens; None if no tensor has a known name of one."""
        rows = [stored.shape[0] for name, stored in self.tensors.items() if is_embedding(name) and stored.shape]
        return min(rows, default=None)

    @cached_property
    def has_our_code(self) -> bool:
        """True if the folder has a modelling file, and it is this program's own."""
        return has_our_code(self.path)

    @cached_property
    def composed(self) -> ComposedFolder | None:
        """The composition that the folder is; None if it is not one, or its composition.json cannot be read."""
        try:
            return ComposedFolder.read(self.path) if (self.path / MARKER).is_file() else None
        except RegError:
            return None

    @cached_property
    def changes(self) -> list[str]:
        """A line for each file that is not as it was composed; files beside the composition's own do not count."""
        found = [] if self.composed is None else self.composed.problems(self.progress)
        return [line.replace(f"{self.path}/", "", 1) for line in found if not line.endswith(ADDED)]

    @cached_property
    def members(self) -> dict[str, Member]:
        """Name → registered version of the members, where all are active in the registry; else empty."""
        if self.composed is None or self.workspace is None or self.composed.manifest.from_base is not None:
            return {}
        wanted = {member.name: member.digest for member in self.composed.manifest.members}
        versions = [
            version
            for version in self.workspace.versions()
            if version.digest == wanted.get(version.name) and version.kind == "expert"
        ]
        members = {member.name: member for member in load_members(self.workspace, versions)}
        return members if members.keys() == wanted.keys() else {}


def listed(value: Any) -> list[Any]:
    """Return a value of a configuration file that may be a list, of which 1,000 items are read, one item or absent."""
    return value[:1000] if isinstance(value, list) else [] if value is None else [value]
