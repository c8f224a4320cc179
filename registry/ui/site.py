"""The state that all pages share: the registry, caches, templates, and the error page; addresses, and long lists."""

import os
import re
import shlex
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from registry.design import NEUTRAL, colour_class, environment, expert_colours
from registry.errors import ConflictError, InvalidInputError, NotFoundError, RegError, first_line
from registry.methods.moe.preview import OVERLAP_OF_TOKEN_COUNTS
from registry.registration.expert_overlap import OVERLAP_OF_ACTIVATIONS
from registry.registry import Registry
from registry.report.score_words import FEW_MEANS, INTERVAL_MEANS, OVER_100, evaluation_text, unbroken
from registry.ui.describing import sentences, title
from registry.ui.guard import MAY_WRITE, RefusedError, WriteAccess
from registry.ui.jobs import Job, Jobs
from registry.ui.wording import FILTERS, details, sentence
from store.catalog import CompositionRecord, EventRecord

TEMPLATES = Path(__file__).with_name("templates")
PART = "part"  # the query parameter with which the script requests a part of a page
LINKS = ("Home", "/"), ("Compositions", "/compositions"), ("Compose", "/compose"), ("Log", "/log")
REPORTS = 8  # reports kept in memory, of some MB each
_COMMAND = re.compile(r"(?P<before>^(?:or )?|: |\(|[;,] (?:or )?)reg (?=[a-z])")
"""The beginning of a command in a text, not of a sentence about one."""

_STATUSES = ((NotFoundError, 404), (ConflictError, 409), (InvalidInputError, 400), (RefusedError, 403))
_RUN = "run: "
_FAULT = "this is a bug in the program; started with REG_DEBUG=1, reg ui prints the traceback for a bug report"

T = TypeVar("T")


class PageCache:
    """Computed values by key, all deleted when the log has a new event, so that no purged content stays.

    One caller computes at a time: a computation uses every core, and linear algebra sets the number of threads of the
    whole process.
    """

    def __init__(self, state: Callable[[], str], size: int = 64) -> None:
        """Create a cache of `size` values; `state` returns a text that differs after every change of the registry."""
        self._state, self._size = state, size
        self._values: OrderedDict[Hashable, object] = OrderedDict()
        self._seen = ""
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of `key`, computed by `make` if absent; it is not kept if the registry changed meanwhile."""
        with self._lock:
            state = self._state()
            if state != self._seen:
                self._values.clear()
                self._seen = state
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]  # type: ignore[return-value]   # computed by the same caller's `make`
            value = make()
            if self._state() == state:
                self._values[key] = value
                while len(self._values) > self._size:
                    self._values.popitem(last=False)
            return value

    def refresh(self) -> None:
        """Delete outdated values, unless another thread is computing, which deletes them itself."""
        if self._lock.acquire(blocking=False):
            try:
                if self._state() != self._seen:
                    self._values.clear()
            finally:
                self._lock.release()


class Site:
    """The pages of one registry (arguments as of `make_app`)."""

    def __init__(
        self, registry: Registry, command: Sequence[str], access: WriteAccess | None = None, jobs: Jobs | None = None
    ) -> None:
        self.registry = registry
        self.command = tuple(command)
        self.access, self.jobs = access, jobs
        self.cache = PageCache(self._state)
        self.reports = PageCache(self._state, REPORTS)
        self.index = PageCache(self._state)  # of what is quick, so that no page waits for what is slow
        self._names = PageCache(self._state, 1)
        self._templates = environment(TEMPLATES)
        self._templates.filters |= FILTERS | {"title": title, "sentences": sentences}
        self._templates.globals.update(
            details=self._said,
            url=url,
            command=self.command_line,
            home=str(registry.home.path),
            titles=self._titles,
            event_title=self._event_title,
            opted_out=self.opted_out,
            prefixed=self.prefixed,
            next_step=self.next_step,
            overlap_of_activations=OVERLAP_OF_ACTIVATIONS,
            overlap_of_token_counts=OVERLAP_OF_TOKEN_COUNTS,
            over_100=OVER_100,
            few_means=FEW_MEANS,
            interval_means=INTERVAL_MEANS,
        )

    def composition(self, digest: str) -> CompositionRecord:
        """Return the composition whose digest begins with `digest` (NotFoundError: there is none)."""
        record = self.registry.composition(digest)
        if record is None:
            raise NotFoundError(f"there is no composition {digest!r}", "reg compositions")
        return record

    def page(self, make: "Page") -> Callable[[Request], Response]:
        """Return `make` as an endpoint whose errors become a page with a hint."""

        def endpoint(request: Request) -> Response:
            try:
                for cache in (self.cache, self.reports, self.index):
                    cache.refresh()
                return make(self, request)
            except HTTPException:
                raise
            except RegError as error:
                status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
                return self.error(request, status, error.message, error.hint)
            except Exception as error:
                if os.environ.get("REG_DEBUG"):
                    traceback.print_exc(file=sys.stderr)
                return self.error(request, 500, f"{type(error).__name__}: {first_line(error)}", _FAULT)

        return endpoint

    def render(
        self,
        request: Request,
        template: str,
        status: int = 200,
        *,
        names: Iterable[str] = (),
        grey: Iterable[str] = (),
        **values: Any,
    ) -> HTMLResponse:
        """Return a page, or only the part that the script requests, from a template and its values.

        `names` are the experts whose colours it shows; `grey` those that were opted out, if it names them alone.
        """
        part = request.query_params.get(PART) is not None
        known, without = self._names.get("", self._known)
        without = without.union(grey)
        colours = expert_colours(names, known, grey=without)

        def colour(expert: str) -> str:
            """Return the class that gives an element the colour of an expert, named by its name or a reference."""
            name = expert.partition("@")[0]
            if expert in self.opted_out() or name in without:
                return NEUTRAL
            own = colours if name in colours or name not in known else expert_colours([name], known)
            return colour_class(name, own)

        section = request.url.path.split("/")[1]
        values |= {"part": part, "colour": colour, "may_write": self.may_write(request), "links": self.links(request)}
        values["theme"] = theme_of(request)
        values["active"] = "/" if section == "versions" else f"/{section}"
        values["form_token"] = self.access.form_token if self.access and values["may_write"] else ""
        return HTMLResponse(self._templates.get_template(template).render(**values), status)

    def may_write(self, request: Request) -> bool:
        """Return whether the browser of a request may start work."""
        return bool(request.scope.get(MAY_WRITE, False))

    def links(self, request: Request) -> tuple[tuple[str, str], ...]:
        """Return name and address of each page in the bar at the top."""
        return LINKS + ((("Jobs", "/jobs"),) if self.may_write(request) else ())

    def error(self, request: Request, status: int, message: str, hint: str | None) -> HTMLResponse:
        """Return the page of an error, with its message and hint."""
        if message.partition(" ")[0].partition("@")[0] not in self.registry.catalog.names():
            message = sentence(message)
        return self.render(request, "error.html", status, code=status, message=message, hint=hint)

    def all_jobs(self) -> list[Job]:
        """Return the jobs of this start of the server, the latest first; none where none can be started."""
        return [] if self.jobs is None else self.jobs.all()

    def command_line(self, *words: str) -> str:
        """Return a shell command on this registry."""
        return shlex.join([*self.command, *words])

    def prefixed(self, text: str) -> str:
        """Return a text of the library with its commands on this registry: `run: reg --home DIR list`."""
        beginning = shlex.join(self.command)
        return _COMMAND.sub(lambda found: f"{found['before']}{beginning} ", unbroken(text))

    def next_step(self, hint: str | None) -> tuple[str, str]:
        """Return the command that a hint says to run, else nothing, and the hint's other words."""
        if hint is None or not hint.startswith((_RUN, "reg ")):
            return "", self.prefixed(hint or "")
        command, separator, rest = hint.removeprefix(_RUN).partition("; ")
        if not separator:
            command, _, rest = command.partition(", which ")
            rest = f"which {rest}" if rest else ""
        return self.prefixed(command), self.prefixed(rest)

    def _titles(self) -> dict[str, str]:
        """Return the name of each composition by its digest."""
        return self.index.get("titles", lambda: {one.digest: title(one) for one in self.registry.compositions()})

    def _event_title(self, event: EventRecord) -> str:
        """Return the name of an event's composition: that of the folder that it was written to last by then."""

        def written() -> list[tuple[int, str]]:
            composed = [one for one in self.registry.catalog.events(event.subject) if one.action == "compose"]
            return [(one.id, Path(str(one.details.get("out") or "")).name) for one in composed]

        names = self.index.get(("written", event.subject), written)
        by_then = next((name for number, name in names if number <= event.id and name), "")
        return by_then or self._titles().get(event.subject, event.subject[:12])

    def _said(self, event: EventRecord) -> str:
        """Return the details of an event; of an evaluation that is still stored, what was scored, and its score."""
        if event.action != "evaluate":
            return details(event.details)
        scores = self.index.get("evaluated", self._evaluated)
        return scores.get((event.subject, str(event.details.get("asked"))), "")

    def _evaluated(self) -> dict[tuple[str, str], str]:
        """Return (composition, digest of data and settings) → domains, windows and average score, in words."""
        evaluations = self.registry.catalog.evaluations()
        return {(one.composition, one.asked): evaluation_text(one.document) for one in evaluations}

    def _known(self) -> tuple[Sequence[str], frozenset[str]]:
        """Return the names of experts, and the names without a colour: of base models, and of opted-out experts."""
        experts, bases = (self.registry.catalog.names(kind=kind) for kind in ("expert", "base"))
        active = set(self.registry.catalog.names(kind="expert", states=("active",)))
        return experts, frozenset(set(bases).difference(experts) | set(experts).difference(active))

    def opted_out(self) -> frozenset[str]:
        """Return the references of the versions that were opted out, purged or not."""

        def found() -> frozenset[str]:
            return frozenset(one.ref for one in self.registry.versions(everything=True) if one.state != "active")

        return self.index.get("opted out", found)

    def _state(self) -> str:
        return next((event.digest for event in self.registry.log(limit=1)), "")


@dataclass(frozen=True)
class Paging:
    """One page, numbered from 1, of a list of `total` items, `size` a page; `at` gives the address of one."""

    asked: int
    total: int
    size: int
    at: Callable[[int], str]

    @property
    def last(self) -> int:
        """The number of pages."""
        return max(1, -(-self.total // self.size))

    @property
    def number(self) -> int:
        """The page that is asked for, or the last one if there are fewer."""
        return max(1, min(self.asked, self.last))

    @property
    def offset(self) -> int:
        """Number of items before the page."""
        return (self.number - 1) * self.size


Page = Callable[[Site, Request], Response]


def url(*path: str, **query: object) -> str:
    """Return the address of a page from the parts of its path and its query, without None, empty or False values."""
    parameters = {key: value for key, value in query.items() if value not in (None, "", False, [], ())}
    parameters = {key: "1" if value is True else value for key, value in parameters.items()}
    text = urlencode(parameters, doseq=True)
    return "/" + "/".join(quote(part, safe="@") for part in path) + (f"?{text}" if text else "")


def theme_of(request: Request) -> str | None:
    """Return the colours that were chosen in a browser, `light` or `dark`; None for those of its system."""
    chosen = request.cookies.get("reg-theme")
    return chosen if chosen in ("light", "dark") else None


def whole(request: Request, name: str, default: int) -> int:
    """Return a whole number of the query, at most a billion; `default` if it is not a number."""
    text = request.query_params.get(name, "")
    return min(10**9, int(text)) if text.isascii() and text.isdecimal() and len(text) < 12 else default
