"""Proves: a built wheel holds the packages and the migrations, and `reg` runs from it alone."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.running import ROOT

PACKAGES = ("cli", "registry", "store")


@pytest.mark.check
def test_wheel_holds_the_packages_and_nothing_else_and_runs_alone(tmp_path: Path) -> None:
    source, site = tmp_path / "source", tmp_path / "site"
    # setuptools builds beside the source, so the tracked files are built from a copy
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(words, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0"):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.run(words, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        names = set(archive.namelist())
        archive.extractall(site)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    revisions = [path.name for path in (ROOT / "migrations" / "versions").glob("*.py")]
    assert {"store/migrations/env.py", *(f"store/migrations/versions/{name}" for name in revisions)} <= names
    assert {f"{top}/py.typed" for top in PACKAGES} <= names
    assert {"registry/report/templates/page.html", "registry/report/page.css", "registry/report/page.js"} <= names
    assert {f"registry/design/static/{name}.css" for name in ("tokens", "base")} <= names
    assert "registry/design/templates/shared.html" in names
    python = {str(path.relative_to(ROOT)) for top in PACKAGES for path in (ROOT / top).rglob("*.py")}
    assert python <= names, "a package is missing from pyproject.toml"
    script = (
        "import sys, store.migrations, registry\n"
        f"assert store.migrations.__path__[0].startswith({str(site)!r}), store.migrations.__path__\n"
        "from cli.main import main\n"
        f"main(['--home', {str(tmp_path / 'home')!r}, 'db', 'upgrade'])"
    )
    # The folder stands before everything else, the project's own checkout included.
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, cwd=tmp_path, env={"PYTHONPATH": str(site)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the catalog is at ")
