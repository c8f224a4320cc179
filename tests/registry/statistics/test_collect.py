"""Proves: the pass counts what it should, never saturates, may be split anyhow, and goes on where it stopped."""

import errno
import os
import signal
from collections.abc import Callable
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
from registry.checkpoint.weights import read_headers
from registry.errors import CalibrationError, InvalidInputError, StorageError
from registry.families import FAMILIES
from registry.families.sites import MLP_INPUT, SITES
from registry.maths.fixed_point import power_of_two
from registry.maths.gram import GramAccumulator
from registry.progress import silent
from registry.runtime.loading import load_model, load_tokenizer
from registry.statistics import file as statistics_file
from registry.statistics.collect import collect, collect_to, text_calibration
from registry.statistics.forward_pass import ModelRun, computed_by, take_statistics
from registry.statistics.scales import scales
from registry.statistics.site_sums import dense_hook_points
from tests.conftest import SETTINGS, Zoo
from tests.models import make_model, save_checkpoint, sentences, write_jsonl


def windows(count: int, length: int = 16, seed: int = 0) -> Calibration:
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 320, (count, length), generator=draw, dtype=torch.int32)
    return Calibration(ids, torch.full((count,), length, dtype=torch.int32), "random")


@pytest.fixture(scope="module")
def expert(zoo: Zoo) -> tuple[Any, Any]:
    hashed = hash_checkpoint(Checkpoint(zoo.experts["code"]), silent)
    return hashed, load_model(zoo.experts["code"], "float32", "cpu")


def watch(tap: Any, seen: dict[tuple[str, int], torch.Tensor]) -> None:
    def keep(_module: Any, inputs: Any, output: Any = None) -> None:
        x = output if tap.after else inputs[0]
        seen[tap.site, tap.layer] = x.reshape(-1, x.shape[-1]).double()

    if tap.after:
        tap.module.register_forward_hook(keep)
    else:
        tap.module.register_forward_pre_hook(keep)


def taken(expert: tuple[Any, Any], calibration: Calibration, batch_size: int = 4, **options: Any) -> Any:
    hashed, model = expert
    options = {"progress": silent} | options
    settings = PassSettings(batch_size=batch_size, **{k: options.pop(k) for k in ("sites", "folds") if k in options})
    return take_statistics(hashed.checkpoint, hashed.weights, ModelRun(model), calibration, settings, **options)


@pytest.mark.check(after=8)
@pytest.mark.trust(after=17)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_equals_a_float64_reference_to_the_resolution_and_never_saturates(
    family: str, dtype: str, tmp_path: Path, tokenizer: Any
) -> None:
    folder = save_checkpoint(make_model(family, 101, head_dim=8), tmp_path / family, tokenizer)
    hashed = hash_checkpoint(Checkpoint(folder, remote_code=True), silent)
    model = load_model(folder, dtype, "cpu")
    calibration = windows(6)
    seen: dict[tuple[str, int], torch.Tensor] = {}
    for tap in dense_hook_points(hashed.checkpoint)(model):
        watch(tap, seen)
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
def whole(expert: tuple[Any, Any]) -> Any:
    """The statistics of eight windows, passed together."""
    return taken(expert, windows(8)).sites[MLP_INPUT]


@pytest.mark.check
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(order=st.permutations(range(8)), cut=st.integers(1, 7))
def test_any_order_and_shards_of_equal_batches_give_equal_statistics(
    expert: tuple[Any, Any], whole: Any, order: list[int], cut: int
) -> None:
    calibration = windows(8)
    shards = [order[:cut], order[cut:]]
    parts = [
        taken(expert, Calibration(calibration.ids[shard], calibration.lengths[shard], "shard")).sites[MLP_INPUT]
        for shard in shards
    ]
    for layer in range(len(whole)):
        assert parts[0][layer] + parts[1][layer] == whole[layer]
        assert parts[1][layer] + parts[0][layer] == whole[layer]


def test_padding_does_not_count(expert: tuple[Any, Any]) -> None:
    calibration = windows(4)
    lengths = torch.tensor([16, 9, 1, 4], dtype=torch.int32)
    garbage = calibration.ids.masked_fill(torch.arange(16)[None, :] >= lengths[:, None], 319)
    one = taken(expert, Calibration(calibration.ids, lengths, "padded"))
    other = taken(expert, Calibration(garbage, lengths, "padded otherwise"))
    assert (one.sites, one.folds) == (other.sites, other.folds)
    assert torch.equal(one.token_counts, other.token_counts)
    assert one.sites[MLP_INPUT][0].count == int(one.token_counts.sum()) == 30
    assert Calibration(calibration.ids, lengths, "a").digest == Calibration(garbage, lengths, "b").digest


def test_last_batch_is_filled_up_but_not_counted(expert: tuple[Any, Any]) -> None:
    calibration = windows(5)
    assert taken(expert, calibration).sites[MLP_INPUT][0].count == 5 * 16
    assert taken(expert, calibration, batch_size=5).sites[MLP_INPUT][0].count == 5 * 16


@pytest.mark.parametrize("layer", [0, 1])
def test_interrupted_pass_goes_on_where_it_stopped(
    expert: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: int
) -> None:
    """Interrupted in the third of three batches: before any layer has counted it, and when the first one has."""
    calibration = windows(12)
    whole = taken(expert, calibration)
    module = expert[1].model.layers[layer]
    calls = 0
    forward = module.forward

    def stop_at_the_third(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return forward(*args, **kwargs)

    monkeypatch.setattr(module, "forward", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        taken(expert, calibration, partial=tmp_path)
    (left,) = tmp_path.glob("*/*.safetensors")
    done = statistics_file.load(left).done
    assert done is not None
    assert done[MLP_INPUT] == ((8, 8) if layer == 0 else (12, 8))
    calls = 10
    again = taken(expert, calibration, partial=tmp_path)
    assert (again.sites, again.folds) == (whole.sites, whole.folds)
    assert calls == 11  # one batch of three was left
    assert list(tmp_path.iterdir()) == []


def test_interruption_waits_for_an_addition_to_end(
    expert: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Ctrl-C between two products, in the second of three batches."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process among others may ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    calibration = windows(12)
    whole = taken(expert, calibration)
    product, calls = GramAccumulator.add, 0

    def interrupted(sums: GramAccumulator, parts: Any) -> None:
        nonlocal calls
        calls += 1
        product(sums, parts)
        if calls == 11:  # of each batch 9: 2 layers × (1 + 1 + 2 folds), and the head's
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(GramAccumulator, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        taken(expert, calibration, partial=tmp_path)
    done = statistics_file.load(next(tmp_path.glob("*/*.safetensors"))).done
    assert done is not None
    assert sorted(n for layers in done.values() for n in layers) == [4] * 5 + [8] * 2
    monkeypatch.undo()
    again = taken(expert, calibration, partial=tmp_path)
    assert (again.sites, again.folds) == (whole.sites, whole.folds)


def test_sums_that_broke_off_are_not_written_over_whole_ones(
    expert: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibration = windows(12)
    whole = taken(expert, calibration)
    product, calls = GramAccumulator.add, 0

    def broken(sums: GramAccumulator, parts: Any) -> None:
        nonlocal calls
        calls += 1
        product(sums, parts)
        if calls == 21:  # the third batch, first layer's MLP: one of two folds
            raise KeyboardInterrupt

    monkeypatch.setattr(GramAccumulator, "add", broken)
    monkeypatch.setattr("registry.statistics.forward_pass.SAVE_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        taken(expert, calibration, partial=tmp_path)
    assert statistics_file.load(next(tmp_path.glob("*/*.safetensors"))).done == {
        "mlp_input": (8, 8),
        "attention_input": (8, 8),
        "attention_output": (8, 8),
        "head_input": (8,),
    }
    monkeypatch.undo()
    again = taken(expert, calibration, partial=tmp_path)
    assert (again.sites, again.folds) == (whole.sites, whole.folds)


def test_pass_under_way_is_written_down_now_and_then(
    expert: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.statistics.forward_pass.SAVE_SECONDS", 0.0)
    _, model = expert
    seen: list[Any] = []
    forward = model.base_model.forward

    def look(*args: Any, **kwargs: Any) -> Any:
        seen.extend(
            set(sum((statistics_file.load(path).done or {}).values(), ())) for path in tmp_path.glob("*/*.safetensors")
        )
        return forward(*args, **kwargs)

    monkeypatch.setattr(model.base_model, "forward", look)
    taken(expert, windows(12), partial=tmp_path)
    assert seen == [{4}, {8}]


def test_damaged_or_foreign_pass_under_way_begins_anew(expert: tuple[Any, Any], tmp_path: Path) -> None:
    calibration = windows(4)
    _, model = expert
    whole = taken(expert, calibration)
    with pytest.raises(KeyboardInterrupt):
        interrupt(lambda: taken(expert, calibration, partial=tmp_path), model)
    (left,) = tmp_path.glob("*/*.safetensors")
    left.write_bytes(b"damaged")
    again = taken(expert, calibration, partial=tmp_path)
    assert (again.sites, again.folds) == (whole.sites, whole.folds)


def interrupt(action: Callable[[], Any], model: Any) -> None:
    def hook(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = model.base_model.register_forward_hook(hook)
    try:
        action()
    finally:
        handle.remove()


def test_activation_that_is_not_finite_is_told_with_its_layer(
    tmp_path: Path, tokenizer: Any, registry: Registry
) -> None:
    model = make_model("llama", 101)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(1e38)  # finite weights, infinite products
    folder = save_checkpoint(model, tmp_path / "hot", tokenizer)
    data = write_jsonl(tmp_path / "data.jsonl", sentences("code", 20))
    with pytest.raises(CalibrationError, match=r"an activation is NaN or infinite \(site attention_input, layer 1\)"):
        registry.add_expert("hot", folder, data=[data], settings=SETTINGS)
    assert registry.versions() == []


def test_scales_follow_from_the_weights_alone(zoo: Zoo, expert: tuple[Any, Any]) -> None:
    hashed, _ = expert
    one = taken(expert, windows(4, seed=1)).sites[MLP_INPUT]
    other = taken(expert, windows(4, seed=2)).sites[MLP_INPUT]
    for layer, exponents in enumerate(scales(hashed.checkpoint, MLP_INPUT).exponents):
        assert torch.equal(one[layer].exponents, exponents)
        assert torch.equal(other[layer].exponents, exponents)
    assert len({int(p) for p in scales(hashed.checkpoint, MLP_INPUT).exponents[0]}) > 1  # channels differ


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


def test_tokenizer_with_tokens_unknown_to_the_model_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    folder = save_checkpoint(make_model("llama", 101, vocab_size=260), tmp_path / "small", tokenizer)
    data = write_jsonl(tmp_path / "data.jsonl", sentences("law", 20))
    hashed = hash_checkpoint(Checkpoint(folder), silent)
    with pytest.raises(CalibrationError, match=r"its tokenizer gives token \d+, the model knows 260"):
        text_calibration(hashed.checkpoint, [data], SETTINGS)


def test_windows_are_no_longer_than_the_model_can_take(bare: Path, zoo: Zoo) -> None:
    checkpoint = hash_checkpoint(Checkpoint(bare), silent).checkpoint
    calibration = text_calibration(checkpoint, [zoo.train["code"]], PassSettings(tokens=256, seq_len=4096))
    assert calibration is not None
    assert calibration.ids.shape[1] == 128


def test_first_tokens_of_documents_are_taken_where_that_is_asked_for(bare: Path, zoo: Zoo) -> None:
    checkpoint = hash_checkpoint(Checkpoint(bare), silent).checkpoint
    wanted = PassSettings(tokens=256, document_tokens=8)
    calibration = text_calibration(checkpoint, [zoo.train["code"]], wanted)
    assert calibration is not None
    tokenizer = load_tokenizer(bare)
    first = [encode(document, tokenizer)[:8] for document in Corpus([zoo.train["code"]], tokenizer)]
    assert calibration.ids.shape == (32, 8)
    assert all(window in first for window in calibration.ids.tolist())
    assert computed_by(checkpoint, wanted) == computed_by(checkpoint, PassSettings())  # the tokens say it


def test_own_calibration_file_is_taken(bare: Path, zoo: Zoo, registry: Registry) -> None:
    (bare / "calibration.jsonl").write_bytes(zoo.train["math"].read_bytes())
    registration = registry.add_expert("code", bare, settings=SETTINGS)
    assert registration.version.statistics[0].calibration_label == "calibration.jsonl"
    assert not registration.self_sampled


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "tokens is 0, the least is 1"),
        ({"seq_len": 1}, "seq_len is 1, the least is 2"),
        ({"batch_size": 0}, "batch_size is 0, the least is 1"),
        ({"document_tokens": 1}, "document_tokens is 1, the least is 2"),
        ({"document_tokens": 300}, "document_tokens is 300, and a window has 256 tokens"),
        ({"dtype": "int8"}, "dtype 'int8' is not one of auto, bfloat16, float16, float32"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        PassSettings(**changes)
    assert str(caught.value.hint).startswith(("give --", "choose one"))


def test_file_that_cannot_be_read_is_not_called_damaged(
    bare: Path, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def forbidden(path: Path, *words: Any, **options: Any) -> Any:
        if path.parent == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *words, **options)

    statistics, weights, text = (tmp_path / name for name in ("s.safetensors", "w.safetensors", "t.jsonl"))
    for path in (statistics, weights, text):
        path.write_text("x")
    monkeypatch.setattr(Path, "open", forbidden)
    for path, read in (
        (statistics, lambda: statistics_file.load(statistics)),
        (weights, lambda: read_headers([weights])),
        (text, lambda: list(Corpus([text], None))),
    ):
        with pytest.raises(InvalidInputError) as caught:
            read()
        assert str(caught.value) == f"{path} cannot be read: permission denied"
        assert caught.value.hint == f"make it readable: chmod u+r {path}"


def test_device_that_is_none_is_refused(bare: Path) -> None:
    hashed = hash_checkpoint(Checkpoint(bare), silent)
    with pytest.raises(InvalidInputError, match="device 'nonsense' cannot be used"):
        collect(hashed, windows(2), PassSettings(device="nonsense"), progress=silent)


def test_out_that_cannot_be_made_is_told(bare: Path, zoo: Zoo, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be created"):
        collect_to(bare, tmp_path / "file" / "out", data=[zoo.train["code"]])
