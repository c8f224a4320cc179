from .lam import LamCurve as LamCurve
from .statistics import Statistics as Statistics
