"""Proves: the form on a composition's page runs the command that it says, and starts nothing that it cannot check."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from tests.conftest import Zoo
from tests.pages import Page, Pages, served
from tests.registry.ui.test_jobs import ended

TEXT = "the test text of math\n"


@pytest.fixture
def pages(filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with served(filled, may_write=True) as found:
        yield found


@pytest.fixture
def digest(filled: Registry, tmp_path: Path) -> str:
    """A composition with a folder."""
    return filled.compose(["math", "code"], tmp_path / "moe", Recipe(router="ridge", trunk="mean")).digest


def test_the_form_evaluates_what_the_command_would(
    filled: Registry, pages: Pages, digest: str, zoo: Zoo, tmp_path: Path
) -> None:
    shown = pages.ask(f"/compositions/{digest}", headers=pages.cookie).text
    assert f'action="/compositions/{digest}/evaluation"' in shown
    form: dict[str, Any] = {
        "folder": str(tmp_path / "moe"), "domain": ["code", "math", ""], "windows": "2", "oracle": "1",
        "file": ["", str(zoo.test["math"]), ""],
    }  # fmt: skip
    answer = pages.send(f"/compositions/{digest}/evaluation", **form)
    assert answer.status == 303, answer.text
    assert pages.jobs is not None
    job = ended(pages.jobs, pages.jobs.get(answer.headers["location"].removeprefix("/jobs/")))
    assert (job.state, job.error) == ("done", None)
    data = f"math={zoo.test['math']}"
    assert job.words == ("evaluate", str(tmp_path / "moe"), "--data", data, "--windows", "2", "--oracle")
    (stored,) = filled.evaluations(filled.compositions(digest)[0])
    assert list(stored.document["data"]) == ["math"]
    assert stored.document["settings"]["windows"] == 2
    assert stored.document["oracle"] is not None
    page = Page(pages.ask(answer.headers["location"], headers=pages.cookie).text)
    assert f"/compositions/{digest}" in page.links
    assert "The scores are stored with the composition" in page.text
    assert "Written to" not in page.text


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"folder": "/nowhere"}, "/nowhere is not a folder of this composition"),
        ({"folder": "-rf"}, "is not a folder of this composition"),
        ({"file": ["", ""]}, "no file of test text is given"),
        ({"file": ["nothing.jsonl", ""]}, "the file of math is not there: "),
        ({"file": ["x" * 1001, ""]}, "is not a path of 1 to 1000"),
        ({"file": ["a\nb", ""]}, "is not a path of 1 to 1000"),
        ({"domain": ["a=b", ""]}, "expected a name without ="),
        ({"domain": ["", ""]}, "expected a name without ="),
        ({"windows": "0"}, "expected a number from 1"),
        ({"windows": "٣"}, "expected a number from 1"),
    ],
    ids=str,
)
def test_what_cannot_be_evaluated_is_not_started(
    pages: Pages, digest: str, tmp_path: Path, form: dict[str, Any], told: str
) -> None:
    (tmp_path / "work" / "text.txt").write_text(TEXT)
    usual = {"folder": str(tmp_path / "moe"), "domain": ["math", ""], "file": ["text.txt", ""]}
    answer = pages.send(f"/compositions/{digest}/evaluation", **usual | form)
    assert answer.status == 400
    assert told.lower() in Page(answer.text).text.lower()
    assert pages.jobs is not None
    assert pages.jobs.all() == []


def test_only_the_browser_that_may_start_work_has_the_form(pages: Pages, digest: str, tmp_path: Path) -> None:
    action = f"/compositions/{digest}/evaluation"
    assert action not in pages.ask(f"/compositions/{digest}").text
    (tmp_path / "work" / "text.txt").write_text(TEXT)
    form: dict[str, Any] = {"folder": str(tmp_path / "moe"), "domain": "math", "file": "text.txt"}
    assert pages.send(action, {"Cookie": ""}, **form).status == 403
    assert pages.send(action, {"Origin": "null"}, **form).status == 403
    assert pages.send("/compositions/abcdef/evaluation", **form).status == 404
    assert pages.jobs is not None
    assert pages.jobs.all() == []
