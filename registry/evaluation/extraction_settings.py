"""Settings of an audit of extraction, without torch."""

from dataclasses import dataclass

from registry.errors import InvalidInputError


@dataclass(frozen=True)
class ExtractionSettings:
    """Settings of an audit; the defaults are those of FlexOlmo §5.3.

    Attributes:
        documents: documents that are tried, drawn by `seed` from those that are long enough.
        prefix: P, tokens of a document that the model is given.
        continued: C, tokens that it continues by.
        top_k: sampled are the `top_k` most probable tokens.
        samples: S, continuations of a document.
        threshold: least normalised Levenshtein similarity, on tokens, of an extracted document, from 0 to 1.
        seed: of documents and samples.
        device: a torch device; None for the GPU if there is one.
    """

    documents: int = 100
    prefix: int = 32
    continued: int = 256
    top_k: int = 50
    samples: int = 10
    threshold: float = 0.9
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        for name in ("documents", "prefix", "continued", "top_k", "samples"):
            if getattr(self, name) < 1:
                raise InvalidInputError(f"{name} is {getattr(self, name)}, the least is 1", "give 1 or more")
        if not 0 < self.threshold <= 1:
            raise InvalidInputError(f"threshold is {self.threshold}, it must be more than 0 and at most 1", "give 0.9")
