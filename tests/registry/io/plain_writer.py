"""Writing a safetensors file the plain way, one thread, block by block: what every quicker way must equal."""

import json
from collections.abc import Sequence
from pathlib import Path

from registry.io.dtypes import SAFETENSORS
from registry.io.safetensors_writer import Stream
from store.arrays import CARRIERS
from tests.digests import tree_of


def write_plain(path: Path, streams: Sequence[Stream]) -> str:
    """Write one file and return its tree digest."""
    streams = sorted(streams, key=lambda stream: (-CARRIERS[stream.dtype][1], stream.name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for stream in streams:
        offsets = [end, end + stream.nbytes]
        header[stream.name] = {
            "dtype": SAFETENSORS[stream.dtype],
            "shape": list(stream.shape),
            "data_offsets": offsets,
        }
        end += stream.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for stream in streams:
            for block in stream.blocks():
                file.write(block.data.cast("B"))
    return tree_of(path.read_bytes())
