"""Calibration: the tokens statistics are taken on, from text, from chats, or from the expert itself."""

from registry.calibration.calibration import Calibration
from registry.calibration.documents import Corpus
from registry.calibration.sampling import sample_from_expert
from registry.calibration.windows import evenly_spaced, random_places

__all__ = [
    "Calibration",
    "Corpus",
    "evenly_spaced",
    "random_places",
    "sample_from_expert",
]
