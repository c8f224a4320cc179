"""Proves: a job makes what its command makes, one at a time; it can fail, be cancelled, and ends with the server."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.errors import ConflictError, InvalidInputError, NotFoundError
from registry.ui import Jobs, WriteAccess
from registry.ui.composer.composing import phases_of_composing
from registry.ui.jobs import MOST_LINES, MOST_WAITING, Job, Step
from registry.ui.site import url
from tests.conftest import files_of
from tests.pages import Page, Pages, served
from tests.registry.ui.examples import shown, values

SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
print("progress: writing 1/4 layer", file=sys.stderr, flush=True)
print("a remark \\x1b[31m", file=sys.stderr, flush=True)
try:
    while True:
        time.sleep(0.05)
        sys.stdin
except KeyboardInterrupt:
    print("cleaned up", file=open(sys.argv[1], "a"))
    sys.exit(130)
"""
"""A command that ends when it is interrupted, and tells the file of its first argument."""


def waits_for(check: Callable[[], Any], seconds: float = 300) -> Any:
    """Return what `check` returns once that is true."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)
    return found


def script(text: str) -> tuple[str, ...]:
    return sys.executable, "-c", textwrap.dedent(text)


def ended(jobs: Jobs, job: Job) -> Job:
    waits_for(lambda: not jobs.get(job.id).goes_on)
    return jobs.get(job.id)


def started(pages: Pages, **form: object) -> Job:
    """Send the form of a composition, and return its job when that has ended."""
    answer = pages.send("/jobs", None, **form)
    assert answer.status == 303, answer.text
    assert pages.jobs is not None
    return ended(pages.jobs, pages.jobs.get(answer.headers["location"].removeprefix("/jobs/")))


@pytest.mark.sqlite
@pytest.mark.check
def test_the_page_composes_what_the_command_would(filled: Registry, writable: Pages, work: Path) -> None:
    text = writable.ask("/compose?e=math&e=code&router=ridge&out=moe", headers=writable.cookie).text
    assert "reg compose --experts code@1,math@1 --router ridge --out moe" in text
    form = _form(text, "/jobs")
    assert writable.access is not None
    assert form["form_token"] == [writable.access.form_token]
    job = started(writable, **form)
    assert (job.state, job.error) == ("done", None)
    expected = filled.compose(["math", "code"], work.parent / "other", Recipe(router="ridge"))
    assert job.result["digest"] == expected.digest
    assert files_of(work / "moe") == files_of(work.parent / "other")
    assert any(step.unit == "B" and step.done == step.total for step in job.steps)
    page = shown(writable, "jobs", job.id)
    assert f"/compositions/{expected.digest}" in page.links
    (another,) = (link for link in page.links if link.startswith("/compose?"))
    same = urllib.parse.parse_qs(another.partition("?")[2])  # the same choices, and a folder that is free
    assert (same["e"], same["router"]) == (["math", "code"], ["ridge"])
    assert "out" not in same
    assert values(page, "http-equiv", "meta") == []  # it does not reload any more
    assert "Compose code@1, math@1 (router ridge) done" in shown(writable, "jobs").text


@pytest.mark.check
def test_nothing_is_overwritten_or_started_that_cannot_be_planned(writable: Pages, work: Path) -> None:
    for name, file in (("full", "thesis.txt"), ("old", "composition.json")):
        (work / name).mkdir()
        (work / name / file).write_text("{}")
    (work / "file").write_text("")
    (work / "link").symlink_to("full")
    before = files_of(work)
    for out, told in (
        ("full", "exists and is not empty"),
        ("old", "exists and is not empty"),
        ("file", "exists and is not a folder"),
        ("link", "is a symbolic link"),
        ("-rf", "begins with -"),
        ("~/moe", "begins with ~"),
        ("a\nb", "printable"),
        ("a\x00b", "printable"),
        ("x" * 1001, "printable"),
    ):
        if out.isprintable() and len(out) < 1000:
            page = shown(writable, "compose", e=["math", "code"], out=out)
            assert told in page.text
            assert "start" not in page.ids
            others = writable.ask(url("compose", e=["math", "code"], out=out)).text
            assert told not in others  # who do not learn of files
        answer = writable.send("/jobs", e=["math", "code"], out=out)
        assert answer.status == 400
        assert told in Page(answer.text).text
        assert "--force" not in answer.text
    forms: list[tuple[dict[str, Any], str]] = [
        ({"e": ["math", "code"], "lam": "x", "router": "ridge"}, "is not a finite number"),
        ({"e": ["mth"]}, "did you mean"),
        ({"e": ["--force"]}, "--force"),
        ({"e": ["math"], "base": "--force", "trunk": "ties"}, "--force"),
        ({"e": ["math"], "to": "hetero", "lead": "--force"}, ""),
        ({}, ""),
    ]
    for form, told in forms:
        answer = writable.send("/jobs", **form)
        assert answer.status in (400, 404)
        assert told in Page(answer.text).text
    assert writable.jobs is not None
    assert writable.jobs.all() == []
    assert files_of(work) == before


@pytest.mark.check
def test_an_error_is_shown_with_what_to_do(writable: Pages, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.ui.job_pages.check_new_folder", lambda text: text)  # it is made between the checks
    (work / "moe").mkdir()
    (work / "moe" / "thesis.txt").write_text("mine")
    job = started(writable, e=["math", "code"], out="moe")
    assert job.state == "failed"
    assert job.error == (f"{work / 'moe'} exists and is not empty", "choose another --out")
    page = shown(writable, "jobs", job.id)
    assert "moe exists and is not empty Next: choose another --out" in page.text
    assert "/compose?e=math&e=code&out=moe" in page.links
    assert files_of(work / "moe") == {"thesis.txt": b"mine"}


def test_a_running_job_is_followed_and_cancelled(filled: Registry, tmp_path: Path) -> None:
    with served(filled, may_write=True, program=(*script(SLOW), str(tmp_path / "told"))) as pages:

        def read(address: str) -> str:
            return pages.ask(address, headers=pages.cookie).text

        first = pages.send("/jobs", e="math", out=str(tmp_path / "a")).headers["location"]
        second = pages.send("/jobs", e="code", out=str(tmp_path / "b")).headers["location"]
        waits_for(lambda: "writing" in read(first))
        text, listed, reload = (
            read(first),
            read("/jobs"),
            '<noscript><meta http-equiv="refresh" content="3"></noscript>',
        )
        assert "Compose math@1 (default recipe) running for" in Page(text).text
        assert "writing the model that the next step reads, into a temporary folder 1 of 4 layers" in Page(text).text
        assert f"Still to come, as far as needed: composing into {tmp_path / 'a'}." in Page(text).text
        assert "a remark" in text
        assert "\x1b" not in text
        assert reload in text
        assert "waiting after 1 other" in Page(read(second)).text
        assert reload in listed
        assert 'data-follow="/jobs?part=list"' in listed
        assert "2 jobs going on" in listed
        part = read(f"{first}?part=progress")
        assert "data-follow" in part
        assert "<html" not in part + read("/jobs?part=list")
        assert pages.send(f"{second}/cancel").headers["location"] == second
        assert "cancelled" in read(second)  # one that waits, at once
        assert pages.send(f"{first}/cancel").status == 303
        waits_for(lambda: "Nothing was written" in read(first))
        listed = waits_for(lambda: (text := read("/jobs")) and "Nothing is going on" in text and text)
        assert "data-follow" not in listed
        assert "http-equiv" not in listed
        assert (tmp_path / "told").read_text() == "cleaned up\n"
        assert pages.send(f"{first}/cancel").status == 303  # it has ended: nothing happens
        assert pages.send("/jobs/nothing/cancel").status == 404
        assert pages.ask("/jobs/nothing", headers=pages.cookie).status == 404


def test_a_job_has_one_folder_and_the_queue_an_end(tmp_path: Path) -> None:
    with Jobs((*script(SLOW), str(tmp_path / "told"))) as jobs:
        jobs.add(Job("first", (), "/", "a/"))
        with pytest.raises(ConflictError, match="another job is going to write"):
            jobs.add(Job("again", (), "/", str(Path("a").absolute())))
        for number in range(MOST_WAITING):
            jobs.add(Job("next", (), "/", f"b{number}"))
        with pytest.raises(ConflictError, match="jobs are waiting already"):
            jobs.add(Job("one more", (), "/", "c"))
        with pytest.raises(InvalidInputError):
            jobs.add(Job("odd", ("a\0b",), "/", "d"))
        with pytest.raises(NotFoundError):
            jobs.get("nothing")
    assert {job.state for job in jobs.all()} == {"cancelled"}  # with the server


def test_jobs_run_one_by_one_and_old_ones_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.ui.jobs.MOST_KEPT", 4)
    program = script(f"""
        import os, sys, time
        place = {str(tmp_path / "running")!r}
        os.close(os.open(place, os.O_CREAT | os.O_EXCL))
        time.sleep(0.01)
        os.remove(place)
        print('{{"digest": "' + sys.argv[1] + '"}}')
    """)
    with Jobs(program) as jobs:
        added: list[Job] = []
        for number in range(12):
            waits_for(lambda: sum(job.goes_on for job in jobs.all()) < 4)
            added.append(jobs.add(Job("one", (str(number),), "/", str(number))))
        waits_for(lambda: not any(job.goes_on for job in jobs.all()))
        found = jobs.all()[::-1]
    assert len(found) <= 8
    assert [job.id for job in found] == [job.id for job in added[-len(found) :]]
    assert [job.result["digest"] for job in found] == [job.words[0] for job in found]
    starts = [job.started for job in found if job.started]
    assert starts == sorted(starts)


def test_a_job_that_has_written_all_says_that_it_finishes(filled: Registry, tmp_path: Path) -> None:
    program = script("""
        import sys, time
        print("progress: solving 2/2 layer", file=sys.stderr)
        print("progress: composing 9/9 B", file=sys.stderr, flush=True)
        time.sleep(600)
    """)
    with served(filled, may_write=True, program=program) as pages:
        where = pages.send("/jobs", e="math", out=str(tmp_path / "a")).headers["location"]
        text = waits_for(lambda: "finishing" in (text := shown(pages, *where.split("/")[1:]).text) and text)
        assert " s step 1 of 1 " in text
        assert f"composing into {tmp_path / 'a'} 9 B of 9 B 100.0 % finishing" in text
        assert "to come" not in text
        pages.send(f"{where}/cancel")
    job = Job("a", (), "/", "a", state="running", steps=(Step("solving", 2, 2, "layer"),))
    assert not job.finishing
    more = replace(job, steps=(Step("composing", 9, 9, "B"), Step("checking", 1, 9, "B")))
    assert not more.finishing  # its command says what it does


def test_steps_are_numbered_where_their_number_is_known(filled: Registry) -> None:
    def job(*steps: str, **recipe: Any) -> Job:
        phases = phases_of_composing(filled.plan(["math", "code"], Recipe(**recipe)), "moe/")
        done = tuple(Step(label, 1, 2, "layer") for label in steps)
        return Job("a", (), "/", "moe/", phases=tuple(phases), steps=done)

    into = ["composing into moe/"]
    again = job("collecting", router="ridge", refine=1)
    for one, number, to_come in (
        (job(), "", into),
        (job("composing"), "step 1 of 1", []),
        (again, "", into),  # what is cached is not collected
    ):
        assert (one.number, one.to_come) == (number, to_come)
    (last,) = job("collecting", router="ridge", refine=2).to_come
    assert last == "composing, between passes into a temporary folder, at last into moe/"


@pytest.mark.check
def test_a_composition_goes_through_the_steps_that_its_job_names(filled: Registry, tmp_path: Path) -> None:
    labels: dict[str, None] = {}

    @contextmanager
    def heard(label: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        labels.update({label: None} if unit else {})
        yield lambda amount: None

    filled.progress = heard
    recipes: list[Recipe] = [Recipe(), Recipe(router="ridge", refine=1)]
    recipes += [Recipe(router="domain-embedding"), Recipe(to="dense", trunk="ties")]
    for number, recipe in enumerate([*recipes, Recipe(to="ensemble", routing="task-vector", trunk="ties")]):
        labels.clear()
        phases = phases_of_composing(filled.compose(["math", "code"], tmp_path / str(number), recipe), "moe/")
        known = [phase.pattern for phase in phases if phase.sure or phase.pattern in labels]
        assert [label for label in labels if label != "writing"] == known, recipe


def test_what_a_command_says_is_bounded() -> None:
    program = script("""
        import sys
        for number in range(1000):
            print(f"remark {number} " + "x" * 5000, file=sys.stderr)
            print(f"progress: step-{number % 100} {number}/1000 token", file=sys.stderr)
        sys.stderr.buffer.write(b"\\xff\\x00 odd\\n" + b"y" * 3_000_000 + b"\\n")
        print("progress: no numbers", file=sys.stderr)
        sys.exit(3)
    """)
    with Jobs(program) as jobs:
        job = ended(jobs, jobs.add(Job("loud", (), "/", "a")))
    assert job.state == "failed"
    assert job.error == ("the command failed: it ended with exit status 3", "run it in a terminal")
    assert len(job.lines) == MOST_LINES
    assert job.left_out == 1003 - MOST_LINES
    assert max(map(len, job.lines)) == 1000
    assert job.lines[-3] == "\ufffd  odd"
    assert len(job.steps) == 32
    assert job.steps[0] == Step("step-0", 900, 1000, "token")


def test_a_command_that_cannot_be_run_or_is_killed_is_said() -> None:
    with Jobs(("/nowhere/reg",)) as jobs:
        job = ended(jobs, jobs.add(Job("lost", (), "/", "a")))
        assert job.error is not None
        assert "No such file" in job.error[0]
    with Jobs(script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")) as jobs:
        job = ended(jobs, jobs.add(Job("killed", (), "/", "a")))
        assert job.error == ("the command failed: it was ended by signal 9", "run it in a terminal")


def test_a_job_that_does_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.ui.jobs.CLOSE_SECONDS", 0.5)
    deaf = "import signal, sys, time; signal.signal(2, signal.SIG_IGN); print('x', file=sys.stderr); time.sleep(600)"
    jobs = Jobs(script(deaf))
    job = jobs.add(Job("deaf", (), "/", "a"))
    waits_for(lambda: jobs.get(job.id).lines)
    jobs.close()
    assert jobs.get(job.id).state == "cancelled"


@pytest.mark.sqlite
@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_job_ends_with_the_server(filled: Registry, work: Path, tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(_STALL)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "slow"), "STALL": str(tmp_path / "stalled")}
    words = ["--home", str(filled.home.path), "ui", "--port", "0", "--write", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "cli", *words],
        stdout=subprocess.PIPE, text=True, env=environment, cwd=work, process_group=0,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        url = json.loads("".join(server.stdout.readline() for _ in range(4)))["url"]
        address, token = url.split("/?token=")
        access = WriteAccess(str(filled.home.path))
        access.token = token
        pages = Pages(urllib.parse.urlsplit(address).port or 0, access=access)
        form = _form(pages.ask("/compose?e=math&e=code&out=moe", headers=pages.cookie).text, "/jobs")
        assert pages.send("/jobs", None, **form).status == 303
        waits_for((tmp_path / "stalled").exists)
        child = int((tmp_path / "stalled").read_text())
        assert any(path.name.startswith(".moe") for path in work.iterdir())  # it is writing
        server.send_signal(number)
        server.wait(300)
    waits_for(lambda: not _runs(child))
    assert list(work.iterdir()) == []
    assert filled.compositions() == []


_STALL = """
import os, sys, time
def hear(event, arguments):
    path, told = str(arguments[0]) if arguments else "", os.environ["STALL"]
    if event == "open" and "/.moe" in path and path.endswith(".json") and not os.path.exists(told):
        with open(told + ".part", "w") as file:
            file.write(str(os.getpid()))
        os.rename(told + ".part", told)
        while True:
            time.sleep(0.05)
if "cli.job" in sys.orig_argv:
    sys.addaudithook(hear)
"""
"""Makes the command of a job stop while it writes, and say that it has."""


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def _form(text: str, action: str) -> dict[str, list[str]]:
    """Return the fields of a page's form, all of which are hidden."""
    form = text.partition(f'action="{action}"')[2].partition("</form>")[0]
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form):
        found.setdefault(name, []).append(value)
    return found
