"""Arrays as zarr opens them, in a folder or a bucket: every chunk is checked before zarr gets it.

Importing zarr takes 0.2 s: this module is loaded by the first array that is read or written.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import zarr
from zarr.abc.store import Store
from zarr.storage import StorePath, WrapperStore

from store.arrays.layout import Layout

if TYPE_CHECKING:
    from zarr.abc.store import ByteRequest
    from zarr.core.buffer import Buffer, BufferPrototype

Get = Callable[[int], bytes]  # the content of a chunk, after its check
Put = Callable[[str, memoryview], None]  # writes an object of a key


class CheckedStore(WrapperStore[Store]):
    """A store of zarr from which chunks come by `get`, and to which they go by `put`."""

    def __init__(self, store: Store, get: Get, put: Put) -> None:
        super().__init__(store)
        self._get, self._put = get, put

    async def get(
        self, key: str, prototype: "BufferPrototype", byte_range: "ByteRequest | None" = None
    ) -> "Buffer | None":
        """Return a chunk; an absent one is an error, where zarr would read zeros."""
        number = int(key.split(".")[1])
        return prototype.buffer.from_bytes(await asyncio.to_thread(self._get, number))

    async def set(self, key: str, value: "Buffer") -> None:
        """Write a chunk."""
        await asyncio.to_thread(self._put, key, memoryview(value.as_buffer_like()))


def zarr_array(store: Store, prefix: str, layout: Layout, get: Get, put: Put) -> "zarr.Array[Any]":
    """Return the array of a layout, whose chunks have keys that begin with `prefix`; its `zarr.json` is not read."""
    document: Any = layout.document()
    place = StorePath(CheckedStore(store, get, put), prefix)
    return zarr.Array(zarr.AsyncArray(document, place, {"write_empty_chunks": True}))
