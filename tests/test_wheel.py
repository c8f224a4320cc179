"""Proves: a built wheel holds the packages and the migrations, and `reg` runs from it alone."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    source = out / "source"
    # setuptools builds beside the source, so the tracked files are built from a copy
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, files.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    subprocess.run(words, check=True, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.mark.check
def test_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"cli", "registry", "store"}
    revisions = [path.name for path in (ROOT / "migrations" / "versions").glob("*.py")]
    for name in ("store/migrations/env.py", *(f"store/migrations/versions/{name}" for name in revisions)):
        assert name in names
    assert {"registry/py.typed", "store/py.typed", "cli/py.typed"} <= set(names)
    assert {"registry/report/templates/page.html", "registry/report/page.css", "registry/report/page.js"} <= set(names)
    assert {f"registry/design/static/{name}.css" for name in ("tokens", "base")} <= set(names)
    python = {
        str(path.relative_to(ROOT)) for top in ("cli", "registry", "store") for path in (ROOT / top).rglob("*.py")
    }
    assert python <= set(names), "a package is missing from pyproject.toml"


@pytest.mark.check
def test_reg_runs_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    script = (
        "import sys, store.migrations, registry\n"
        f"assert store.migrations.__path__[0].startswith({str(site)!r}), store.migrations.__path__\n"
        "from cli.main import main\n"
        f"main(['--home', {str(tmp_path / 'home')!r}, 'db', 'upgrade'])"
    )
    # The folder stands before everything else, the project's own checkout included.
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the catalog is at ")
