"""Proves: scores of several compositions compare on the same text alone, and what is not compared is said."""

from registry.evaluation.same_text import found_in, mean_of, readers, shared_rows
from registry.evaluation.stored import Measured, Text
from registry.report.score_words import which_is_better


def found(**texts: tuple[str, float | None]) -> dict[str, list[Measured]]:
    """Return what was found of a composition: domain → digest of the text, and score."""
    return {
        domain: [Measured(domain, Text(digest, 32, "float32"), "x", 5000, "e", 5.0, score, None, None, None)]
        for domain, (digest, score) in texts.items()
    }


def test_pairs_that_read_different_texts_each_get_their_row() -> None:
    rows = shared_rows([found(a=("1", 50.0)), found(a=("1", 60.0)), found(a=("2", 70.0)), found(a=("2", 80.0))])
    read = [[cell is not None for cell in row.cells] for row in rows]
    assert read == [[True, True, False, False], [False, False, True, True]]
    assert shared_rows([found(a=("1", 50.0)), found(b=("1", 50.0))]) == []
    assert mean_of([]) is None
    assert found_in([]) == {}


def test_means_are_over_the_domains_of_as_many_as_possible() -> None:
    three = [found(a=("1", 50.0), b=("1", 90.0)), found(a=("1", 60.0), b=("1", 10.0)), found(a=("1", 55.0))]
    rows = shared_rows(three)
    mean = mean_of(rows)
    assert mean is not None
    assert mean.scores == [50.0, 60.0, 55.0]
    better = "y is best on the same text: 60.0 against 50.0 of x and 55.0 of z, on a."
    assert which_is_better("xyz", three, rows, mean) == better
    said = "y has no expert of b. On b, x and y were scored."
    assert which_is_better("xyz", three, rows, mean, ["ab", "ac", "ab"]) == f"{better} {said}"
    assert readers("b", three, rows) == {0, 1}  # they read the same text
    apart = [three[0], found(a=("1", 60.0), b=("2", 10.0)), three[2]]
    said = "y has no expert of b. On b, each was scored on other text."
    assert readers("b", apart, shared_rows(apart)) == set()
    assert which_is_better("xyz", apart, shared_rows(apart), mean, ["ab", "ac", "ab"]) == f"{better} {said}"
    three[1].pop("b")
    said = "y and z have no expert of b. y has no expert of d. On b, x was scored. On d, none was scored."
    assert which_is_better("xyz", three, shared_rows(three), mean, ["bad", "ac", "da"]).endswith(said)
    two = [found(a=("1", None)), found(a=("1", None))]
    assert mean_of(shared_rows(two)) is None
    said = "By perplexity none of them is better on all of the same text. No scores compare."
    assert which_is_better("xy", two, shared_rows(two), None) == said
