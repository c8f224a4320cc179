from .family import Family as Family
from .family import NormOutput as NormOutput
from .family import Translation as Translation
from .table import FAMILIES as FAMILIES
from .table import family_of as family_of
