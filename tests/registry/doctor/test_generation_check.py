"""Proves: the check of what a model writes says which text is a few tokens that come again and again."""

import pytest

from registry.doctor.generation_check import _repeats


@pytest.mark.parametrize(
    ("tokens", "repeats"),
    [
        ([5, 6, 7] * 8, True),
        ([1, 2, 3, 4, 5, 6, 7, 8, *[9, 10, 11, 12] * 4], True),  # after words of its own
        (list(range(8)) * 3, True),
        (list(range(9)) * 3, False),
        ([7] * 23 + [8], False),
        (list(range(24)), False),
    ],
)
def test_a_text_that_repeats_itself(tokens: list[int], repeats: bool) -> None:
    assert _repeats(tokens) is repeats
