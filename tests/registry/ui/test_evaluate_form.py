"""Proves: the form on a composition's page runs the command that it says, and starts nothing that it cannot check."""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.ui.evaluating import evaluated_on, phases_of_evaluating
from registry.ui.jobs import Job, Step
from registry.ui.site import url
from tests.conftest import Zoo
from tests.pages import Page, Pages, served
from tests.registry.ui.examples import composed, record, shown, values
from tests.registry.ui.test_jobs import ended


@pytest.fixture
def pages(filled: Registry, work: Path) -> Iterator[Pages]:
    """Pages whose jobs do nothing, started beside a file of text."""
    (work / "text.txt").write_text("the test text of math\n")
    with served(filled, may_write=True, program=(sys.executable, "-c", "")) as found:
        yield found


@pytest.fixture
def digest(filled: Registry, work: Path) -> str:
    """A composition with a folder, which has no weights."""
    (folder := work.parent / "moe").mkdir()
    return composed(filled, folder, "math", "code")


@pytest.fixture
def form(work: Path) -> dict[str, Any]:
    """A form that can be evaluated."""
    return {"folder": str(work.parent / "moe"), "domain": ["math", ""], "file": ["text.txt", ""]}


def job_of(pages: Pages, where: str) -> Job:
    """Return the job of an address, when it has ended."""
    assert pages.jobs is not None
    return ended(pages.jobs, pages.jobs.get(where.removeprefix("/jobs/")))


@pytest.mark.sqlite
@pytest.mark.check
def test_the_form_evaluates_what_the_command_would(filled: Registry, writable: Pages, zoo: Zoo, tmp_path: Path) -> None:
    digest = filled.compose(["math", "code"], tmp_path / "moe", Recipe(router="ridge", trunk="mean")).digest
    assert f"/compositions/{digest}/evaluation" in values(shown(writable, "compositions", digest), "action", "form")
    form: dict[str, Any] = {
        "folder": str(tmp_path / "moe"), "domain": ["code", "math", ""], "windows": "2", "oracle": "1",
        "file": ["", str(zoo.test["math"]), ""],
    }  # fmt: skip
    answer = writable.send(f"/compositions/{digest}/evaluation", **form)
    assert answer.status == 303, answer.text
    job = job_of(writable, answer.headers["location"])
    assert (job.state, job.error) == ("done", None)
    assert job.title == "Evaluate moe on math (2 windows a domain, with perfect routing)"
    steps = [step.label for step in job.steps if step.label.startswith("evaluating moe")]
    assert steps == ["evaluating moe", "evaluating moe with perfect routing"]
    assert (bool(job.phases), job.to_come) == (True, [])
    data = f"math={zoo.test['math']}"
    assert job.words == ("evaluate", str(tmp_path / "moe"), "--data", data, "--windows", "2", "--oracle")
    (stored,) = filled.evaluations(filled.compositions(digest)[0])
    assert list(stored.document["data"]) == ["math"]
    assert stored.document["settings"]["windows"] == 2
    assert stored.document["oracle"] is not None
    page = shown(writable, "jobs", job.id)
    assert {f"/compositions/{digest}", f"/compositions/{digest}/report"} <= set(page.links)
    assert "Written to" not in page.text


def test_more_text_is_asked_for_once(filled: Registry, pages: Pages, digest: str) -> None:
    record(filled, digest)
    read_only = pages.read("compositions", digest).text
    assert "Few tokens" in read_only
    assert read_only.count("reg evaluate") == 1
    assert "--windows 96" in read_only
    page = shown(pages, "compositions", digest)
    assert "Few tokens" in page.text
    assert "reg evaluate" not in page.text  # the form does it
    assert "#evaluate" in page.links
    assert "96" in values(page)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"folder": "/nowhere"}, "/nowhere is not a folder of this composition"),
    ({"folder": "-rf"}, "is not a folder of this composition"),
    ({"file": ["", ""]}, "no file of test text is given"),
    ({"file": ["nothing.jsonl", ""]}, "the file of math is not there: "),
    ({"file": ["x" * 1001, ""]}, "is not a path of 1 to 1000"),
    ({"file": ["a\nb", ""]}, "is not a path of 1 to 1000"),
    ({"domain": ["a=b", ""]}, "expected a name without ="),
    ({"domain": ["", ""]}, "expected a name without ="),
    ({"domain": ["math", "math"], "file": ["text.txt", "./text.txt"]}, "math is given two files: text.txt and ./text"),
    ({"windows": "0"}, "expected a number from 1"),
    ({"windows": "٣"}, "expected a number from 1"),
]


@pytest.mark.check
def test_what_cannot_be_evaluated_is_not_started(pages: Pages, digest: str, form: dict[str, Any]) -> None:
    for change, told in REFUSED:
        answer = pages.send(f"/compositions/{digest}/evaluation", **form | change)
        assert answer.status == 400
        page = Page(answer.text)
        assert told.lower() in page.text.lower()
        assert f'action="/compositions/{digest}/evaluation"' in answer.text  # the form again, with what was typed
        typed = [text for name in ("domain", "file") for text in change.get(name, form[name])]
        assert set(typed) - {""} <= set(values(page))
    form |= {"domain": ["math", "poems"], "file": ["gone.jsonl", "my poems.txt"], "windows": "7", "baselines": "1"}
    page = Page(pages.send(f"/compositions/{digest}/evaluation", **form).text)
    assert {"gone.jsonl", "poems", "my poems.txt", "7"} <= set(values(page))
    assert [name for _, name, _ in page.attributes].count("checked") == 1
    assert page.text.index("The file of math is not there") < page.text.index("Score it on text")
    for headers in ({"Cookie": ""}, {"Origin": "null"}):
        assert pages.send(f"/compositions/{digest}/evaluation", headers, **form).status == 403
    assert f"{digest}/evaluation" not in pages.ask(f"/compositions/{digest}").text  # nor has it the form
    assert pages.send("/compositions/abcdef/evaluation", **form).status == 404
    assert pages.jobs is not None
    assert pages.jobs.all() == []


@pytest.mark.check
def test_the_form_offers_files_of_earlier_evaluations(
    filled: Registry, pages: Pages, digest: str, work: Path, form: dict[str, Any]
) -> None:
    text = shown(pages, "compositions", digest).text
    assert "48 windows (12,240 tokens) a domain" in text
    assert "The latest evaluation of" not in text
    record(filled, digest, label="some.jsonl")
    said = "The latest evaluation of math scored the file named some.jsonl : give its path, since only names are"
    assert said in shown(pages, "compositions", digest).text
    (work / "old.txt").write_text("text")
    for name in ("old.txt", "text.txt"):
        pages.send(f"/compositions/{digest}/evaluation", **form | {"file": [name, ""]})
    answer = pages.ask(f"/compositions/{digest}", headers=pages.cookie).text
    assert '<option value="text.txt"></option><option value="old.txt"></option></datalist>' in answer
    assert "The latest evaluation of math scored text.txt ." in Page(answer).text
    assert _files_in(answer) == ["", "text.txt", ""]  # of code, math and another domain: ready for more windows
    refused = pages.send(f"/compositions/{digest}/evaluation", **form | {"file": ""}).text
    assert _files_in(refused) == ["", "", ""]  # what was emptied stays so


def _files_in(text: str) -> list[str]:
    return re.findall(r'<input type="text" name="file" value="([^"]*)"', text)


@pytest.mark.check
def test_a_job_of_a_comparison_leads_back_to_it(pages: Pages, digest: str, form: dict[str, Any]) -> None:
    together = [digest[:12], "<b>"]
    comparison, own = url("compositions", "compare", c=together), url("compositions", digest, c=together)
    page = shown(pages, "compositions", digest, c=together)
    assert comparison in page.links
    action = f"/compositions/{digest}/evaluation"
    refused = Page(pages.send(action, **form | {"file": ""}, c=together).text)
    for each in (page, refused):
        assert set(together) <= set(values(each))
    for changes in ({"c": together}, {}):
        job = job_of(pages, pages.send(action, None, **form, **changes).headers["location"])
        assert job.state == "done"
        page = shown(pages, "jobs", job.id)
        assert ("Back to the comparison Open the report" in page.text) == bool(changes)
        links = {comparison, own, f"/compositions/{digest}/report"} if changes else {f"/compositions/{digest}"}
        assert links <= set(page.links)


def test_the_job_of_an_evaluation_says_what_it_scores_next() -> None:
    words = ("evaluate", "/x/moe", "--data", "a+b=x", "--data", "math=y", "--baselines", "--oracle")
    job = Job("a", words, "/", "", phases=tuple(phases_of_evaluating(words)), state="running")
    of_moe = ["evaluating moe", "evaluating moe with perfect routing"]
    averaged = ["evaluating averaged weights", *of_moe]
    own = "evaluating each domain’s own expert"
    writing = Step("writing", 1, 9, "B")
    assert job.called(writing) == "writing the model that the next step reads, into a temporary folder"
    steps = [writing]
    assert replace(job, steps=(writing,)).to_come == ["evaluating base models", own, *averaged]
    for label, to_come in (
        ("base@1", [own, *averaged]),
        ("a+b@2", averaged),
        ("math@1", averaged),
        ("averaged weights", of_moe),
        ("moe", of_moe[1:]),
        ("moe with perfect routing", []),
    ):
        steps.append(Step(f"evaluating {label}", 1, 2, "window"))
        after = replace(job, steps=tuple(steps))
        assert after.to_come == to_come, label
        assert after.called(steps[-1]) == f"evaluating {label}"
        assert after.number == ""  # how many experts there are is not known before
    assert [phase.words for phase in phases_of_evaluating(words[:6])] == [own, "evaluating moe"]
    written = (Step("writing", 9, 9, "B"),)
    assert not replace(job, steps=written).finishing  # it goes on to score
    many = [word for number in range(8) for word in ("--data", f"d{number}=x")]
    said = "on d0, d1, d2, d3, d4, 3 more (48 windows a domain, with baselines)"
    assert evaluated_on(["evaluate", "moe", *many, "--baselines"]) == said
