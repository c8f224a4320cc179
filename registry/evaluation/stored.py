"""Stored evaluations of compositions: their figures, and which of several is shown."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from registry.evaluation.results import DomainLoss, Row, losses_in
from store.catalog import CompositionRecord, EvaluationRecord

FEW_TOKENS = 2000
"""Predicted tokens of a domain below which its score is uncertain: pages say so, and how many would be enough."""


@dataclass(frozen=True)
class Text:
    """The text of a domain (`digest`: of its tokens, and so of the number of windows), and how it was read.

    Figures on equal ones compare: batch size and device change what is computed by no more than rounding.
    """

    digest: str
    seq_len: int
    dtype: str


@dataclass(frozen=True)
class Average:
    """The 95 % interval, low and high, of the average score over exactly these domains; None if not recorded."""

    domains: frozenset[str]
    interval: tuple[float, ...] | None


@dataclass(frozen=True)
class Measured:
    """Figures of an evaluation on one domain; None for those that were not measured.

    Attributes:
        perplexity, score: of the composition.
        averages: of the evaluations that it is part of, or that found the same on the same text.
    """

    domain: str
    text: Text
    label: str  # name of its file
    tokens: int  # number of tokens scored
    own: str | None  # digest of the domain's own expert, which a score is relative to; None if there is none
    perplexity: float | None
    score: float | None
    accuracy: float | None  # share of the tokens that are routed to the domain's expert
    oracle: float | None  # score with perfect routing
    plain: float | None  # score of the averaged weights of exactly its experts
    interval: Sequence[float] | None = None  # low and high end of the score's 95 % interval
    averages: frozenset[Average] = frozenset()
    losses: DomainLoss | None = None  # window by window

    @property
    def is_small(self) -> bool:
        """True if there are so few tokens that small differences can be chance."""
        return self.tokens < FEW_TOKENS


@dataclass(frozen=True)
class Score:
    """The scores of one evaluation; None for those that were not recorded."""

    evaluation: EvaluationRecord
    rows: Mapping[str, Measured]  # domain → what was measured on its text
    average: float | None  # average score over the domains; None if none of them has its own expert
    interval: Sequence[float] | None  # the 95 % interval of the average, low and high
    oracle: float | None  # the average with each domain's tokens sent to its own expert
    plain: float | None  # the average of the averaged weights of exactly the composition's experts
    active: int | None  # parameters that take part in one token

    @classmethod
    def of(cls, evaluation: EvaluationRecord, experts: Collection[str]) -> "Score":
        """Return the scores of an evaluation of a composition of these experts."""
        document = evaluation.document
        figures, oracle, settings = document["figures"], document["oracle"] or {}, document["settings"]
        plain = document.get("plain_average") or {}
        plain = plain if plain and set(plain["score"]) == set(experts) else {}
        average = Average(frozenset(document["data"]), tuple(figures.get("average_interval") or ()) or None)
        rows = {
            domain: Measured(
                domain,
                Text(data["digest"], settings["seq_len"], settings["dtype"]),
                data["label"],
                data["tokens"],
                (document.get("experts") or {}).get(domain),
                figures["perplexity"].get(domain),
                figures["score"].get(domain),
                figures["overall_accuracy"].get(domain),
                oracle.get("score", {}).get(domain),
                plain.get("score", {}).get(domain),
                figures.get("interval", {}).get(domain),
                frozenset([average]),
                losses_in(document, domain),
            )
            for domain, data in document["data"].items()
        }
        return cls(
            evaluation,
            rows,
            figures["average"],
            figures.get("average_interval"),
            oracle.get("average"),
            plain.get("average"),
            figures.get("active_parameters"),
        )

    @property
    def at(self) -> str:
        """The time of the evaluation."""
        return self.evaluation.evaluated_at

    @property
    def document(self) -> Mapping[str, Any]:
        """The document of the evaluation."""
        return self.evaluation.document

    @property
    def domains(self) -> list[str]:
        """The names of the domains."""
        return list(self.rows)

    @property
    def tokens(self) -> int:
        """The number of tokens scored."""
        return sum(row.tokens for row in self.rows.values())

    @property
    def fewest(self) -> int:
        """The number of tokens of the domain with the fewest."""
        return min(row.tokens for row in self.rows.values())

    @property
    def load(self) -> Mapping[str, float]:
        """Expert → share of all tokens, mean over layers."""
        return dict(self.document["figures"]["overall_load"])

    @property
    def layers(self) -> Mapping[str, Sequence[float]]:
        """Expert → share of all tokens in each layer; empty if that was not recorded."""
        return dict(self.document["figures"].get("load") or {})

    @property
    def is_small(self) -> bool:
        """True if some domain has so few tokens that small differences can be chance."""
        return any(row.is_small for row in self.rows.values())

    @property
    def labels(self) -> list[str]:
        """The labels of the texts, each once."""
        return list(dict.fromkeys(row.label for row in self.rows.values()))

    def reads(self, *domains: str) -> frozenset[tuple[str, Text, str | None]]:
        """Return the texts of some domains, by default all, with their own experts: scores on equal ones compare."""
        rows = [self.rows[domain] for domain in domains or self.rows]
        return frozenset((row.domain, row.text, row.own) for row in rows)

    @property
    def models(self) -> list[Row]:
        """Every model that was scored on this text, by the names of pages, the composition first.

        Without rows of the experts there is one of their own perplexities, by the scores.
        """
        figures, plain = self.document["figures"], self.document.get("plain_average") or {}
        of_others = all(row.plain is None for row in self.rows.values())
        averaged = "averaged weights" + (f" of {', '.join(plain.get('score', ()))}" if of_others else "")
        rows = {"this composition": figures, "perfect routing": self.document["oracle"] or {}, averaged: plain}
        single = self.document.get("single_models", [])
        for row in single:
            kind, _, name = row["name"].partition(" ")
            rows[f"base model {name}" if kind == "base" else f"{kind} {name}"] = row
        if not any(row["name"].startswith("expert ") for row in single):
            perplexity = figures["perplexity"]
            own = {domain: score * perplexity[domain] / 100 for domain, score in figures["score"].items()}
            alone = {"perplexity": own, "score": dict.fromkeys(own, 100.0), "tokens": perplexity}
            rows["each domain’s own expert"] = alone
        return [Row.from_document({**row, "name": name}) for name, row in rows.items() if row.get("perplexity")]


def score_text(score: float | int | None, digits: int = 1) -> str:
    """Return a score as it is shown, halves rounded up as charts round them: `99.7`; a dash for None."""
    if score is None:
        return "–"
    if not math.isfinite(score):
        return f"{score:.{digits}f}"
    return str(Decimal(score).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def widest(evaluations: Iterable[EvaluationRecord], experts: Collection[str]) -> EvaluationRecord | None:
    """Return the evaluation whose score is shown for a composition; None if there is none.

    It is the one of the most domains of its own experts; of these, the one of the fewest other domains; of these, the
    one of the most tokens; of these, the latest. A quick look at one domain or at a few windows so does not displace
    it, nor does a comparison on the domain of an expert that it lacks.

    Args:
        evaluations: evaluations of one composition, in any order.
        experts: the names of its experts. Where no evaluation has a domain of theirs, the most domains count.
    """
    found = list(evaluations)
    own = any(domain in experts for one in found for domain in one.document["data"])

    def width(evaluation: EvaluationRecord) -> tuple[int, int, int, str]:
        data = evaluation.document["data"]
        covered = sum(domain in experts for domain in data) if own else len(data)
        return covered, covered - len(data), sum(text["tokens"] for text in data.values()), evaluation.evaluated_at

    return max(found, key=width, default=None)


def scores_of(evaluations: Iterable[EvaluationRecord], record: CompositionRecord | None) -> list[Score]:
    """Return the scores of each evaluation of a composition, as they come."""
    experts = _experts(record)
    return [Score.of(one, experts) for one in evaluations]


def widest_first(scores: Sequence[Score], record: CompositionRecord | None) -> list[Score]:
    """Return the scores of a composition: first those that are shown (`widest`), then the others as they come."""
    first = widest((one.evaluation for one in scores), _experts(record))
    return sorted(scores, key=lambda one: one.evaluation is not first)


def shown_score(evaluations: Sequence[EvaluationRecord], record: CompositionRecord) -> Score | None:
    """Return the scores that are shown for a composition; None if there are none."""
    found = widest(evaluations, _experts(record))
    return None if found is None else Score.of(found, _experts(record))


def _experts(record: CompositionRecord | None) -> list[str]:
    return [] if record is None else [one["name"] for one in record.document["members"]]
