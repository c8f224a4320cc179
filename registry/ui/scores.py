"""The scores of an evaluation, and the text that they were measured on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from registry.evaluation.stored import widest
from registry.report.verdict import FEW_TOKENS
from registry.ui.wording import counted
from store.catalog import CompositionRecord, EvaluationRecord


@dataclass(frozen=True)
class Text:
    """The text of a domain, and how it was read: figures on equal ones compare.

    The number of windows is part of the digest. The batch size and the device change what is computed by no more than
    rounding.

    Attributes:
        digest: of its tokens.
        seq_len: tokens in a window.
        dtype: the dtype that the models computed in.
    """

    digest: str
    seq_len: int
    dtype: str

    @classmethod
    def of(cls, document: Mapping[str, Any], domain: str) -> "Text":
        """Return the text of a domain in the document of an evaluation."""
        settings = document["settings"]
        return cls(document["data"][domain]["digest"], settings["seq_len"], settings["dtype"])


@dataclass(frozen=True)
class Score:
    """The scores of one evaluation.

    Attributes:
        average: average score over the domains; None if none of them has its own expert.
        oracle: the same with each domain's tokens sent to its own expert, if that was measured.
        tokens: number of tokens scored.
        fewest: number of tokens of the domain with the fewest.
        domains: names of the domains.
        by_domain: domain → score, where it has its own expert.
        labels: labels of their texts, each once.
        at: the time of the evaluation.
        tokens_of: domain → number of tokens scored.
        active: parameters that take part in one token; None if that was not recorded.
        interval: the 95 % interval of the average, low and high; None if that was not recorded.
        texts: domain → its text; figures on equal ones compare.
        own: domain → digest of its own expert, which its score is relative to.
    """

    average: float | None
    oracle: float | None
    tokens: int
    fewest: int
    domains: Sequence[str]
    by_domain: Mapping[str, float]
    labels: Sequence[str]
    at: str
    tokens_of: Mapping[str, int]
    active: int | None
    interval: Sequence[float] | None
    texts: Mapping[str, Text]
    own: Mapping[str, str]

    @classmethod
    def of(cls, evaluation: EvaluationRecord) -> "Score":
        """Return the scores of an evaluation."""
        document = evaluation.document
        data = document["data"]
        oracle = (document["oracle"] or {}).get("average")
        tokens = {domain: text["tokens"] for domain, text in data.items()}
        labels = tuple(dict.fromkeys(text["label"] for text in data.values()))
        figures, at = document["figures"], evaluation.evaluated_at
        return cls(
            figures["average"],
            oracle,
            sum(tokens.values()),
            min(tokens.values()),
            tuple(data),
            figures["score"],
            labels,
            at,
            tokens,
            figures.get("active_parameters"),
            figures.get("average_interval"),
            {domain: Text.of(document, domain) for domain in data},
            document.get("experts") or {},
        )

    def reads(self, *domains: str) -> frozenset[tuple[str, Text, str | None]]:
        """Return the texts of some domains, by default of all, each with its own expert.

        Scores on equal ones compare.
        """
        return frozenset((domain, self.texts[domain], self.own.get(domain)) for domain in domains or self.texts)

    @property
    def sample(self) -> str:
        """The sample in words: `12,288 tokens of 5 domains`."""
        return f"{counted(self.tokens, 'token')} of {counted(len(self.domains), 'domain')}"

    @property
    def is_small(self) -> bool:
        """True if some domain has so few tokens that small differences can be chance."""
        return self.fewest < FEW_TOKENS

    def is_small_on(self, domain: str) -> bool:
        """Tell whether a domain has so few tokens."""
        return self.tokens_of[domain] < FEW_TOKENS


def widest_first(evaluations: Sequence[EvaluationRecord], record: CompositionRecord | None) -> list[EvaluationRecord]:
    """Return the evaluations of a composition with the one first whose score is shown, then the others as they come."""
    first = widest(evaluations, _experts(record))
    return [] if first is None else [first, *(one for one in evaluations if one is not first)]


def score_of(evaluations: Iterable[EvaluationRecord], record: CompositionRecord) -> Score | None:
    """Return the scores of the widest evaluation of a composition; None if there is none."""
    found = widest(evaluations, _experts(record))
    return None if found is None else Score.of(found)


def _experts(record: CompositionRecord | None) -> set[str]:
    return set() if record is None else {one["name"] for one in record.document["members"]}
