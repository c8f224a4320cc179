"""Checkpoints: Hugging Face folders, Hub repositories and adapters as untrusted input, checked from their headers.

Nothing here loads torch before a weight is read, so that what cannot be registered is refused at once.
"""

from registry.checkpoint.checkpoint import Checkpoint
from registry.checkpoint.documents import COPIED_FILES, read_files
from registry.checkpoint.hashed import HashedCheckpoint, hash_checkpoint
from registry.checkpoint.tokenizer import tokenizer_digest

__all__ = ["COPIED_FILES", "Checkpoint", "HashedCheckpoint", "hash_checkpoint", "read_files", "tokenizer_digest"]
