"""Digests of a composed folder's files, the plain way: from their bytes in memory, as docs/formats.md says."""

import hashlib
import json
from collections.abc import Mapping

from registry.io.dtypes import NAMES
from registry.io.model_folder import MARKER


def tree_of(data: bytes) -> str:
    """Return the tree digest of a safetensors file."""
    start = 8 + int.from_bytes(data[:8], "little")
    lines = ["expert-registry safetensors tree 1", hashlib.sha256(data[:start]).hexdigest()]
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            described = json.dumps([NAMES[entry["dtype"]], entry["shape"]], separators=(",", ":"))
            begin, end = entry["data_offsets"]
            lines.append(hashlib.sha256(f"{described}\n".encode() + data[start + begin : start + end]).hexdigest())
    return "tree-sha256:" + hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


def digests_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return file → digest of a folder's files, without its `composition.json`."""
    return {
        name: tree_of(data) if name.endswith(".safetensors") else hashlib.sha256(data).hexdigest()
        for name, data in files.items()
        if name != MARKER
    }
