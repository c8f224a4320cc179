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
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from registry import EnsembleRecipe, Recipe, Registry
from registry.composition import AnyRecipe
from registry.errors import ConflictError, InvalidInputError, NotFoundError
from registry.ui import Jobs
from registry.ui.composer.composing import phases_of_composing
from registry.ui.jobs import MOST_KEPT, MOST_LINES, MOST_WAITING, Job, Step
from registry.ui.site import Site, url
from tests.conftest import files_of
from tests.pages import Page, Pages, served

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


@pytest.fixture
def pages(filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with served(filled, may_write=True) as found:
        yield found


@pytest.mark.check
def test_the_page_composes_what_the_command_would(filled: Registry, pages: Pages, tmp_path: Path) -> None:
    shown = pages.ask("/compose?e=math&e=code&router=ridge&out=moe", headers=pages.cookie).text
    assert "reg compose --experts code@1,math@1 --router ridge --out moe" in shown
    form = _form(shown, "/jobs")
    assert pages.access is not None
    assert form["form_token"] == [pages.access.form_token]
    answer = pages.send("/jobs", None, **form)
    assert answer.status == 303
    where = answer.headers["location"]
    assert pages.jobs is not None
    job = ended(pages.jobs, pages.jobs.get(where.removeprefix("/jobs/")))
    assert (job.state, job.error) == ("done", None)
    expected = filled.compose(["math", "code"], tmp_path / "other", Recipe(router="ridge"))
    assert job.result["digest"] == expected.digest
    assert files_of(tmp_path / "work" / "moe") == files_of(tmp_path / "other")
    assert any(step.unit == "B" and step.done == step.total for step in job.steps)
    page = Page(pages.ask(where, headers=pages.cookie).text)
    assert f"/compositions/{expected.digest}" in page.links
    (another,) = (link for link in page.links if link.startswith("/compose?"))
    same = urllib.parse.parse_qs(another.partition("?")[2])  # the same choices, and a folder that is free
    assert (same["e"], same["router"]) == (["math", "code"], ["ridge"])
    assert "out" not in same
    assert "http-equiv" not in pages.ask(where, headers=pages.cookie).text  # it does not reload any more
    assert "Compose code@1, math@1 (router ridge) done" in Page(pages.ask("/jobs", headers=pages.cookie).text).text
    assert "moe" in pages.ask(f"/compositions/{expected.digest}").text


def test_a_folders_path_counts_from_where_the_server_was_started(pages: Pages, tmp_path: Path) -> None:
    text = Page(pages.ask("/compose", headers=pages.cookie).text).text
    assert f"machine where reg ui runs; a path is relative to {tmp_path / 'work'} , where it was started." in text
    assert (
        "free on the machine where reg ui runs, seen from the folder where it was started."
        in Page(pages.ask("/compose").text).text
    )
    shown = Page(pages.ask(url("compose", e=["math", "code"], out="../moe"), headers=pages.cookie).text)
    assert "Compose into ../moe" in shown.text


def test_a_folder_is_suggested_that_is_free(pages: Pages, tmp_path: Path) -> None:
    def out() -> str:
        form = _form(pages.ask("/compose?e=math&e=code", headers=pages.cookie).text, "/jobs")
        return form["out"][0]

    assert out() == "code-math/"
    (tmp_path / "work" / "code-math").mkdir()
    assert out() == "code-math-2/"
    (tmp_path / "work" / "code-math-2").symlink_to("nowhere")
    assert out() == "code-math-3/"


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize(
    ("out", "told"),
    [
        ("full", "exists and is not empty"),
        ("file", "exists and is not a folder"),
        ("link", "is a symbolic link"),
        ("-rf", "begins with -"),
        ("~/moe", "begins with ~"),
        ("a\nb", "printable"),
        ("a\x00b", "printable"),
        ("x" * 1001, "printable"),
        ("old", "exists and is not empty"),
    ],
)
def test_nothing_is_overwritten(pages: Pages, tmp_path: Path, out: str, told: str) -> None:
    work = tmp_path / "work"
    for name, file in (("full", "thesis.txt"), ("old", "composition.json")):
        (work / name).mkdir()
        (work / name / file).write_text("{}")
    (work / "file").write_text("")
    (work / "link").symlink_to("full")
    before = files_of(work)
    if out.isprintable() and len(out) < 1000:
        shown = pages.ask(url("compose", e=["math", "code"], out=out), headers=pages.cookie).text
        assert told in Page(shown).text
        assert 'id="start"' not in shown
        assert told not in pages.ask(url("compose", e=["math", "code"], out=out)).text  # others do not learn of files
    answer = pages.send("/jobs", e=["math", "code"], out=out)
    assert answer.status == 400
    assert told in Page(answer.text).text
    assert "--force" not in answer.text
    assert pages.jobs is not None
    assert pages.jobs.all() == []
    assert files_of(work) == before


@pytest.mark.check(after=2)
@pytest.mark.trust(after=5)
@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"e": ["math", "code"], "lam": "x", "router": "ridge"}, "is not a finite number"),
        ({"e": ["math", "math@1"]}, "named more than once"),
        ({"e": ["mth"]}, "did you mean"),
        ({"e": ["--force"]}, "--force"),
        ({"e": ["math"], "base": "--force", "trunk": "ties"}, "--force"),
        ({"e": ["math"], "to": "hetero", "lead": "--force"}, ""),
        ({}, ""),
    ],
    ids=str,
)
def test_what_cannot_be_planned_is_not_started(pages: Pages, form: dict[str, Any], told: str) -> None:
    answer = pages.send("/jobs", **form)
    assert answer.status in (400, 404)
    assert told in Page(answer.text).text
    assert pages.jobs is not None
    assert pages.jobs.all() == []


@pytest.mark.check
def test_an_error_of_the_command_is_shown_with_what_to_do(
    filled: Registry, pages: Pages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("registry.ui.job_pages.check_new_folder", lambda text: text)  # it is made between the checks
    (tmp_path / "work" / "moe").mkdir()
    (tmp_path / "work" / "moe" / "thesis.txt").write_text("mine")
    answer = pages.send("/jobs", e=["math", "code"], out="moe")
    where = answer.headers["location"]
    assert pages.jobs is not None
    job = ended(pages.jobs, pages.jobs.get(where.removeprefix("/jobs/")))
    assert job.state == "failed"
    assert job.error == (f"{tmp_path / 'work' / 'moe'} exists and is not empty", "choose another --out")
    page = Page(pages.ask(where, headers=pages.cookie).text)
    assert "moe exists and is not empty Next: choose another --out" in page.text
    assert "/compose?e=math&e=code&out=moe" in page.links
    assert files_of(tmp_path / "work" / "moe") == {"thesis.txt": b"mine"}


def test_a_running_job_is_followed_and_cancelled(filled: Registry, tmp_path: Path) -> None:
    with served(filled, may_write=True, program=(*script(SLOW), str(tmp_path / "told"))) as pages:
        first = pages.send("/jobs", e="math", out=str(tmp_path / "a")).headers["location"]
        second = pages.send("/jobs", e="code", out=str(tmp_path / "b")).headers["location"]
        waits_for(lambda: "writing" in pages.ask(first, headers=pages.cookie).text)
        text = pages.ask(first, headers=pages.cookie).text
        assert "Compose math@1 (default recipe) running for" in Page(text).text
        assert "writing the model that the next step reads, into a temporary folder 1 of 4 layers" in Page(text).text
        assert f"Still to come, as far as needed: composing into {tmp_path / 'a'}." in Page(text).text
        assert '<noscript><meta http-equiv="refresh" content="3"></noscript>' in text
        assert "a remark" in text
        assert "\x1b" not in text
        assert "waiting after 1 other" in Page(pages.ask(second, headers=pages.cookie).text).text
        part = pages.ask(f"{first}?part=progress", headers=pages.cookie).text
        assert "data-follow" in part
        listed = pages.ask("/jobs", headers=pages.cookie).text
        assert '<noscript><meta http-equiv="refresh" content="3"></noscript>' in listed
        assert 'data-follow="/jobs?part=list"' in listed
        assert "2 jobs going on" in listed
        assert "<html" not in pages.ask("/jobs?part=list", headers=pages.cookie).text
        assert "<html" not in part
        assert pages.send(f"{second}/cancel").headers["location"] == second
        assert "cancelled" in pages.ask(second, headers=pages.cookie).text  # one that waits, at once
        assert pages.send(f"{first}/cancel").status == 303
        waits_for(lambda: "Nothing was written" in pages.ask(first, headers=pages.cookie).text)
        waits_for(lambda: "Nothing is going on" in pages.ask("/jobs", headers=pages.cookie).text)
        assert "data-follow" not in pages.ask("/jobs", headers=pages.cookie).text
        assert "http-equiv" not in pages.ask("/jobs", headers=pages.cookie).text
        assert (tmp_path / "told").read_text() == "cleaned up\n"
        assert pages.send(f"{first}/cancel").status == 303  # it has ended: nothing happens
        assert pages.send("/jobs/nothing/cancel").status == 404
        assert pages.ask("/jobs/nothing", headers=pages.cookie).status == 404


def test_a_job_has_one_folder_and_the_queue_an_end(tmp_path: Path) -> None:
    with Jobs((*script(SLOW), str(tmp_path / "told"))) as jobs:
        jobs.add("first", (), back="/", out="a/")
        with pytest.raises(ConflictError, match="another job is going to write"):
            jobs.add("again", (), back="/", out=str(Path("a").absolute()))
        for number in range(MOST_WAITING):
            jobs.add("next", (), back="/", out=f"b{number}")
        with pytest.raises(ConflictError, match="jobs are waiting already"):
            jobs.add("one more", (), back="/", out="c")
        with pytest.raises(InvalidInputError):
            jobs.add("odd", ("a\0b",), back="/", out="d")
        with pytest.raises(NotFoundError):
            jobs.get("nothing")
    assert {job.state for job in jobs.all()} == {"cancelled"}  # with the server


@pytest.mark.check
def test_jobs_run_one_at_a_time_in_order_and_old_ones_are_forgotten(tmp_path: Path) -> None:
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
        for number in range(MOST_KEPT + 5):
            waits_for(lambda: sum(job.goes_on for job in jobs.all()) < MOST_WAITING)
            added.append(jobs.add("one", (str(number),), back="/", out=str(number)))
        waits_for(lambda: not any(job.goes_on for job in jobs.all()))
        found = jobs.all()[::-1]
    assert len(found) <= MOST_KEPT + MOST_WAITING
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
        text = waits_for(
            lambda: "finishing" in (text := Page(pages.ask(where, headers=pages.cookie).text).text) and text
        )
        assert f"composing into {tmp_path / 'a'} 9 B of 9 B 100.0 % finishing" in text
        assert re.search(r"running for [0-9]{1,2} s step 1 of 1 ", text)
        assert "to come" not in text
        pages.send(f"{where}/cancel")
    job = Job("a", "a", (), "/", "a", state="running", steps=(Step("solving", 2, 2, "layer"),))
    assert not job.finishing
    more = replace(job, steps=(Step("composing", 9, 9, "B"), Step("checking", 1, 9, "B")))
    assert not more.finishing  # its command says what it does
    begin = datetime.now(UTC)
    long = replace(job, started=begin, ended=begin + timedelta(seconds=125))
    template = Site(filled)._templates.from_string('{% import "job_macros.html" as j %}{{ j.time(job) }}')
    assert template.render(job=long) == "2:05 min"


def test_steps_are_numbered_where_their_number_is_known(filled: Registry) -> None:
    def job(*steps: str, **recipe: Any) -> Job:
        phases = phases_of_composing(filled.plan(["math", "code"], Recipe(**recipe)), "moe/")
        done = tuple(Step(label, 1, 2, "layer") for label in steps)
        return Job("a", "a", (), "/", "moe/", phases=tuple(phases), steps=done)

    into, kept = "composing into moe/", "experts’ kept text"
    assert (job().number, job().to_come) == ("", [into])
    assert (job("composing").number, job("composing").to_come) == ("step 1 of 1", [])
    refit = job("refitting", refine_mlp=True)
    assert (refit.number, refit.to_come) == ("step 1 of 2", [into])
    assert refit.called(refit.steps[0]) == f"refitting to the {kept}"
    assert job("refitting", "composing", refine_mlp=True).number == "step 2 of 2"
    again = job("collecting", router="ridge", refine=1)
    assert (again.number, again.to_come) == ("", [into])  # what is cached is not collected
    assert again.called(again.steps[0]) == f"collecting statistics of the {kept}, where none are cached"
    (last,) = job("collecting", router="ridge", refine=2).to_come
    assert last == "composing, between passes into a temporary folder, at last into moe/"


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(refine_mlp=True),
        Recipe(router="ridge", refine=1),
        Recipe(router="domain-embedding"),
        Recipe(to="dense", trunk="ties"),
        EnsembleRecipe(),
        EnsembleRecipe(routing="task-vector", trunk="ties"),
    ],
    ids=str,
)
def test_a_composition_goes_through_the_steps_that_its_job_names(
    filled: Registry, tmp_path: Path, recipe: AnyRecipe
) -> None:
    labels: dict[str, None] = {}

    @contextmanager
    def heard(label: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        labels.update({label: None} if unit else {})
        yield lambda amount: None

    filled.progress = heard
    plan = filled.compose(["math", "code"], tmp_path / "moe", recipe)
    phases = phases_of_composing(plan, "moe/")
    known = [phase.pattern for phase in phases if phase.sure or phase.pattern in labels]
    assert [label for label in labels if label != "writing"] == known


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
        job = ended(jobs, jobs.add("loud", (), back="/", out="a"))
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
        job = ended(jobs, jobs.add("lost", (), back="/", out="a"))
        assert job.error is not None
        assert "No such file" in job.error[0]
    with Jobs(script("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")) as jobs:
        job = ended(jobs, jobs.add("killed", (), back="/", out="a"))
        assert job.error == ("the command failed: it was ended by signal 9", "run it in a terminal")


def test_a_job_that_does_not_listen_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.ui.jobs.CLOSE_SECONDS", 0.5)
    deaf = "import signal, sys, time; signal.signal(2, signal.SIG_IGN); print('x', file=sys.stderr); time.sleep(600)"
    jobs = Jobs(script(deaf))
    job = jobs.add("deaf", (), back="/", out="a")
    waits_for(lambda: jobs.get(job.id).lines)
    jobs.close()
    assert jobs.get(job.id).state == "cancelled"


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_job_ends_with_the_server_and_leaves_nothing(
    filled: Registry, tmp_path: Path, number: signal.Signals
) -> None:
    work = tmp_path / "work"
    work.mkdir()
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
        pages = Pages(urllib.parse.urlsplit(address).port or 0)
        cookie = pages.ask(f"/?token={token}").headers["set-cookie"].partition(";")[0]
        form = _form(pages.ask("/compose?e=math&e=code&out=moe", headers={"Cookie": cookie}).text, "/jobs")
        headers = {
            "Cookie": cookie, "Origin": pages.address, "Content-Type": "application/x-www-form-urlencoded",
        }  # fmt: skip
        body = urllib.parse.urlencode(form, doseq=True).encode()
        assert pages.ask("/jobs", method="POST", headers=headers, body=body).status == 303
        waits_for((tmp_path / "stalled").exists)
        child = int((tmp_path / "stalled").read_text())
        assert any(path.name.startswith(".moe") for path in work.iterdir())  # it is writing
        server.send_signal(number)
        server.wait(300)
    waits_for(lambda: not _runs(child))
    assert list(work.iterdir()) == []
    assert filled.compositions() == []


_STALL = """
import os, sys
if "cli.job" in sys.orig_argv:
    import threading, time
    def look():
        while True:
            time.sleep(0.01)
            module = sys.modules.get("registry.io.model_folder")
            if module is not None and hasattr(module, "write_files") and not hasattr(module, "stalled"):
                module.stalled = True
                write = module.write_weights
                def stalled(*arguments, **options):
                    with open(os.environ["STALL"] + ".part", "w") as file:
                        file.write(str(os.getpid()))
                    os.rename(os.environ["STALL"] + ".part", os.environ["STALL"])
                    while True:
                        time.sleep(0.05)
                module.write_weights = stalled
                for other in list(sys.modules.values()):
                    if getattr(other, "write_weights", None) is write:
                        other.write_weights = stalled
                return
    threading.Thread(target=look, daemon=True).start()
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
