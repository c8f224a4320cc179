"""Proves: every command, option, file, link and anchor on a page exists, and the site builds offline.

And: the page on the architecture names what is in the code.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path

import click
import pytest

from cli.command_reference import pages, write
from cli.main import main
from tests.running import ROOT

GENERATED = {ROOT / name: text for name, text in pages().items()}
"""Page that is written from the commands, and that git does not keep → its text."""
SITE = sorted({*(ROOT / "docs").rglob("*.md"), *GENERATED})
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "QUALITY.md", *SITE]
PACKAGES = ("cli", "registry", "store")
FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


@cache
def text_of(page: Path) -> str:
    return GENERATED[page] if page in GENERATED else page.read_text(encoding="utf-8")


def lines_of(page: Path) -> Iterator[str]:
    """Yield every line of a page's code blocks that starts with `reg`."""
    for language, block in FENCE.findall(text_of(page)):
        if language in ("bash", "console"):
            lines = (line.strip().removeprefix("$ ") for line in block.replace("\\\n", "").splitlines())
            yield from (line for line in lines if line.startswith("reg "))


def prose_of(page: Path) -> str:
    """Return a page without its code blocks."""
    return FENCE.sub("", text_of(page))


def words_of(line: str) -> list[str]:
    """Return the words of a command line before any redirection, with optional parts in brackets included."""
    words = shlex.split(re.sub(r"[\[\]]", "", line), comments=True)
    return list(takewhile(lambda word: word not in "<>", words))


def find(words: list[str]) -> tuple[click.Command, click.Context | None, list[str]]:
    """Return the command that words name, the context that it is found in, and the words after its name."""
    command: click.Command = main
    context, rest = None, [word for word in words[1:] if word not in ("--help", "--help-all", "--version")]
    while isinstance(command, click.Group) and rest:
        context = command.make_context(command.name, rest, parent=context)
        _, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        command = found
    return command, context, rest


def parse(line: str) -> None:
    """Parse a command line as `reg` would."""
    words = words_of(line.replace("…", "x"))
    command, context, rest = find(words)
    if "--help" not in words:
        command.make_context(command.name, rest, parent=context)


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
def test_commands_exist(page: Path) -> None:
    """Those of code blocks are parsed as they stand; those in the text may lack arguments."""
    line = ""
    try:
        for line in lines_of(page):
            parse(line)
        for line in re.findall(r"`(reg [^`]+)`", prose_of(page)):
            command, _, rest = find([word.rstrip(":,") for word in line.split() if word != "…"])
            options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
            named = {word for word in rest if re.fullmatch(r"--[a-z][a-z-]*", word)}
            assert named <= options, f"{name_of(page)}: {line}"
    except click.ClickException as error:
        pytest.fail(f"{name_of(page)}: {line}: {error.format_message()}")


def slugs(page: Path) -> tuple[set[str], set[str]]:
    """Return the anchors of a page's headings: in the repository, and on the site."""
    shown, built = set[str](), set[str]()
    for heading in re.findall(r"^#+ +(.+?) *$", prose_of(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        shown.add(re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-"))
        plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
        built.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return shown, built


@every_page
def test_links_anchors_and_files_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", re.sub(r"`[^`]*`", "", prose_of(page))):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file in GENERATED or file.exists(), f"{name_of(page)}: {target}"
        if anchor:
            shown, built = slugs(file)
            assert anchor in shown, f"{name_of(page)}: {target}: no such heading in {name_of(file)}"
            if file.is_relative_to(ROOT / "docs"):
                assert anchor in built, f"{name_of(page)}: {target}: the site has another anchor"
    for path in re.findall(r"`((?:benchmarks|cli|docs|migrations|registry|store|tests)/[\w./-]*)`", prose_of(page)):
        exists = ROOT / path in GENERATED or (ROOT / path).exists()
        assert exists or path == "registry/families/seed_oss.py", f"{name_of(page)}: {path}"


ARCHITECTURE = ROOT / "docs" / "architecture.md"


def defined_in(source: str) -> set[str]:
    """Return the names of classes, functions and values in the text of modules."""
    found = re.findall(r"^ *(?:(?:class|def) (\w+)|(\w+)(?::[^\n=]*)? = )", source, re.MULTILINE)
    return {name for pair in found for name in pair}


def test_architecture_names_functions_and_classes_that_there_are() -> None:
    """Those of a step stand in the file before them; all others stand in one of the packages."""
    page = ARCHITECTURE.read_text(encoding="utf-8")
    steps = re.findall(r"`(\w+/[\w/]+\.py)`,\s+`([\w.]+)`", page)
    assert len(steps) == 16
    for path, name in steps:
        assert {*name.split(".")} <= defined_in((ROOT / path).read_text(encoding="utf-8")), f"{path}: {name}"
    sources = (path.read_text(encoding="utf-8") for one in PACKAGES for path in (ROOT / one).rglob("*.py"))
    named = {*re.findall(r"`([A-Za-z_]\w*(?:\.[a-z]\w*)?)`", page)} - {"pyproject.toml", "composition.json"}
    assert {part for name in named for part in name.split(".")} - defined_in("\n".join(sources)) == set()


def test_architecture_has_every_package_in_the_order_of_the_contract() -> None:
    heads, packages = list[str](), set[str]()
    page = ARCHITECTURE.read_text(encoding="utf-8")
    for first, says in re.findall(r"^\| (`\w+/[^|]*)\|([^|]*)\|$", page, re.MULTILINE):
        head = re.findall(r"`([^`]+)`", first)
        heads += head
        packages |= {*head, *(head[0] + part for part in re.findall(r"`((?:\w+/)+)`", says))}
    folders = {f"{name_of(path.parent)}/" for one in PACKAGES for path in (ROOT / one).rglob("__init__.py")}
    modules = {name_of(path) for path in (ROOT / "registry").glob("*.py")} - {"registry/__init__.py"}
    assert packages == (folders - {"registry/"}) | modules
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = [one["layers"] for one in contracts if one.get("containers") == ["registry"]]
    order = [name for layer in layers for name in layer.split(" | ")]
    assert [Path(head).stem for head in heads if head.startswith("registry/")] == order


@pytest.mark.check
def test_site_builds_without_a_warning_and_downloads_nothing(tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    write(tmp_path)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
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
