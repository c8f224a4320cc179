"""Proves: an expert writes its own calibration text, the same each time, at temperature 1, and says when it cannot."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from registry import PassSettings, Registry
from registry.calibration import sample_from_expert
from registry.errors import CalibrationError
from registry.progress import Advance, silent
from registry.runtime.loading import load_model
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint

SHORT = PassSettings(tokens=20, seq_len=8, batch_size=4)


def sample(model: Any, *, start: int | None = 0, end: tuple[int, ...] = (), tokens: int = 300, **options: Any) -> Any:
    chosen: dict[str, Any] = {"seq_len": 32, "batch_size": 4, "progress": silent} | options
    special = {"bos_token_id": start, "eos_token_id": list(end)}
    return sample_from_expert(model, special, tokens=tokens, **chosen)


@pytest.fixture(scope="module")
def model(zoo: Zoo) -> Any:
    return load_model(zoo.experts["code"], "float32", "cpu")


@pytest.mark.check
def test_windows_begin_with_the_start_token_and_are_the_same_each_time(model: Any) -> None:
    """The random state is left alone, and a checkpoint's settings of generation do not interfere."""
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    taken = sample(model, tokens=140)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert taken.tokens == 140
    assert (taken.ids[:, 0] == 0).all()
    assert taken.ids.shape == (5, 32)
    assert taken.lengths.tolist() == [32] * 4 + [12]
    assert taken.label == "sampled by the expert itself (140 tokens, windows of 32, temperature 1, seed 0)"
    torch.manual_seed(6)
    model.generation_config = GenerationConfig(do_sample=True, top_k=1, temperature=0.1, repetition_penalty=9.0)
    assert sample(model, tokens=140).digest == taken.digest


def test_tokens_follow_the_model_at_temperature_1(model: Any) -> None:
    """First tokens, sampled 4,096 times, against the model's own distribution (total variation)."""
    taken = sample(model, tokens=8192, seq_len=2, batch_size=512)
    found = torch.bincount(taken.ids[:, 1].long(), minlength=320) / len(taken.ids)
    with torch.no_grad():
        expected = torch.softmax(model(input_ids=torch.zeros(1, 1, dtype=torch.long)).logits[0, -1], dim=0)
    assert 0.5 * (found - expected).abs().sum() < 0.12


@pytest.mark.check
def test_text_that_ends_early_is_padded_and_padding_does_not_count(model: Any) -> None:
    """Every token that counts is told as it is sampled."""
    steps: list[tuple[str, int, str]] = []
    told: list[int] = []

    @contextmanager
    def listening(label: str, total: int, unit: str) -> Iterator[Advance]:
        steps.append((label, total, unit))
        yield told.append

    end = tuple(range(1, 100))
    taken = sample(model, end=end, tokens=200, progress=listening)
    lengths = taken.lengths.tolist()
    ended = [ids[:length] for ids, length in zip(taken.ids.tolist(), lengths, strict=True) if length < 32]
    assert len(ended) > 3
    for window in ended[:-1]:
        assert window[-1] in end
        assert not set(window[:-1]) & set(end)
    assert steps == [("sampling", 200, "token")]
    assert sum(told) == taken.tokens == 200
    assert max(told) <= 4  # a token for each of the batch's windows
    assert len(told) >= 200 / 4


def test_model_that_ends_at_once_is_told(model: Any) -> None:
    mute = SimpleNamespace(
        device="cpu", generate=lambda prompt, **_: prompt, get_input_embeddings=model.get_input_embeddings
    )
    with pytest.raises(CalibrationError, match="the expert ended its texts after 0 of 300 tokens"):
        sample(mute, end=(5,))


def unnamed(tmp_path: Path, tokenizer: Any, **named: Any) -> Path:
    """Write an expert whose config.json names no start token but in `named`."""
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return save_checkpoint(make_model("llama", 101, **ids | named), tmp_path / "expert", tokenizer)


@pytest.mark.parametrize("named", [{}, {"bos_token_id": -1}, {"bos_token_id": 320}])
def test_without_start_token_data_is_asked_for(
    tmp_path: Path, tokenizer: Any, registry: Registry, named: dict[str, int]
) -> None:
    """One that the model has no embedding of is none."""
    mute = unnamed(tmp_path, type(tokenizer)(tokenizer_object=tokenizer._tokenizer), **named)
    with pytest.raises(CalibrationError, match="neither a start nor an end token") as caught:
        registry.add_expert("mute", mute, settings=SHORT)
    assert caught.value.hint == "give --data FILE"


@pytest.mark.check(after=2)
@pytest.mark.parametrize(
    "named",
    [{"bos_token_id": 3}, {"eos_token_id": 3}, {"eos_token_id": [3, 4]}, {}],
    ids=["bos", "eos", "eos list", "tokenizer"],
)
def test_start_token_is_found_wherever_it_is_named(
    tmp_path: Path, tokenizer: Any, registry: Registry, named: dict[str, Any]
) -> None:
    folder = unnamed(tmp_path, tokenizer, **named)
    if named:
        for path in folder.glob("tokenizer*"):
            path.unlink()
    registration = registry.add_expert("x", folder, settings=SHORT, keep_calibration=True)
    assert registration.self_sampled
    member = registry.member(registration.version)
    ids = member.store.read(member.link("calibration", "ids").digest)
    assert set(ids[:, 0].tolist()) == {3 if named else 0}


def test_registering_twice_samples_once(bare: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    first = registry.add_expert("code", bare, settings=SHORT)
    assert first.added
    monkeypatch.setattr(
        "registry.statistics.collect.load_for_pass", lambda *_, **__: pytest.fail("the model was loaded again")
    )
    again = registry.add_expert("code", bare, settings=SHORT)
    assert not again.added
    assert again.version == first.version
