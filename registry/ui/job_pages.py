"""The pages of jobs, and the forms that start and cancel them."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from registry.errors import InvalidInputError
from registry.ui.comparison import compared
from registry.ui.composer.compose_page import suggested
from registry.ui.composer.composing import Composing, check_new_folder, phases_of_composing
from registry.ui.compositions import composition_page
from registry.ui.describing import set_in_recipe, title
from registry.ui.evaluating import evaluated_on, evaluating, listed_briefly, phases_of_evaluating
from registry.ui.guard import RefusedError
from registry.ui.jobs import Job, Jobs
from registry.ui.site import Page, Site, url

MOST_FORM_BYTES, MOST_FORM_FIELDS = 1 << 16, 600

TakeForm = Callable[[Site, Request, QueryParams], Response]  # does what a checked form asks for


def jobs(site: Site, request: Request) -> Response:
    """Return all jobs of this start of the server: a page that follows them, or the part that the script asks for."""
    return site.render(request, "jobs.html", jobs=_jobs(site, request).all())


def job(site: Site, request: Request) -> Response:
    """Return one job: a page that follows it, or the part that the script asks for."""
    found = _jobs(site, request).get(request.path_params["job"])
    return site.render(
        request,
        "job.html",
        job=found,
        ahead=_jobs(site, request).ahead_of(found),
        folder=Path.cwd(),
        another=_another(found),
    )


def _another(job: Job) -> str:
    """Return the address of the form that started a job without the folder, which is written now."""
    path, _, query = job.back.partition("?")
    pairs = [(name, value) for name, value in parse_qsl(query) if name != "out"]
    return f"{path}?{urlencode(pairs)}" if pairs else path


def start(site: Site, request: Request, form: QueryParams) -> Response:
    """Start the composition of a form, and go to its job."""
    composing = Composing.of(form)
    planned = composing.plan(site)
    out = check_new_folder(composing.out or suggested(site, composing, planned))
    words = composing.words(planned, out)
    phases = phases_of_composing(planned, out)
    refs = listed_briefly([member.version.ref for member in planned.members])
    asked = f"Compose {refs} ({set_in_recipe(planned.document)})"
    return _see(_jobs(site, request).add(Job(asked, tuple(words), composing.address, out, phases=tuple(phases))))


def evaluation(site: Site, request: Request, form: QueryParams) -> Response:
    """Start the evaluation of a form on a composition's page, and go to its job."""
    record = site.composition(request.path_params["digest"])
    try:
        words = evaluating(record, form)
    except InvalidInputError as error:
        return composition_page(site, request, record, (form, error))
    asked, digests = f"Evaluate {title(record)} {evaluated_on(words)}", compared(form)
    back = url("compositions", record.digest, c=digests)
    comparison = url("compositions", "compare", c=digests) if digests else ""
    phases = phases_of_evaluating(words)
    return _see(_jobs(site, request).add(Job(asked, tuple(words), back, "", comparison, tuple(phases))))


def cancel(site: Site, request: Request, form: QueryParams) -> Response:
    """Cancel a job, and go to its page."""
    return _see(_jobs(site, request).cancel(request.path_params["job"]))


JOB_PAGES: dict[str, Page] = {"/jobs": jobs, "/jobs/{job}": job}  # path → page, with write access

FORMS: dict[str, TakeForm] = {
    "/jobs": start,
    "/jobs/{job}/cancel": cancel,
    "/compositions/{digest}/evaluation": evaluation,
}
"""Path → what a form that is sent there does."""


def form_endpoint(site: Site, take: TakeForm) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that reads a form, checks where it comes from, and does what it asks for."""

    async def endpoint(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MOST_FORM_BYTES:
                return site.error(request, 413, "the form is too long", "choose fewer experts, or use the command")

        def make(site: Site, request: Request) -> Response:
            form = _form(request, body)
            assert site.access is not None
            site.access.check_form(site.may_write(request), form.get("form_token", ""))
            return take(site, request, form)

        return await run_in_threadpool(site.page(make), request)

    return endpoint


def _form(request: Request, body: bytes) -> QueryParams:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise InvalidInputError("this is not a form", "use the form of the page")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FORM_FIELDS)
    except ValueError:
        raise InvalidInputError("the form cannot be read", "use the form of the page") from None
    return QueryParams(pairs)


def _jobs(site: Site, request: Request) -> Jobs:
    """Return the jobs, of which only browsers with the secret read."""
    if site.jobs is None or not site.may_write(request):
        raise RefusedError("jobs are shown to the browser that may start them", "open the address that reg ui printed")
    return site.jobs


def _see(job: Job) -> Response:
    return RedirectResponse(url("jobs", job.id), status_code=303)
