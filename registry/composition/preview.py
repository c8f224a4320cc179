"""Predicted routing of a composition: accuracy, confusion and overlap of its members, before anything is written."""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class PreviewedMember:
    """One expert of a planned composition.

    Attributes:
        part: its part in the routers' solve, from 0 to 1: tokens times weight, balanced if the recipe asks for it. With
            routing by the text so far every expert has the same part.
    """

    ref: str
    tokens: int  # calibration tokens that it brings
    part: float
    accuracy: float  # share of its tokens predicted to go to it first, mean over layers
    share: float  # share of all tokens predicted to go to it first, if every expert's text has as many
    drowned: str | None  # the reason why the expert is drowned out, or None


@dataclass(frozen=True)
class PreviewedLength:
    """The predicted routing of texts of which so many tokens were read."""

    tokens: int  # number of tokens
    confusion: Matrix  # row by row, the shares of an expert's texts that go to each expert first

    @property
    def accuracy(self) -> float:
        """Mean accuracy of the members."""
        return fmean(row[number] for number, row in enumerate(self.confusion))

    def document(self) -> dict[str, Any]:
        """Return every figure as `--json` shows it."""
        return {"tokens": self.tokens, "accuracy": self.accuracy, "confusion": self.confusion}


@dataclass(frozen=True)
class Preview:
    """The predicted routing of a composition.

    Attributes:
        members: in the order of the experts.
        layers: the layers that were compared (`compared_layers`): all of them, or some that are spread evenly. With
            routing by the text so far the first, which stands for all.
        confusion: for each of these layers, row by row, the shares of an expert's tokens that go to each expert first.
        overlap: pair of experts → share of tokens that a linear router cannot tell apart, mean over layers; without
            pairs of which one has too few tokens. With routing by the text so far, share of texts that counts cannot
            tell apart.
        notes: limits of the figures.
        by_tokens: the prediction by number of tokens read, for routers that read the text so far; else empty.
        means: what the predicted accuracy is, and how far it was from a measured one.
        indistinct_from: overlap from which routing hardly tells two experts apart.
    """

    members: tuple[PreviewedMember, ...]
    layers: tuple[int, ...]
    confusion: tuple[Matrix, ...]
    overlap: dict[tuple[str, str], float]
    notes: tuple[str, ...] = ()
    by_tokens: tuple[PreviewedLength, ...] = ()
    means: str = ""
    indistinct_from: float = 1.0

    @property
    def refs(self) -> tuple[str, ...]:
        """The versions, in the order of the experts."""
        return tuple(member.ref for member in self.members)

    @property
    def mean_confusion(self) -> Matrix:
        """The confusion, mean over layers."""
        return mean(self.confusion)

    @property
    def accuracy(self) -> float:
        """Mean accuracy of the members."""
        return fmean(member.accuracy for member in self.members)

    @property
    def indistinct(self) -> tuple[tuple[str, str], ...]:
        """Pairs that routing will hardly tell apart."""
        return tuple(pair for pair, share in self.overlap.items() if share >= self.indistinct_from)

    def document(self) -> dict[str, Any]:
        """Return every figure as `--json` shows it."""
        return {
            "members": [vars(member) for member in self.members],
            "accuracy": self.accuracy,
            "confusion": self.mean_confusion,
            "layers": [
                {"layer": layer, "confusion": matrix} for layer, matrix in zip(self.layers, self.confusion, strict=True)
            ],
            "overlap": [{"experts": pair, "routing": share} for pair, share in self.overlap.items()],
            "by_tokens": [length.document() for length in self.by_tokens],
            "notes": self.notes,
        }


def mean(matrices: tuple[Matrix, ...]) -> Matrix:
    """Return the mean of matrices of one shape."""
    return tuple(tuple(fmean(values) for values in zip(*rows, strict=True)) for rows in zip(*matrices, strict=True))
