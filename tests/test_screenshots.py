"""Proves: pictures are taken of the pages that are named, and a name of no page is said."""

import subprocess
import sys
from pathlib import Path

import pytest

from registry import Registry
from tests.chromium import CHROMIUM
from tests.screenshots import LOOKS


@pytest.mark.check
@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium")
def test_the_command_takes_the_pages_of_its_arguments(tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api")
    with Registry(tmp_path / "home") as registry:
        registry.catalog.create()
    words = [sys.executable, "-m", "tests.screenshots", str(tmp_path / "home"), str(tmp_path / "out")]
    done = subprocess.run([*words, "log"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(f"log-{look}.png" for look in LOOKS)
    wrong = subprocess.run([*words, "lgo"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("no page is called lgo; there are home, search, ")
