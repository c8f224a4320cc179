"""What is fuzzed: for each parser valid inputs, how they are changed, and the public entry that reads them."""

from collections.abc import Callable

from tests.fuzz import of_checkpoints, of_compositions, of_simoes, of_soups, of_text
from tests.fuzz.fuzz_world import World
from tests.fuzz.reading import Act
from tests.mutations import Draw

TARGETS: dict[str, tuple[int, Callable[[World, Draw], Act]]] = {
    "safetensors": (14, of_checkpoints.safetensors),
    "index": (8, of_checkpoints.index),
    "config": (10, of_checkpoints.config),
    "adapter": (8, of_checkpoints.adapter),
    "tokenizer": (8, of_checkpoints.tokenizer),
    "data": (12, of_text.data),
    "names": (12, of_text.names),
    "receipts": (8, of_compositions.receipts),
    "composition": (8, of_compositions.composition),
    "recipe_file": (6, of_compositions.recipe_file),
    "results": (4, of_text.results),
    "training": (4, of_checkpoints.training),
    "statistics": (8, of_checkpoints.statistics),
    "arrays": (6, of_compositions.arrays),
    "ensemble": (6, of_compositions.ensemble),
    "soup": (6, of_soups.soup),
    "simoe": (6, of_simoes.simoe),
    "context": (6, of_compositions.context),
    "database": (2, of_compositions.database),
    "largest": (1, of_text.largest),
}
"""Name → (how often of a hundred or so, what makes an input)."""
