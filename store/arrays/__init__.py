"""Arrays stored under the digest of their content, in a folder or in an object store."""

from store.arrays.array_store import ArrayStore as ArrayStore
from store.arrays.chunks import ArrayFiles as ArrayFiles
from store.arrays.chunks import blocks_of_rows as blocks_of_rows
from store.arrays.chunks import fill as fill
from store.arrays.content_digest import Block as Block
from store.arrays.content_digest import little_endian as little_endian
from store.arrays.content_digest import new_hash as new_hash
from store.arrays.content_digest import unreadable as unreadable
from store.arrays.folder_arrays import FolderArrays as FolderArrays
from store.arrays.folder_arrays import flush as flush
from store.arrays.layout import CARRIERS as CARRIERS
from store.arrays.layout import CHUNK_ELEMENTS as CHUNK_ELEMENTS
from store.arrays.object_arrays import open_arrays as open_arrays
from store.arrays.source import ArraySource as ArraySource
from store.arrays.source import digest_of as digest_of
from store.arrays.source import rows_per_block as rows_per_block
