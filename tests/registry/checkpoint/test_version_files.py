"""Proves: the record of a training is read as it was written, and one of another form is refused with its reason."""

import json
from typing import Any

import pytest

from registry import ExpertTraining
from registry.checkpoint.version_files import MOST_LOSSES, parse_training
from registry.errors import CheckpointError
from registry.training.loop import POINTS, Losses, training_document


def document(**changes: Any) -> dict[str, Any]:
    valid = {
        "format": 1,
        "training": {"steps": 3, "tokens": 96, "trunk": "frozen", "more": [1, {}]},
        "held_out": {"before": 5.5, "after": 4.25},
        "every": 1,
        "loss": [5.0, 4.5, 4.0],
    }
    return valid | changes


def read(value: Any) -> Any:
    return parse_training(json.dumps(value).encode(), "x@1/expert_training.json")


def test_record_is_read_with_the_middle_of_its_steps() -> None:
    record = read(document(of_a_later_version=True))
    assert (record.steps, record.tokens, record.before, record.after) == (3, 96, 5.5, 4.25)
    assert record.loss == (5.0, 4.5, 4.0)
    assert record.at == (1.0, 2.0, 3.0)
    grouped = read(document(training={"steps": 7, "tokens": 96}, every=3))
    assert grouped.at == (2.0, 5.0, 7.0)  # of steps 1 to 3, 4 to 6, and 7


def test_tokens_are_those_of_all_steps_where_the_record_says_how_large_they_were() -> None:
    sizes = {"steps": 3, "tokens": 100, "batch_size": 2, "accumulate": 2}
    assert read(document(training=sizes)).tokens == 100
    assert read(document(training=sizes | {"seq_len": 16})).tokens == 3 * 2 * 2 * 16
    with pytest.raises(CheckpointError, match="training: seq_len is -1, it must be a count"):
        read(document(training=sizes | {"seq_len": -1}))


@pytest.mark.parametrize("steps", [1, POINTS, POINTS + 1, 3 * POINTS + 7])
def test_what_a_training_writes_is_read(steps: int) -> None:
    settings = ExpertTraining(tokens=steps * 64, seq_len=32, batch_size=2)
    losses = Losses(tuple(5.0 - number / steps for number in range(steps)), 5.0, 4.0)
    record = read(training_document(settings.document("cpu", "float32"), losses))
    assert record.steps == settings.steps == steps
    assert len(record.loss) <= POINTS < MOST_LOSSES
    assert record.at[-1] <= steps
    assert (record.before, record.after) == (5.0, 4.0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format": 2}, "has format 2, this program reads 1"),
        ({"format": True}, "format is True, it must be a count"),
        ({"loss": []}, "has 0 losses, expected 1 to 10,000"),
        ({"loss": [1.0] * (MOST_LOSSES + 1)}, "has 10,001 losses"),
        ({"loss": [1.0, 2.0]}, "has 2 losses, each of 1 steps, which are not the 3"),
        ({"every": 0}, "each of 0 steps"),
        ({"every": 2**60}, "every is"),
        ({"loss": [1.0, 2.0, -0.5]}, "loss is [1.0, 2.0, -0.5], it must be a list of which each is a number"),
        ({"loss": [1.0, 2.0, 1e300]}, "loss is"),
        ({"loss": [1, 2, 3]}, "loss is [1, 2, 3]"),
        ({"loss": [1.0, None, "x"]}, "loss is"),
        ({"held_out": {"before": 1.0}}, "held_out has no key 'after'"),
        ({"held_out": {"before": 1.0, "after": "1.0"}}, "held_out: after is '1.0'"),
        ({"held_out": [1.0, 2.0]}, "held_out is [1.0, 2.0], it must be an object"),
        ({"training": {"steps": 3}}, "training has no key 'tokens'"),
        ({"training": {"steps": 3.0, "tokens": 1}}, "training: steps is 3.0"),
        ({"training": {"steps": -3, "tokens": 1}}, "training: steps is -3"),
        ({"training": None}, "training is None"),
    ],
)
def test_record_of_another_form_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        read(document(**changes))
    assert caught.value.message.startswith("x@1/expert_training.json")
    assert told in caught.value.message
    assert "reg add-expert" in str(caught.value.hint)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"loss": [NaN]}', b'{"format": 1, "format": 1}', b"\xff", b"{}"])
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"expert_training\.json"):
        parse_training(data, "x@1/expert_training.json")
