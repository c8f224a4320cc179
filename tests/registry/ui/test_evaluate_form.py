"""Proves: the form on a composition's page runs the command that it says, and starts nothing that it cannot check."""

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.ui.evaluating import phases_of_evaluating
from registry.ui.jobs import Job, Step
from registry.ui.site import url
from tests.conftest import Zoo
from tests.pages import Page, Pages, served
from tests.registry.ui.examples import evaluation
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


@pytest.mark.check
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
    assert job.title == "Evaluate moe on math (2 windows a domain, with perfect routing)"
    steps = [step.label for step in job.steps if step.label.startswith("evaluating moe")]
    assert steps == ["evaluating moe", "evaluating moe with perfect routing"]
    assert job.phases
    assert job.to_come == []
    data = f"math={zoo.test['math']}"
    assert job.words == ("evaluate", str(tmp_path / "moe"), "--data", data, "--windows", "2", "--oracle")
    (stored,) = filled.evaluations(filled.compositions(digest)[0])
    assert list(stored.document["data"]) == ["math"]
    assert stored.document["settings"]["windows"] == 2
    assert stored.document["oracle"] is not None
    page = Page(pages.ask(answer.headers["location"], headers=pages.cookie).text)
    assert f"/compositions/{digest}" in page.links
    assert f"/compositions/{digest}/report" in page.links
    assert "The scores are with the composition; its report has those of the evaluation on the most" in page.text
    assert "Written to" not in page.text


def test_more_text_is_asked_for_once(filled: Registry, pages: Pages, digest: str) -> None:
    filled.catalog.record_evaluation(digest, "1" * 64, evaluation())
    command = "reg evaluate"
    read_only = pages.read("compositions", digest).text
    assert "Few tokens" in read_only
    assert read_only.count(command) == 1
    assert "--windows 96" in read_only
    shown = Page(pages.ask(f"/compositions/{digest}", headers=pages.cookie).text)
    assert "Few tokens" in shown.text
    assert command not in shown.text  # the form does it
    assert "#evaluate" in shown.links
    assert ("input", "value", "96") in shown.attributes


@pytest.mark.check(after=1)
@pytest.mark.trust(after=2)
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
    page = Page(answer.text)
    assert told.lower() in page.text.lower()
    assert f'action="/compositions/{digest}/evaluation"' in answer.text  # the form again, with what was typed
    values = [value for tag, name, value in page.attributes if (tag, name) == ("input", "value")]
    typed = [form.get(name, usual[name])[0] for name in ("domain", "file")]
    assert set(typed) - {""} <= set(values)
    assert pages.jobs is not None
    assert pages.jobs.all() == []


def test_a_refused_form_keeps_what_was_chosen(pages: Pages, digest: str, tmp_path: Path) -> None:
    form: dict[str, Any] = {
        "folder": str(tmp_path / "moe"),
        "domain": ["math", "poems"],
        "file": ["gone.jsonl", "my poems.txt"],
    }
    answer = pages.send(f"/compositions/{digest}/evaluation", **form, windows="7", baselines="1")
    page = Page(answer.text)
    assert answer.status == 400
    assert {"gone.jsonl", "poems", "my poems.txt", "7"} <= {
        value for _, name, value in page.attributes if name == "value"
    }
    assert [name for _, name, _ in page.attributes].count("checked") == 1
    assert page.text.index("The file of math is not there") < page.text.index("Score it on text")


def test_a_domain_has_one_file(pages: Pages, digest: str, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("some.txt", "more.txt")]
    for file in files:
        Path(file).write_text("text")
    form: dict[str, Any] = {
        "folder": str(tmp_path / "moe"),
        "domain": ["math", "code", "math"],
        "file": [files[0], "", files[1]],
    }
    answer = pages.send(f"/compositions/{digest}/evaluation", **form)
    page = Page(answer.text)
    assert answer.status == 400
    assert f"The domain math is given two files: {files[0]} and {files[1]}" in page.text
    assert set(files) <= {value for _, name, value in page.attributes if name == "value"}
    assert pages.jobs is not None
    assert list(pages.jobs.all()) == []


@pytest.mark.check
def test_the_form_offers_files_of_earlier_evaluations(
    filled: Registry, pages: Pages, digest: str, tmp_path: Path
) -> None:
    def text() -> str:
        return Page(pages.ask(f"/compositions/{digest}", headers=pages.cookie).text).text

    assert "48 windows (12,240 tokens) a domain" in text()
    assert ".jsonl.gz" in text()
    assert "The latest evaluation of" not in text()
    filled.catalog.record_evaluation(digest, "1" * 64, evaluation("some.jsonl"))
    assert (
        "The latest evaluation of math scored the file named some.jsonl : give its path, since only names are recorded"
        in text()
    )
    form: dict[str, Any] = {"folder": str(tmp_path / "moe"), "domain": "math"}
    for name in ("old.txt", "text.txt"):
        (tmp_path / "work" / name).write_text(TEXT)
        pages.send(f"/compositions/{digest}/evaluation", **form, file=name)
    shown = pages.ask(f"/compositions/{digest}", headers=pages.cookie).text
    assert '<option value="text.txt"></option><option value="old.txt"></option></datalist>' in shown
    assert "The latest evaluation of math scored text.txt ." in Page(shown).text
    assert files_in(shown) == ["", "text.txt", ""]  # of code, math and another domain: ready for more windows
    refused = pages.send(f"/compositions/{digest}/evaluation", **form, file="").text
    assert files_in(refused) == ["", "", ""]  # what was emptied stays so
    assert pages.jobs is not None
    for job in pages.jobs.all():
        ended(pages.jobs, job)


def files_in(shown: str) -> list[str]:
    """Return what the form's fields of files hold."""
    return re.findall(r'<input type="text" name="file" value="([^"]*)"', shown)


def test_evaluations_of_one_composition_say_what_they_evaluate(pages: Pages, digest: str, tmp_path: Path) -> None:
    (tmp_path / "work" / "text.txt").write_text(TEXT)
    form: dict[str, Any] = {"folder": str(tmp_path / "moe"), "file": "text.txt"}
    pages.send(f"/compositions/{digest}/evaluation", **form, domain="math", windows="96", oracle="1")
    many = {"domain": [f"d{number}" for number in range(8)], "file": ["text.txt"] * 8}
    pages.send(f"/compositions/{digest}/evaluation", **form | many, baselines="1")
    text = Page(pages.ask("/jobs", headers=pages.cookie).text).text
    assert "Evaluate moe on math (96 windows a domain, with perfect routing)" in text
    assert "Evaluate moe on d0, d1, d2, d3, d4, 3 more (48 windows a domain, with baselines)" in text
    assert pages.jobs is not None
    for job in pages.jobs.all():
        assert f"asked for at {job.created:%Y-%m-%d %H:%M} UTC" in text
        assert not replace(job, state="running", steps=(Step("writing", 9, 9, "B"),)).finishing  # it goes on to score
        pages.jobs.cancel(job.id)


@pytest.mark.check
def test_a_job_of_a_comparison_leads_back_to_it(filled: Registry, digest: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    form: dict[str, Any] = {"folder": str(tmp_path / "moe"), "domain": "math", "file": str(tmp_path / "text.txt")}
    together = [digest[:12], "<b>"]
    comparison, own = url("compositions", "compare", c=together), url("compositions", digest, c=together)
    action = f"/compositions/{digest}/evaluation"

    with served(filled, may_write=True, program=(sys.executable, "-c", "")) as pages:

        def done(**form: Any) -> Page:
            where = pages.send(action, **form).headers["location"]
            assert pages.jobs is not None
            assert ended(pages.jobs, pages.jobs.get(where.removeprefix("/jobs/"))).state == "done"
            return Page(pages.ask(where, headers=pages.cookie).text)

        shown = Page(pages.ask(own, headers=pages.cookie).text)
        assert comparison in shown.links
        refused = Page(pages.send(action, **form | {"file": ""}, c=together).text)
        for page in (shown, refused):
            assert set(together) <= {value for tag, name, value in page.attributes if (tag, name) == ("input", "value")}
        page = done(**form, c=together)
        assert "Back to the comparison Open the report" in page.text
        assert {comparison, own, f"/compositions/{digest}/report"} <= set(page.links)
        page = done(**form)
        assert "Back to the comparison" not in page.text
        assert f"/compositions/{digest}" in page.links


def test_the_job_of_an_evaluation_says_what_it_scores_next() -> None:
    words = ("evaluate", "/x/moe", "--data", "a+b=x", "--data", "math=y", "--baselines", "--oracle")
    job = Job("a", "a", words, "/", "", phases=tuple(phases_of_evaluating(words)), state="running")
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
