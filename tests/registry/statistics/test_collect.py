"""Proves: the pass counts what it should, never saturates, may be split anyhow, and goes on where it stopped."""

import errno
import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry import PassSettings, Registry
from registry.calibration import Calibration, Corpus
from registry.calibration.windows import encode
from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.checkpoint.model_files import read_headers
from registry.errors import CalibrationError, InvalidInputError, StorageError
from registry.families import FAMILIES
from registry.families.sites import MLP_INPUT, SITES
from registry.maths.fixed_point import power_of_two
from registry.maths.gram import GramAccumulator
from registry.progress import silent
from registry.runtime.loading import load_model, load_tokenizer
from registry.statistics import file as statistics_file
from registry.statistics.collect import collect, collect_to, text_calibration
from registry.statistics.forward_pass import computed_by, take_statistics
from registry.statistics.scales import scales
from registry.statistics.site_sums import HookPoint, dense_hook_points
from tests.conftest import SETTINGS, Zoo
from tests.models import make_model, save_checkpoint
from tests.registry.statistics.windows import windows

Expert = tuple[Any, Any]
"""A checkpoint whose files are hashed, and its model."""


@pytest.fixture(scope="module")
def expert(zoo: Zoo) -> Expert:
    hashed = hash_checkpoint(Checkpoint(zoo.experts["code"]), silent)
    return hashed, load_model(zoo.experts["code"], "float32", "cpu")


def taken(expert: Expert, calibration: Calibration, batch_size: int = 4, partial: Path | None = None) -> Any:
    (hashed, model), settings = expert, PassSettings(batch_size=batch_size)
    return take_statistics(
        hashed.checkpoint, hashed.weights, model, calibration, settings, partial=partial, progress=silent
    )


@pytest.mark.check(after=8)
@pytest.mark.trust(after=17)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_equals_float64_and_never_saturates(family: str, dtype: str, tmp_path: Path, tokenizer: Any) -> None:
    folder = save_checkpoint(make_model(family, 101, head_dim=8), tmp_path / family, tokenizer)
    hashed = hash_checkpoint(Checkpoint(folder, remote_code=True), silent)
    model = load_model(folder, dtype, "cpu")
    calibration = windows(6)
    seen: dict[tuple[str, int], torch.Tensor] = {}

    def watch(tap: HookPoint) -> None:
        def keep(_module: Any, inputs: Any, output: Any) -> None:
            x = output if tap.after else inputs[0]
            seen[tap.site, tap.layer] = x.reshape(-1, x.shape[-1]).double()

        tap.module.register_forward_hook(keep)

    for tap in dense_hook_points(hashed.checkpoint, model):
        watch(tap)
    collected = taken((hashed, model), calibration, batch_size=6)
    assert set(collected.sites) == set(SITES["all"])
    for (site, number), x in seen.items():
        layer = collected.sites[site][number]
        unit = power_of_two(-layer.exponents)
        assert layer.saturated == 0
        assert layer.count == calibration.tokens
        error = 0.5 * unit[:, None] * x.abs().sum(0) + 0.5 * unit[None, :] * x.abs().sum(0)[:, None]
        assert ((layer.gram - x.T @ x).abs() <= error + 0.25 * len(x) * unit[:, None] * unit[None, :]).all()
        assert ((layer.moment - x.sum(0)).abs() <= 0.5 * len(x) * unit).all()


@pytest.fixture(scope="module")
def whole(expert: Expert) -> Any:
    """The statistics of twelve windows: three batches."""
    return taken(expert, windows(12))


def same(one: Any, other: Any) -> bool:
    return bool(one.sites == other.sites)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(order=st.permutations(range(12)), cut=st.integers(1, 11))
def test_any_order_and_shards_give_equal_statistics(expert: Expert, whole: Any, order: list[int], cut: int) -> None:
    of = windows(12)
    shards = [Calibration(of.ids[part], of.lengths[part], "shard") for part in (order[:cut], order[cut:])]
    one, other = (taken(expert, shard).sites[MLP_INPUT] for shard in shards)
    for layer, expected in enumerate(whole.sites[MLP_INPUT]):
        assert one[layer] + other[layer] == other[layer] + one[layer] == expected


def test_padding_does_not_count(expert: Expert) -> None:
    padded = windows(4, lengths=(16, 9, 1, 4))
    garbage = padded.ids.masked_fill(torch.arange(16)[None, :] >= padded.lengths[:, None], 319)
    other = Calibration(garbage, padded.lengths, "padded otherwise")
    assert padded.digest == other.digest
    found, again = taken(expert, padded), taken(expert, other)
    assert same(found, again)
    assert torch.equal(padded.counts(320), other.counts(320))
    assert found.sites[MLP_INPUT][0].count == int(padded.counts(320).sum()) == 30


def test_last_batch_is_filled_up_but_not_counted(expert: Expert) -> None:
    for batch_size in (4, 5):
        assert taken(expert, windows(5), batch_size=batch_size).sites[MLP_INPUT][0].count == 5 * 16


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupted(expert: Expert, partial: Path, number: int, how: Callable[[], None] = interrupt) -> Any:
    """Interrupt a pass after so many additions to sums; return how many windows each layer has counted.

    Of each batch there are seven: 2 layers × 3 sites, and the head's.
    """
    add, calls = GramAccumulator.add, itertools.count(1)

    def counted(sums: GramAccumulator, parts: Any) -> None:
        add(sums, parts)
        if next(calls) == number:
            how()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GramAccumulator, "add", counted)
        with pytest.raises(KeyboardInterrupt):
            taken(expert, windows(12), partial=partial)
    return statistics_file.load(state(partial)).done


def state(partial: Path) -> Path:
    """Return the file of an interrupted pass."""
    (path,) = partial.glob("*/*.safetensors")
    return path


@pytest.mark.parametrize(("damaged", "batches"), [(False, 1), (True, 3)])
def test_interrupted_pass_goes_on_where_it_stopped(
    expert: Expert, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool, batches: int
) -> None:
    """Interrupted in the third of three batches, when the first layer has counted it; a damaged state is not used."""
    module, calls = expert[1].model.layers[1], itertools.count(1)
    forward = module.forward

    def stop_at_the_third(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return forward(*args, **kwargs)

    monkeypatch.setattr(module, "forward", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        taken(expert, windows(12), partial=tmp_path)
    assert (statistics_file.load(state(tmp_path)).done or {})[MLP_INPUT] == (12, 8)
    if damaged:
        state(tmp_path).write_bytes(b"damaged")
    assert same(taken(expert, windows(12), partial=tmp_path), whole)
    assert next(calls) == 4 + batches
    assert list(tmp_path.iterdir()) == []


def test_interruption_waits_for_an_addition_to_end(expert: Expert, whole: Any, tmp_path: Path) -> None:
    """Ctrl-C between two products, in the second of three batches."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process among others may ignore it
    try:
        done = interrupted(expert, tmp_path, 9, lambda: os.kill(os.getpid(), signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(n for layers in done.values() for n in layers) == [4] * 5 + [8] * 2
    assert same(taken(expert, windows(12), partial=tmp_path), whole)


def test_sums_that_broke_off_are_not_written_over_whole_ones(
    expert: Expert, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.statistics.forward_pass.SAVE_SECONDS", 0.0)
    done = interrupted(expert, tmp_path, 17)  # the third batch, first layer's MLP
    layers = dict.fromkeys(("mlp_input", "attention_input", "attention_output"), (8, 8))
    assert done == layers | {"head_input": (8,)}
    assert same(taken(expert, windows(12), partial=tmp_path), whole)


def test_pass_is_written_down_now_and_then(expert: Expert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.statistics.forward_pass.SAVE_SECONDS", 0.0)
    seen: list[set[int]] = []
    forward = expert[1].base_model.forward

    def look(*args: Any, **kwargs: Any) -> Any:
        for path in tmp_path.glob("*/*.safetensors"):
            seen.append({count for layers in (statistics_file.load(path).done or {}).values() for count in layers})
        return forward(*args, **kwargs)

    monkeypatch.setattr(expert[1].base_model, "forward", look)
    taken(expert, windows(12), partial=tmp_path)
    assert seen == [{4}, {8}]


def test_an_infinite_activation_names_its_layer(tmp_path: Path, tokenizer: Any, registry: Registry, zoo: Zoo) -> None:
    model = make_model("llama", 101)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(1e38)  # finite weights, infinite products
    folder = save_checkpoint(model, tmp_path / "hot", tokenizer)
    with pytest.raises(CalibrationError, match=r"an activation is NaN or infinite \(site attention_input, layer 1\)"):
        registry.add_expert("hot", folder, data=[zoo.train["code"]], settings=SETTINGS)
    assert registry.versions() == []


def test_scales_follow_from_the_weights_alone(expert: Expert) -> None:
    expected = scales(expert[0].checkpoint, MLP_INPUT).exponents
    for seed in (1, 2):
        found = taken(expert, windows(4, seed=seed)).sites[MLP_INPUT]
        assert all(torch.equal(layer.exponents, own) for layer, own in zip(found, expected, strict=True))
    assert len({int(p) for p in expected[0]}) > 1  # channels differ


def test_collected_file_registers_without_data_and_equals_the_direct_way(bare: Path, zoo: Zoo, tmp_path: Path) -> None:
    path, collected = collect_to(bare, tmp_path / "out", data=[zoo.train["code"]], settings=SETTINGS)
    assert path == tmp_path / "out" / "statistics.safetensors"
    assert not (tmp_path / "out" / "partial").exists()
    with Registry(tmp_path / "direct") as registry:
        direct = registry.add_expert("code", bare, data=[zoo.train["code"]], settings=SETTINGS).version
    path.rename(bare / path.name)
    with Registry(tmp_path / "carried") as registry:
        carried = registry.add_expert("code", bare).version
    assert carried.digest == direct.digest
    assert carried.statistics == direct.statistics
    assert collected.sites[MLP_INPUT][0].count == direct.statistics[0].tokens


def test_tokenizer_with_tokens_unknown_to_the_model_is_refused(tmp_path: Path, tokenizer: Any, zoo: Zoo) -> None:
    folder = save_checkpoint(make_model("llama", 101, vocab_size=260), tmp_path / "small", tokenizer)
    with pytest.raises(CalibrationError, match=r"its tokenizer gives token \d+, the model knows 260"):
        text_calibration(Checkpoint(folder), [zoo.train["law"]], SETTINGS)


def test_windows_fit_the_model_or_are_the_first_tokens_of_documents(zoo: Zoo) -> None:
    checkpoint, text = Checkpoint(zoo.experts["code"]), [zoo.train["code"]]
    long = text_calibration(checkpoint, text, PassSettings(tokens=256, seq_len=4096))
    wanted = PassSettings(tokens=256, document_tokens=8)
    calibration, tokenizer = text_calibration(checkpoint, text, wanted), load_tokenizer(zoo.experts["code"])
    assert long is not None
    assert calibration is not None
    assert long.ids.shape[1] == 128
    first = [encode(document, tokenizer)[:8] for document in Corpus(text, tokenizer)]
    assert calibration.ids.shape == (32, 8)
    assert all(window in first for window in calibration.ids.tolist())
    assert computed_by(checkpoint, wanted) == computed_by(checkpoint, PassSettings())  # the tokens say it


def test_evidence_is_counted_in_more_text_than_a_model_reads(zoo: Zoo, bare: Path, tmp_path: Path) -> None:
    """In all of it where it is short; where a model reads all, it is what the model reads, with its pairs."""
    text, tokenizer = [zoo.train["code"]], load_tokenizer(bare)
    every = [token for document in Corpus(text, tokenizer) for token in encode(document, tokenizer)]
    counts = torch.bincount(torch.tensor(every), minlength=320)
    for sites in ("counts", "all"):
        _, found = collect_to(bare, tmp_path / sites, data=text, settings=replace(SETTINGS, sites=sites))
        assert found.tokens == SETTINGS.tokens < len(every)
        assert found.token_counts is not None
        assert found.content_counts is not None
        assert int(found.token_counts.sum()) == SETTINGS.tokens
        assert torch.equal(found.content_counts, counts)
        assert found.computed["evidence"] == "text"
    _, whole = collect_to(bare, tmp_path / "whole", data=text, settings=replace(SETTINGS, tokens=len(every)))
    assert whole.content_counts is not None
    assert whole.token_counts is not None
    assert torch.equal(whole.token_counts, counts)
    assert torch.equal(whole.content_counts, counts)
    assert whole.pair_counts is not None
    assert len(whole.pair_counts) > 0
    assert whole.computed["evidence"] == "text"
    assert "evidence_text" not in whole.computed


def test_own_calibration_file_is_taken(bare: Path, zoo: Zoo, registry: Registry) -> None:
    (bare / "calibration.jsonl").write_bytes(zoo.train["math"].read_bytes())
    registration = registry.add_expert("code", bare, settings=SETTINGS)
    assert registration.version.statistics[0].calibration_label == "calibration.jsonl"
    assert not registration.self_sampled


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "tokens is 0, the least is 1"),
        ({"document_tokens": 1}, "document_tokens is 1, the least is 2"),
        ({"document_tokens": 300}, "document_tokens is 300, and a window has 256 tokens"),
        ({"dtype": "int8"}, "dtype 'int8' is not one of auto, bfloat16, float16, float32"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        PassSettings(**changes)
    assert str(caught.value.hint).startswith(("give --", "choose one"))


def test_file_that_cannot_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open

    def forbidden(path: Path, *words: Any, **options: Any) -> Any:
        if path.parent == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *words, **options)

    reads: dict[str, Callable[[Path], object]] = {
        "s.safetensors": statistics_file.load,
        "w.safetensors": lambda path: read_headers([path]),
        "t.jsonl": lambda path: list(Corpus([path], None)),
    }
    for name in reads:
        (tmp_path / name).write_text("x")
    monkeypatch.setattr(Path, "open", forbidden)
    for name, read in reads.items():
        with pytest.raises(InvalidInputError) as caught:
            read(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name} cannot be read: permission denied"
        assert caught.value.hint == f"make it readable: chmod u+r {tmp_path / name}"


def test_device_that_is_none_and_a_folder_that_cannot_be_made_are_refused(bare: Path, zoo: Zoo, tmp_path: Path) -> None:
    hashed = hash_checkpoint(Checkpoint(bare), silent)
    with pytest.raises(InvalidInputError, match="device 'nonsense' cannot be used"):
        collect(hashed, windows(2), PassSettings(device="nonsense"), progress=silent)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be created"):
        collect_to(bare, tmp_path / "file" / "out", data=[zoo.train["code"]])
