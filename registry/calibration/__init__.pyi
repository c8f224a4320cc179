from .calibration import Calibration as Calibration
from .calibration import sample_from_expert as sample_from_expert
from .corpus import Corpus as Corpus
from .windows import document_beginnings as document_beginnings
from .windows import evenly_spaced as evenly_spaced
from .windows import random_places as random_places
