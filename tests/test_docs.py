"""Proves: every command, option, file, link and anchor on a page exists, and the site builds offline."""

import re
import shlex
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
import pytest

from cli.main import main

ROOT = Path(__file__).parents[1]
SITE = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *SITE]
FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def lines_of(page: Path) -> Iterator[str]:
    """Yield every line of a page's code blocks that starts with `reg`."""
    for language, block in FENCE.findall(page.read_text(encoding="utf-8")):
        if language in ("bash", "console"):
            for line in block.replace("\\\n", "").splitlines():
                command = line.strip().removeprefix("$ ")
                if command.startswith("reg "):
                    yield command


def inline_of(page: Path) -> Iterator[str]:
    """Yield every `reg …` in the text of a page."""
    prose = FENCE.sub("", page.read_text(encoding="utf-8"))
    yield from re.findall(r"`(reg [^`]+)`", prose)


def words_of(line: str) -> list[str]:
    """Return the words of a command line before any redirection, with optional parts in brackets included."""
    words = shlex.split(re.sub(r"[\[\]]", "", line), comments=True)
    return list(takewhile(lambda word: word not in "<>", words))


def find(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """Return the command that words name, its context, and the words after its name.

    Raises:
        click.UsageError: there is no such command, or no such option before it.
    """
    command: click.Command = main
    context, rest = main.make_context("reg", words[1:] or ["--help"], resilient_parsing=True), words[1:]
    while isinstance(command, click.Group):
        while rest and rest[0].startswith("-"):
            options = options_of(command)
            if rest[0] not in options:
                raise click.UsageError(f"no option {rest[0]} before a command")
            rest = rest[1 if options[rest[0]] else 2 :]
        if not rest:
            break
        subcommand = command.get_command(context, rest[0])
        if subcommand is None:
            raise click.UsageError(f"no command {rest[0]}")
        command, rest = subcommand, rest[1:]
        context = click.Context(command, info_name=command.name, parent=context)
    return command, context, rest


def options_of(command: click.Command) -> dict[str, bool]:
    """Return option → whether it is a flag."""
    options = [option for option in command.get_params(click.Context(command)) if isinstance(option, click.Option)]
    return {
        name: option.is_flag or option.is_eager for option in options for name in (*option.opts, *option.secondary_opts)
    }


def parse(line: str) -> None:
    """Parse a command line as `reg` would.

    Raises:
        click.ClickException: as `reg` would.
    """
    command, context, rest = find(words_of(line.replace("…", "x")))
    if "--help" not in rest:
        command.make_context(command.name, rest, parent=context.parent)


@every_page
def test_commands_are_parsed_as_they_stand(page: Path) -> None:
    for line in lines_of(page):
        try:
            parse(line)
        except click.ClickException as error:
            pytest.fail(f"{name_of(page)}: {line}: {error.format_message()}")


@pytest.mark.parametrize(
    "line",
    [
        "reg compos --out x",
        "reg compose --experts a --ouut x",
        "reg compose --experts a --out x --to modest",
        "reg compose --experts a --out x --top-k some",
        "reg evaluate moe/",
        "reg export math",
        "reg --hom x list",
        "reg db upgrad",
    ],
)
def test_wrong_commands_are_refused(line: str) -> None:
    with pytest.raises(click.ClickException):
        parse(line)


@every_page
def test_commands_in_the_text_exist(page: Path) -> None:
    for text in inline_of(page):
        words = [word.rstrip(":,") for word in text.split() if word != "…"]
        try:
            command, _, rest = find(words)
        except click.ClickException as error:
            pytest.fail(f"{name_of(page)}: `{text}`: {error.format_message()}")
        options = {*options_of(command), "--help"}
        for word in rest:
            if re.fullmatch(r"--[a-z][a-z-]*", word):
                assert word in options, f"{name_of(page)}: `{text}`: no {word}"


def slugs(page: Path) -> tuple[set[str], set[str]]:
    """Return the anchors of a page's headings: in the repository, and on the site."""
    shown, built = set[str](), set[str]()
    for heading in re.findall(r"^#+ +(.+?) *$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        shown.add(re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-"))
        plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
        built.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return shown, built


@every_page
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)}: {target}"
        if anchor:
            shown, built = slugs(file)
            assert anchor in shown, f"{name_of(page)}: {target}: no such heading in {name_of(file)}"
            if file.is_relative_to(ROOT / "docs"):
                assert anchor in built, f"{name_of(page)}: {target}: the site has another anchor"


@every_page
def test_files_named_in_the_text_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for path in re.findall(r"`((?:benchmarks|cli|docs|migrations|registry|store|tests)/[\w./-]*)`", text):
        assert (ROOT / path).exists() or path == "registry/families/seed_oss.py", f"{name_of(page)}: {path}"


@pytest.mark.check
def test_site_builds_without_a_warning_and_downloads_nothing(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = list(site.rglob("*.html"))
    assert {page.relative_to(site).with_suffix(".md").as_posix() for page in pages} - {"404.md"} == {
        page.relative_to(ROOT / "docs").as_posix() for page in SITE
    }
    for page in pages:
        html = page.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe|source)[^>]* src=[\"']?([^\"' >]+)", html)
        fetched += re.findall(r"<link[^>]* rel=[\"']?(?:stylesheet|icon|preconnect)[^>]*href=[\"']?([^\"' >]+)", html)
        fetched += re.findall(r"<link[^>]* href=[\"']?([^\"' >]+)[^>]*rel=[\"']?(?:stylesheet|icon|preconnect)", html)
        assert fetched
        assert [url for url in fetched if re.match(r"(https?:)?//", url)] == [], page.name
    for sheet in site.rglob("*.css"):
        assert "url(http" not in sheet.read_text(encoding="utf-8"), sheet.name
