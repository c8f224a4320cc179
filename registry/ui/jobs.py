"""Long work that pages start: each job is a command in a process of its own, one after another.

A job is the command that the page shows, so it has the same checks, locks and safety against crashes. It is started
from a list of words, never by a shell. The queue is in memory: it ends with the server, and so do the commands.
"""

import json
import os
import re
import secrets
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import IO, Any

from registry.errors import ConflictError, InvalidInputError, NotFoundError

WAITING, RUNNING, CANCELLING = "waiting", "running", "cancelling"
DONE, FAILED, CANCELLED = "done", "failed", "cancelled"
GOING_ON = (WAITING, RUNNING, CANCELLING)

MOST_WAITING = 16
MOST_KEPT = 64  # ended jobs that are kept; the oldest are forgotten first
MOST_LINES, MOST_CHARACTERS, MOST_STEPS = 200, 1000, 32  # remarks of a job that are kept, characters of each, and steps

MOST_RESULT_BYTES, MOST_LINE_BYTES = 1 << 20, 1 << 16
CANCEL_SECONDS = 60
"""Seconds that a cancelled command has to clean up; then it is killed, which its next run cleans up after."""
CLOSE_SECONDS = 10  # the same when the server ends
COMPOSING = "composing"  # label of the step that writes the composed folder
_CALLED = {"writing": "writing the model that the next step reads, into a temporary folder"}
"""Label of a step that says too little → its words."""

_PROGRESS = re.compile(r"progress: (.{1,200}) ([0-9]{1,18})/([0-9]{1,18}) (\S{1,40})")


@dataclass(frozen=True)
class Step:
    """The progress of one step of a command, in units such as layers."""

    label: str
    done: int
    total: int
    unit: str

    @property
    def share(self) -> float:
        """The part that is done, from 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 1.0


@dataclass(frozen=True)
class Phase:
    """A part of a command, known before it runs."""

    pattern: str  # a regular expression for the labels of its steps
    words: str
    sure: bool = False  # it is one step and takes place; of others the command decides


@dataclass(frozen=True)
class Job:
    """A job as it is at one moment."""

    title: str
    words: tuple[str, ...]  # the command's after `reg`
    back: str  # the address of the form that started it
    out: str  # the folder that it writes; empty if it writes none
    comparison: str = ""  # the address of the comparison that it was asked for on, if that was the page
    phases: tuple[Phase, ...] = ()  # what its command does, in its order
    state: str = WAITING
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    started: datetime | None = None
    ended: datetime | None = None
    steps: tuple[Step, ...] = ()  # the current one last
    lines: tuple[str, ...] = ()  # remarks
    left_out: int = 0  # number of earlier remarks that were dropped
    result: Mapping[str, Any] = field(default_factory=dict)  # the command's JSON document
    error: tuple[str, str | None] | None = None  # message and hint
    id: str = field(default_factory=lambda: secrets.token_hex(6))  # random digits, in its address

    @property
    def goes_on(self) -> bool:
        """Return whether it has not ended."""
        return self.state in GOING_ON

    @property
    def finishing(self) -> bool:
        """Return whether all bytes are written, and its command, which says no more, only registers them."""
        written = any(step.label == COMPOSING for step in self.steps)
        return bool(self.out) and self.state == RUNNING and written and all(step.share == 1.0 for step in self.steps)

    @property
    def seconds(self) -> int:
        """Seconds that its command has run."""
        return 0 if self.started is None else round(((self.ended or datetime.now(UTC)) - self.started).total_seconds())

    @property
    def number(self) -> str:
        """The step that it is in, and of how many: `step 1 of 2`; empty where that is not known before."""
        known = self._begun and all(phase.sure for phase in self.phases)
        return f"step {self._begun} of {len(self.phases)}" if known else ""

    @property
    def to_come(self) -> list[str]:
        """The phases that follow, in words."""
        return [phase.words for phase in self.phases[self._begun :]]

    def called(self, step: Step) -> str:
        """Return what one of its steps does, in words."""
        words = {phase.pattern: phase.words for phase in self.phases}
        return words.get(step.label) or _CALLED.get(step.label, step.label)

    @property
    def _begun(self) -> int:
        """The number of the last phase that has begun, from 1; 0 if none has."""
        labels = [step.label for step in self.steps]
        begun = [any(re.fullmatch(phase.pattern, label) for label in labels) for phase in self.phases]
        return max((number for number, has in enumerate(begun, 1) if has), default=0)


class Jobs(AbstractContextManager["Jobs"]):
    """The queue of jobs, and the thread that runs them. Close it when the server ends."""

    def __init__(self, program: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """Create an empty queue; `program` are the words before a command's own, `environment` further variables."""
        self._program = tuple(program)
        self._environment = {**os.environ, **(environment or {}), "REG_PROGRESS": "lines"}
        self._jobs: dict[str, Job] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._worker: threading.Thread | None = None

    def add(self, job: Job) -> Job:
        """Queue a job (InvalidInputError: a word has a character that no argument may have).

        ConflictError: too many jobs are waiting, or one of them writes the same folder.
        """
        if any("\0" in word or "\n" in word or "\r" in word for word in job.words):
            raise InvalidInputError("a value has a line break or a NUL character", "correct it in the form")
        with self._changed:
            waiting = [one for one in self._jobs.values() if one.goes_on]
            if len(waiting) > MOST_WAITING:
                raise ConflictError(f"{MOST_WAITING} jobs are waiting already", "wait until one of them has ended")
            written = {os.path.abspath(one.out) for one in waiting if one.out}  # noqa: PTH100  # no link is followed
            if job.out and os.path.abspath(job.out) in written:  # noqa: PTH100
                raise ConflictError(f"another job is going to write {job.out}", "choose another output folder")
            self._jobs[job.id] = job
            ended = [one.id for one in self._jobs.values() if not one.goes_on]
            for old in ended[: max(0, len(ended) - MOST_KEPT)]:
                del self._jobs[old]
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="jobs", daemon=True)
                self._worker.start()
            self._changed.notify_all()
        return job

    def get(self, job_id: str) -> Job:
        """Return a job as it is now (NotFoundError: there is none)."""
        with self._changed:
            if job_id not in self._jobs:
                raise NotFoundError("there is no such job: jobs are forgotten when reg ui ends", "see all jobs")
            return self._jobs[job_id]

    def all(self) -> list[Job]:
        """Return all jobs, the latest first."""
        with self._changed:
            return list(self._jobs.values())[::-1]

    def ahead_of(self, job: Job) -> int:
        """Return how many jobs run before a waiting one."""
        with self._changed:
            before = list(self._jobs.values())
        return sum(one.goes_on and one.created < job.created for one in before)

    def cancel(self, job_id: str) -> Job:
        """Cancel a job: one that waits ends at once, one that runs is interrupted and cleans up."""
        self.get(job_id)
        with self._changed:
            self._stop(self._jobs[job_id], CANCEL_SECONDS)
            return self._jobs[job_id]

    def close(self) -> None:
        """Cancel all jobs, and return when no command runs any more."""
        with self._changed:
            self._closed = True
            for job in list(self._jobs.values()):
                self._stop(job, CLOSE_SECONDS)
            self._changed.notify_all()
        if self._worker is not None:
            self._worker.join(CLOSE_SECONDS)
            self._signal(signal.SIGKILL)
            self._worker.join()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _stop(self, job: Job, seconds: float) -> None:
        if job.state == WAITING:
            self._set(job.id, state=CANCELLED, ended=datetime.now(UTC))
        elif job.state == RUNNING:
            self._set(job.id, state=CANCELLING)
            self._interrupt(seconds)

    def _set(self, job_id: str, **values: Any) -> Job:
        with self._changed:
            self._jobs[job_id] = replace(self._jobs[job_id], **values)
            return self._jobs[job_id]

    def _work(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._run(job)
            except Exception as error:  # the queue goes on
                failed = (f"the command cannot be run: {error}", "run it in a terminal")
                self._set(job.id, state=FAILED, ended=datetime.now(UTC), error=failed)

    def _next(self) -> Job | None:
        with self._changed:
            while not self._closed:
                for job in self._jobs.values():
                    if job.state == WAITING:
                        return self._set(job.id, state=RUNNING, started=datetime.now(UTC))
                self._changed.wait()
            return None

    def _run(self, job: Job) -> None:
        with tempfile.TemporaryFile() as written:
            with self._changed:
                if self._jobs[job.id].state == CANCELLING:  # before its command was started
                    self._set(job.id, state=CANCELLED, ended=datetime.now(UTC))
                    return
                process = subprocess.Popen(
                    [*self._program, *job.words, "--json"],
                    stdin=subprocess.PIPE,  # whose end tells the command that the server is gone
                    stdout=written,
                    stderr=subprocess.PIPE,
                    env=self._environment,
                    start_new_session=True,  # Ctrl-C in the server's terminal is passed on once, by `close`
                )
                self._process = process
            with process:
                assert process.stderr is not None
                last = self._hear(job.id, process.stderr)
                code = process.wait()
            self._process = None
            written.seek(0)
            self._end(job.id, code, written.read(MOST_RESULT_BYTES), last)

    def _hear(self, job_id: str, stream: IO[bytes]) -> str:
        """Follow the lines of a command until it ends, and return the line of its error."""
        lines, steps, left_out, failure = deque[str](maxlen=MOST_LINES), dict[str, Step](), 0, ""
        for line in _lines(stream):
            if self.get(job_id).state == CANCELLING:
                continue  # what an interrupted command says is not news
            if line.startswith('{"error":'):
                failure = line
                continue
            if match := _PROGRESS.fullmatch(line):
                label, done, total, unit = match.groups()
                if label in steps or len(steps) < MOST_STEPS:
                    steps[label] = Step(label, int(done), int(total), unit)
                self._set(job_id, steps=tuple(steps.values()))
            elif line:
                left_out += len(lines) == MOST_LINES
                lines.append(line[:MOST_CHARACTERS])
                self._set(job_id, lines=tuple(lines), left_out=left_out)
        return failure

    def _end(self, job_id: str, code: int, written: bytes, failure: str) -> None:
        error: tuple[str, str | None] | None = None
        if code == 0:
            state = DONE
        elif self.get(job_id).state == CANCELLING:
            state = CANCELLED
        else:
            state, told = FAILED, _object(failure.encode()).get("error")
            why = f"it was ended by signal {-code}" if code < 0 else f"it ended with exit status {code}"
            error = f"the command failed: {why}", "run it in a terminal"
            if isinstance(told, dict) and isinstance(told.get("message"), str):
                hint = told.get("next")
                error = told["message"], hint if isinstance(hint, str) else None
        self._set(job_id, state=state, ended=datetime.now(UTC), result=_object(written), error=error)

    def _interrupt(self, seconds: float) -> None:
        """Interrupt the running command, and kill it if it has not ended after so many seconds."""
        if (process := self._process) is None:
            return
        self._signal(signal.SIGINT)
        killer = threading.Timer(seconds, lambda: self._signal(signal.SIGKILL) if self._process is process else None)
        killer.daemon = True
        killer.start()

    def _signal(self, number: signal.Signals) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def _lines(stream: IO[bytes]) -> Iterator[str]:
    """Yield lines of printable text; the rest of a long one is dropped."""
    whole = True
    while part := stream.readline(MOST_LINE_BYTES):
        begins, whole = whole, part.endswith(b"\n")
        if begins:
            text = part.decode("utf-8", "replace").rstrip()
            yield "".join(one if one.isprintable() else " " for one in text)


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
