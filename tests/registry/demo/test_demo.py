"""Proves: the demo runs end to end, in small, and its folder is only ever its own."""

import shutil
from pathlib import Path

import pytest

from registry.demo import DemoResult, run, run_demo
from registry.errors import OutputError
from tests.conftest import files_of


def test_demo_shows_the_promises(demo_result: DemoResult) -> None:
    result = demo_result
    assert result.domains == ("code", "english", "math")
    assert [row.name for row in result.rows] == [
        "base base@1",
        "expert code",
        "expert english",
        "expert math",
        "average",
        "moe",
    ]
    assert len(result.orders) == 3
    assert len(set(result.orders.values())) == 1
    assert result.opted_out == result.never_registered
    assert result.opted_out != next(iter(result.orders.values()))
    kept = sorted(path.name for path in result.folder.iterdir())
    assert kept == ["checkpoints", "demo.json", "moe", "registry", "text"]


def test_earlier_demo_is_replaced_only_where_asked(tmp_path: Path, demo_result: DemoResult) -> None:
    demo = shutil.copytree(demo_result.folder, tmp_path / "demo")
    before = files_of(demo)
    with pytest.raises(OutputError, match="holds an earlier demo") as caught:
        run_demo(demo)
    assert "--force" in str(caught.value.hint)
    assert files_of(demo) == before
    with run._prepared(demo, force=True):
        pass
    assert [path.name for path in demo.iterdir()] == ["demo.json"]


def test_two_demos_in_one_folder_are_kept_apart(tmp_path: Path) -> None:
    with run._prepared(tmp_path / "demo", force=False):
        for force in (False, True):
            with pytest.raises(OutputError, match="another demo is running in") as caught:
                run_demo(tmp_path / "demo", force=force)
            assert caught.value.hint == "choose another --out, or wait until it has ended"
    with run._prepared(tmp_path / "demo", force=False):  # nothing was made there
        assert [path.name for path in (tmp_path / "demo").iterdir()] == ["demo.json"]


def test_files_of_a_user_in_an_earlier_demo_stay(tmp_path: Path, demo_result: DemoResult) -> None:
    demo = shutil.copytree(demo_result.folder, tmp_path / "demo")
    mine = ["thesis.tex", "text/thesis.txt", "text/math.jsonl.gz", "checkpoints/mine/config.json", "moe2/config.json"]
    for name in mine:
        (demo / name).parent.mkdir(exist_ok=True)
        (demo / name).write_text("mine")
    with run._prepared(demo, force=True):
        pass
    assert files_of(demo).keys() == {*mine, "demo.json"}


@pytest.mark.parametrize("force", [False, True])
def test_folder_of_somebody_else_is_not_replaced(tmp_path: Path, force: bool) -> None:
    for name in ("thesis.tex", "registry"):  # a name as the demo has it makes it no demo
        (tmp_path / name).write_text("x")
    with pytest.raises(OutputError, match="was not made by the demo"):
        run_demo(tmp_path, force=force)
    assert (tmp_path / "thesis.tex").exists()
    with pytest.raises(OutputError, match="is not a folder"):
        run_demo(tmp_path / "thesis.tex", force=force)


def test_make_demo_can_be_repeated() -> None:
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    assert "/reg demo --force" in makefile
