"""Proves: slices of windows add up to one pass, bit for bit, however they are cut; taking one twice changes nothing."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.errors import DamagedError
from registry.progress import silent
from registry.runtime.upcast import load_for_pass
from registry.statistics import file as statistics_file
from registry.statistics.collect import _with_counts, collect, text_calibration
from registry.statistics.settings import PassSettings
from registry.statistics.slices import Slice, SlicedPass, add_slices, plan_slices, take_slice, taken_slices
from tests.conftest import SETTINGS, Zoo

KIND = "a processor"


@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 12), st.sets(st.integers(0, 30)))
def test_a_plan_covers_every_window_once(windows: int, batch: int, count: int, numbers: set[int]) -> None:
    batches = -(-windows // batch)
    taken = [Slice(n * batch, min((n + 1) * batch, windows)) for n in numbers if n < batches]
    plan = plan_slices(windows, batch, count, taken)
    assert sorted(n for part in (*plan, *taken) for n in range(part.first, part.stop)) == [*range(windows)]
    assert all(part.first % batch == 0 and (part.stop % batch == 0 or part.stop == windows) for part in plan)
    if not taken:
        sizes = [-(-(part.stop - part.first) // batch) for part in plan]
        assert len(plan) == min(count, batches)
        assert max(sizes) - min(sizes) <= 1
    assert all(one.stop <= other.first for one, other in pairwise(plan))


def test_a_slice_that_is_no_run_of_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="no whole batches of 4"):
        plan_slices(16, 4, 2, [Slice(0, 3)])


class Pass:
    """A pass over one checkpoint, alone and by slices."""

    def __init__(self, folder: Path, data: Path, settings: PassSettings = SETTINGS) -> None:
        self.checkpoint = Checkpoint(folder)
        self.hashed = hash_checkpoint(self.checkpoint, silent)
        self.settings = replace(settings, device="cpu")
        calibration = text_calibration(self.checkpoint, [data], self.settings)
        assert calibration is not None
        self.calibration = replace(calibration, wider=None)
        self.whole = SlicedPass.of(self.checkpoint, self.hashed.weights, calibration, self.settings)
        self.model: Any = load_for_pass(folder, self.whole.settings.dtype, "cpu")

    def alone(self, path: Path) -> bytes:
        statistics_file.save(path, collect(self.hashed, self.calibration, self.settings, progress=silent))
        return path.read_bytes()

    def take(self, part: Slice, folder: Path, kind: str = KIND) -> Path:
        return take_slice(self.checkpoint, self.model, self.whole, part, folder, kind, silent)

    def added(self, paths: list[Path], path: Path) -> bytes:
        added = add_slices(self.checkpoint, self.whole, paths)
        statistics_file.save(path, _with_counts(added, self.calibration, self.checkpoint))
        return path.read_bytes()


@pytest.fixture(scope="module")
def one(zoo: Zoo) -> Pass:
    return Pass(zoo.experts["code"], zoo.train["code"])


@pytest.mark.check(after=1)
@pytest.mark.trust(after=4)
@pytest.mark.parametrize("sites", ["all", "router"])
@pytest.mark.parametrize("count", [1, 3, 100])
def test_slices_add_up_to_one_pass(tmp_path: Path, zoo: Zoo, sites: str, count: int) -> None:
    settings = replace(SETTINGS, sites=sites, tokens=450)  # the last batch is not full
    taken = Pass(zoo.experts["math"], zoo.train["math"], settings)
    plan = plan_slices(len(taken.calibration.ids), settings.batch_size, count)
    paths = [taken.take(part, tmp_path) for part in reversed(plan)]
    assert taken.added(paths, tmp_path / "added") == taken.alone(tmp_path / "alone")


def test_a_slice_that_is_taken_twice_is_one_file(one: Pass, tmp_path: Path) -> None:
    first = one.take(Slice(4, 8), tmp_path)
    data = first.read_bytes()
    assert one.take(Slice(4, 8), tmp_path) == first
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [data]


def test_what_an_interruption_left_is_found_and_a_damaged_slice_is_not(one: Pass, tmp_path: Path) -> None:
    windows = len(one.calibration.ids)
    left, damaged = one.take(Slice(0, 8), tmp_path), one.take(Slice(8, 12), tmp_path)
    one.take(Slice(4, 12), tmp_path, "another processor")
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    assert taken_slices(one.whole, tmp_path, KIND) == {Slice(0, 8): left}
    assert not damaged.exists()
    rest = plan_slices(windows, one.settings.batch_size, 2, [Slice(0, 8)])
    paths = [left, *(one.take(part, tmp_path) for part in rest)]
    assert one.added(paths, tmp_path / "added") == one.alone(tmp_path / "alone")


def test_slices_of_another_pass_have_other_names(one: Pass, tmp_path: Path) -> None:
    other = replace(one.whole, computed=one.whole.computed | {"batch_size": 5})
    assert one.whole.name(Slice(0, 4), KIND) != other.name(Slice(0, 4), KIND)
    assert one.whole.name(Slice(0, 4), KIND) != one.whole.name(Slice(0, 4), "another processor")


def test_slices_that_leave_windows_out_are_refused(one: Pass, tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="the slices count 128 of 512 tokens"):
        add_slices(one.checkpoint, one.whole, [one.take(Slice(0, 4), tmp_path)])


def test_the_batches_of_a_slice_are_those_of_the_pass(one: Pass, tmp_path: Path) -> None:
    """Bits of products depend on the shape of a batch: a slice that is one short batch is filled up as the last is."""
    shapes: list[torch.Size] = []
    handle = one.model.get_input_embeddings().register_forward_hook(
        lambda _m, inputs, _o: shapes.append(inputs[0].shape)
    )
    windows = len(one.calibration.ids)
    (tmp_path / "x").mkdir()
    for part in plan_slices(windows, one.settings.batch_size, 100):
        one.take(part, tmp_path / "x")
    handle.remove()
    assert {tuple(shape) for shape in shapes} == {(4, 32)}
