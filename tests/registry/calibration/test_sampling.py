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
from tests.conftest import SETTINGS, Zoo
from tests.models import make_model, save_checkpoint


def sample(model: Any, *, start: int | None = 0, end: tuple[int, ...] = (), tokens: int = 300, **options: Any) -> Any:
    chosen: dict[str, Any] = {"seq_len": 32, "batch_size": 4, "progress": silent} | options
    return sample_from_expert(model, start=start, end=list(end), tokens=tokens, **chosen)


@pytest.fixture(scope="module")
def model(zoo: Zoo) -> Any:
    return load_model(zoo.experts["code"], "float32", "cpu")


def test_windows_begin_with_the_start_token_and_hold_what_was_asked_for(model: Any) -> None:
    taken = sample(model)
    assert taken.tokens == 300
    assert (taken.ids[:, 0] == 0).all()
    assert taken.ids.shape == (10, 32)
    assert taken.lengths.tolist() == [32] * 9 + [12]
    assert taken.label == "sampled by the expert itself (300 tokens, windows of 32, temperature 1, seed 0)"


@pytest.mark.check
def test_text_is_the_same_each_time_and_leaves_the_random_state_alone(model: Any) -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first = sample(model)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(6)
    assert sample(model).digest == first.digest


@pytest.mark.check
def test_checkpoint_settings_of_generation_do_not_interfere(model: Any) -> None:
    first = sample(model)
    model.generation_config = GenerationConfig(do_sample=True, top_k=1, temperature=0.1, repetition_penalty=9.0)
    assert sample(model).digest == first.digest


def test_tokens_follow_the_model_at_temperature_1(model: Any) -> None:
    """First tokens, sampled 4,096 times, against the model's own distribution (total variation)."""
    taken = sample(model, tokens=8192, seq_len=2, batch_size=512)
    found = torch.bincount(taken.ids[:, 1].long(), minlength=320) / len(taken.ids)
    with torch.no_grad():
        expected = torch.softmax(model(input_ids=torch.zeros(1, 1, dtype=torch.long)).logits[0, -1], dim=0)
    assert 0.5 * (found - expected).abs().sum() < 0.12


def test_text_that_ends_early_is_padded_and_padding_does_not_count(model: Any) -> None:
    end = tuple(range(1, 100))
    taken = sample(model, end=end, tokens=200)
    assert taken.tokens == 200
    ended = [
        ids[:length] for ids, length in zip(taken.ids.tolist(), taken.lengths.tolist(), strict=True) if length < 32
    ]
    assert len(ended) > 3
    for window in ended[:-1]:
        assert window[-1] in end
        assert not set(window[:-1]) & set(end)


@pytest.mark.check
def test_every_token_is_told_as_it_is_sampled(model: Any) -> None:
    steps: list[tuple[str, int, str]] = []
    told: list[int] = []

    @contextmanager
    def listening(label: str, total: int, unit: str) -> Iterator[Advance]:
        steps.append((label, total, unit))
        yield told.append

    taken = sample(model, end=tuple(range(1, 60)), tokens=300, progress=listening)
    assert steps == [
        ("no data was given: the expert writes its own calibration text; --data FILE is faster", 0, ""),
        ("sampling", 300, "token"),
    ]
    assert sum(told) == taken.tokens == 300
    assert max(told) <= 4  # a token for each of the batch's windows
    assert len(told) >= 300 / 4


def test_model_that_ends_at_once_is_told(model: Any) -> None:
    mute = SimpleNamespace(device="cpu", generate=lambda prompt, **_: prompt)
    with pytest.raises(CalibrationError, match="the expert ended its texts after 0 of 300 tokens"):
        sample(mute, end=(5,))


def test_without_start_token_data_is_asked_for(tmp_path: Path, tokenizer: Any, registry: Registry) -> None:
    none = type(tokenizer)(tokenizer_object=tokenizer._tokenizer)
    changes: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    folder = save_checkpoint(make_model("llama", 101, **changes), tmp_path / "mute", none)
    with pytest.raises(CalibrationError, match="neither a start nor an end token") as caught:
        registry.add_expert("mute", folder, settings=SETTINGS)
    assert caught.value.hint == "give --data FILE"


@pytest.mark.check(after=2)
@pytest.mark.parametrize("known", ["bos", "eos", "eos list", "tokenizer"])
def test_start_token_is_found_wherever_it_is_named(
    tmp_path: Path, tokenizer: Any, registry: Registry, known: str
) -> None:
    changes: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    named: dict[str, dict[str, Any]] = {
        "bos": {"bos_token_id": 3},
        "eos": {"eos_token_id": 3},
        "eos list": {"eos_token_id": [3, 4]},
        "tokenizer": {},
    }
    changes |= named[known]
    folder = save_checkpoint(make_model("llama", 101, **changes), tmp_path / "expert", tokenizer)
    if known != "tokenizer":
        for path in folder.glob("tokenizer*"):
            path.unlink()
    registration = registry.add_expert(
        "x", folder, settings=PassSettings(tokens=60, seq_len=16, batch_size=4), keep_calibration=True
    )
    assert registration.self_sampled
    member = registry.member(registration.version)
    ids = member.store.read(member.link("calibration", "ids").digest)
    assert set(ids[:, 0].tolist()) == {0 if known == "tokenizer" else 3}


def test_registering_twice_samples_once(bare: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = PassSettings(tokens=60, seq_len=16, batch_size=4)
    first = registry.add_expert("code", bare, settings=settings)
    assert first.added
    monkeypatch.setattr(
        "registry.statistics.collect.load_for_pass", lambda *_, **__: pytest.fail("the model was loaded again")
    )
    again = registry.add_expert("code", bare, settings=settings)
    assert not again.added
    assert again.version == first.version
