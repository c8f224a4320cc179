"""Proves: only this machine's own browser is answered, only GET, and every answer forbids what pages do not need."""

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


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:9000", "[::1]:8321"])
def test_own_names_are_answered_on_any_port(pages: Pages, host: str) -> None:
    assert pages.ask("/", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:127",
        "127.0.0.1@evil.example",
        "localhost:80:80",
        "[::1",
        "127.0.0.2",
        "0.0.0.0",
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


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("path", ["/", "/compose", "/versions/math"])
def test_nothing_can_be_sent(pages: Pages, method: str, path: str) -> None:
    assert pages.ask(path, method=method).status == 405


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd", "/static/"],
)
def test_no_other_file_is_served(pages: Pages, path: str) -> None:
    assert pages.ask(path).status in (404, 405)


def test_static_files_name_nothing_elsewhere() -> None:
    folder = Path(__file__).parents[3] / "registry" / "ui"
    for file in (*folder.glob("static/*"), *folder.glob("templates/*")):
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, file
        assert "https:" not in text, file
        assert "style=" not in text, file  # which the policy would not let work
