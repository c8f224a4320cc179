"""Folds: an expert's statistics in parts, so that what is solved from some can be tried on the others.

Statistics form a group and are integers, so the last part is exactly what the others leave of the whole.
"""

from collections.abc import Sequence

from registry.maths.statistics import Statistics


def complete_folds(total: Statistics, folds: Sequence[Statistics]) -> tuple[Statistics, ...]:
    """Return all folds, given the whole and every fold but the last; where none is given, the whole alone."""
    rest = total
    for fold in folds:
        rest = rest - fold
    return (*folds, rest)
