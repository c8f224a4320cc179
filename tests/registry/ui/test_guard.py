"""Proves: only this machine's own browser is answered, only GET, and every answer forbids what pages do not need.

With write access, forms are taken from pages of this server in the browser with the secret, and from nowhere else.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from registry import Registry
from registry.ui.guard import HEADERS, POLICY
from tests.pages import Pages, served


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    with Registry(tmp_path_factory.mktemp("guard") / "home") as registry, served(registry) as found:
        yield found


@pytest.fixture(scope="module")
def writable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    with Registry(tmp_path_factory.mktemp("guard") / "home") as registry, served(registry, may_write=True) as found:
        yield found


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:9000", "[::1]:8321"])
def test_own_names_are_answered_on_any_port(pages: Pages, host: str) -> None:
    assert pages.ask("/", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:127"),
        *("127.0.0.1@evil.example", "localhost:80:80", "[::1", "127.0.0.2", "0.0.0.0"),
    ],
)
def test_other_names_are_refused_so_that_no_name_can_be_pointed_here(pages: Pages, host: str) -> None:
    answer = pages.ask("/", headers={"Host": host})
    assert answer.status in (400, 421), answer.text
    assert "Experts" not in answer.text


@pytest.mark.parametrize(
    ("site", "mode", "target", "status"),
    [
        ("none", "navigate", "document", 200),
        ("same-origin", "cors", "empty", 200),
        ("cross-site", "navigate", "document", 200),  # a link was followed
        ("cross-site", "no-cors", "image", 403),
        ("cross-site", "navigate", "iframe", 403),
        ("same-site", "cors", "empty", 403),  # another port of this machine
    ],
)
def test_other_sites_pages_may_only_link_here(pages: Pages, site: str, mode: str, target: str, status: int) -> None:
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": target}
    assert pages.ask("/", headers=headers).status == status


@pytest.mark.parametrize("path", ["/", "/compositions", "/nowhere", "/static/style.css", "/static/app.js"])
def test_every_answer_carries_the_policy(pages: Pages, path: str) -> None:
    answer = pages.ask(path)
    for name, value in HEADERS.items():
        assert answer.headers[name.lower()] == value
    assert "access-control-allow-origin" not in answer.headers
    assert "server" not in answer.headers
    assert "unsafe" not in POLICY
    assert "http" not in POLICY


def test_nothing_can_be_sent(pages: Pages, writable: Pages) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        for path in ("/", "/compose", "/versions/math"):
            assert pages.ask(path, method=method).status == 405, (method, path)
    headers = writable.cookie | {"Origin": writable.address}
    for method in ("PUT", "DELETE", "PATCH"):
        for path in ("/", "/compose", "/jobs"):
            assert writable.ask(path, method=method, headers=headers).status == 405, (method, path)
    assert writable.send("/compose").status == 405


def test_no_other_file_is_served(pages: Pages) -> None:
    for path in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "/etc/passwd", ""):
        assert pages.ask(f"/static/{path}").status in (404, 405), path


def test_static_files_name_nothing_elsewhere() -> None:
    folder = Path(__file__).parents[3] / "registry" / "ui"
    for file in (*folder.glob("static/*"), *folder.glob("templates/*")):
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, file
        assert "https:" not in text, file
        assert "style=" not in text, file  # which the policy would not let work


def test_the_secret_in_the_address_becomes_a_cookie(writable: Pages) -> None:
    assert writable.access is not None
    answer = writable.ask(f"/compositions?of=%3Cb%3E&token={writable.access.token}")
    assert answer.status == 200
    assert answer.headers["set-cookie"] == (
        f"{writable.access.cookie}={writable.access.token}; HttpOnly; Path=/; SameSite=strict"
    )
    assert "url=/compositions?of=%3Cb%3E&quot;" not in answer.text
    assert '<a href="/compositions?of=%3Cb%3E">' in answer.text  # without the secret
    assert "Jobs" not in writable.ask("/").text
    assert "Jobs" in writable.ask("/", headers=writable.cookie).text
    # it leads nowhere else
    assert 'href="/evil.example/"' in writable.ask(f"//evil.example/?token={writable.access.token}").text


def test_a_link_from_elsewhere_goes_on_from_a_page_of_this_server(writable: Pages) -> None:
    away = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    answer = writable.ask("/compose?e=%3Cb%3E&e=math", headers=away)
    assert (answer.status, "set-cookie" in answer.headers) == (200, False)
    assert 'content="0; url=/compose?e=%3Cb%3E&amp;e=math"' in answer.text
    assert "<main" not in answer.text
    assert "<main" in writable.ask("/compose", headers=away | writable.cookie).text
    assert writable.ask("/", headers=away | {"Sec-Fetch-Dest": "iframe"}).status == 403
    assert 'href="/evil.example/"' in writable.ask("//evil.example/", headers=away).text


@pytest.mark.parametrize("query", ["token=", "token=x", "token=é", "token={}&token={}", "token={}x", "token=%00"])
def test_another_secret_is_refused(writable: Pages, query: str) -> None:
    assert writable.access is not None
    query = query.replace("{}", writable.access.token).replace("é", "%C3%A9")
    answer = writable.ask(f"/?{query}")
    assert answer.status == 403
    assert "set-cookie" not in answer.headers
    assert "another start of reg ui" in answer.text


def test_without_write_access_there_is_neither_secret_nor_job(pages: Pages) -> None:
    assert "set-cookie" not in pages.ask("/?token=x").headers
    assert pages.ask("/jobs").status == 404
    assert pages.ask("/jobs", method="POST").status in (404, 405)
    assert "form_token" not in pages.ask("/compose").text


FOREIGN = [
    *({"Cookie": cookie} for cookie in ("", "reg-x=y")),
    *({"Origin": origin} for origin in ("", "null", "https://evil.example", "http://127.0.0.1:1")),
    *({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site", "none")),
    {"Host": "evil.example"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_forms_of_others_are_refused(writable: Pages, headers: dict[str, str]) -> None:
    answer = writable.send("/jobs", headers, e="code")
    assert answer.status in (403, 421)
    assert "there is no version" not in answer.text
    assert writable.jobs is not None
    assert writable.jobs.all() == []


def test_a_form_without_its_token_is_refused(writable: Pages) -> None:
    for token in ("", "x", "é", "0" * 64):
        answer = writable.send("/jobs", e="code", form_token=token)
        assert answer.status == 403
        assert "The form is not from this start of reg ui" in answer.text


def test_a_browser_without_the_secret_reads_and_no_more(writable: Pages) -> None:
    assert writable.ask("/compose").status == 200
    for path in ("/jobs", "/jobs/123"):
        answer = writable.ask(path)
        assert answer.status == 403
        assert "open the address that reg ui printed" in answer.text


def test_a_body_that_is_no_form_is_refused(writable: Pages) -> None:
    assert writable.send("/jobs", {"Content-Type": "multipart/form-data; boundary=x"}).status == 400
    assert writable.send("/jobs", e=["code"] * 700).status == 400
    assert writable.send("/jobs", e="x" * 70_000).status == 413
    assert writable.send("/jobs", {"Content-Type": "text/plain"}).status == 400  # which needs no consent elsewhere


def test_two_servers_do_not_share_a_secret(tmp_path: Path, writable: Pages) -> None:
    assert writable.access is not None
    with Registry(tmp_path / "home") as registry, served(registry, may_write=True) as other:
        assert other.access is not None
        assert other.access.cookie != writable.access.cookie
        assert other.access.token != writable.access.token
        assert other.ask("/jobs", headers=writable.cookie).status == 403
        both = {"Cookie": f"{writable.cookie['Cookie']}; {other.cookie['Cookie']}"}
        assert other.ask("/jobs", headers=both).status == 200
