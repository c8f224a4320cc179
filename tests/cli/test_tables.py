"""Proves: no command prints a line that is wider than the terminal, whatever the names are.

In tables numbers end at the same place, and a file gets every character.
"""

from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from cli.output import print_table
from cli.tables import layout, shorten
from registry import Registry
from registry.names.reference import NAME_LIMIT
from tests.cli.conftest import Reg
from tests.conftest import Zoo

LONG = "n" * 47 + "MIDDLE" + "z" * 47
WIDTHS = (60, 80, 120)
VERSIONS = (
    ("version", "kind", "digest", "parameters", "tokens", "aliases", "tags", "state"),
    [(f"{LONG}@{one}", "expert", "0123456789ab", "1,195,824", "16,384", "", f"{LONG}=x", "active") for one in "123"],
)
SCORES = (
    ("normalised score", *(f"{LONG}-{one}" for one in range(12)), "average"),
    [(LONG, *["100.00 ± 0.25"] * 12, "99.10"), ("moe", *["7.00"] * 12, "")],
)
PAIRS = (("expert", LONG), [("digest", "a" * 64), ("note", "word " * 60), (LONG, "x")])
LOG = (("at", "what"), [("2026-01-01 10:00", f"{LONG}@1 was registered")])


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    tables: list[tuple[Sequence[str], Sequence[Sequence[str]]]] = [VERSIONS, SCORES, PAIRS, LOG]
    for header, rows in tables:
        parts = layout(header, rows, width)
        assert max(len(line) for lines in parts for line in lines) <= width, header
        assert all(len(lines) > len(rows) for lines in parts), header


@pytest.mark.parametrize("width", WIDTHS)
def test_every_column_of_a_folded_table_stands_in_one_part(width: int) -> None:
    header = ("score", *(f"domain{one}" for one in range(40)))
    parts = layout(header, [("moe", *(f"{one}.25" for one in range(40)))], width)
    assert len(parts) > 1
    assert all(lines[0].startswith("score") and lines[1].startswith("moe") for lines in parts)
    assert [word for lines in parts for word in lines[0].split()[1:]] == list(header[1:])
    assert [word for lines in parts for word in lines[1].split()[1:]] == [f"{one}.25" for one in range(40)]


def test_numbers_and_times_are_never_shortened() -> None:
    rows = [(LONG, "123,456,789,012,345", "2026-01-01T10:00:00", LONG)]
    text = "\n".join(line for lines in layout(("a", "b", "c", "d"), rows, 60) for line in lines)
    assert "123,456,789,012,345" in text
    assert "2026-01-01T10:00:00" in text


def test_numbers_end_at_the_same_place() -> None:
    (lines,) = layout(("model", "score", "note"), [("a", "7.00", "x"), ("bc", "100.00", "y"), ("d", "", "z")])
    assert lines == ["model   score  note", "a        7.00  x", "bc     100.00  y", "d              z"]
    assert layout(("a", "b", "c"), [("x\ny", "1", "z")]) == [["a    b  c", "x y  1  z"]]  # a line break breaks nothing


def test_what_is_left_out_is_the_middle() -> None:
    assert shorten("abcdefghij", 7) == "abc…hij"
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert [shorten("abcdefghij", one) for one in (1, 2, 3)] == ["…", "a…", "a…j"]


def test_a_file_gets_every_character(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    print_table(*VERSIONS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[1].startswith(f"{LONG}@1  expert  0123456789ab")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(*VERSIONS)
    assert max(map(len, click.unstyle(capsys.readouterr().out).splitlines())) == 60


def test_hyphens_are_no_place_for_a_break() -> None:
    path = "/home/someone/my-models/code-english-math/first-try"
    rows = [("2026-01-01 10:00", f"code@1, math@1 were composed into {path} (0123456789ab)")]
    for width in (40, 50, 60):
        (lines,) = layout(("time (UTC)", "event"), rows, width)
        assert lines[1].startswith("2026-01-01 10:00  ")
        texts = [line[18:] for line in lines[1:]]
        assert max(map(len, lines)) <= width
        assert path in "".join(texts)
        assert not [text for text in texts if text.endswith("-")]


def test_members_of_a_narrow_table_are_wrapped_not_cut() -> None:
    header = ("composition", "made", "members", "trunk")
    rows = [("0123456789ab", "2026-01-01T10:00:00", "biomed@1,code@1,english@2,math@1", "regmean")]
    for width in (40, 50, 60):
        text = "\n".join(line for lines in layout(header, rows, width) for line in lines)
        for member in ("biomed@1,", "code@1,", "english@2,", "math@1"):
            assert member in text
        assert "…" not in text
    (lines,) = layout(("a", "b", "c"), [("x", f"{LONG},short@1", "1,234,567")], 40)
    assert [line.split()[-1] for line in lines[1:]] == ["1,234,567", "short@1"]
    assert "…" in lines[1]  # one name that is longer than a line


def test_columns_without_content_make_room() -> None:
    rows = [("code@1", "", "ab" * 10, ""), ("math@1", "", "cd" * 10, "")]
    assert layout(("version", "a" * 10, "digest", "b" * 10), rows, 40) == [
        ["version  digest", f"code@1   {'ab' * 10}", f"math@1   {'cd' * 10}"]
    ]


FIRST, SECOND = ("n" * (NAME_LIMIT - 1) + number for number in "12")


@pytest.mark.check
def test_lines_are_no_wider_than_the_terminal(
    reg: Reg, filled: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.add_expert(FIRST, zoo.experts["code"], tags={"t" * 60: "v" * 60})
    filled.add_expert(SECOND, zoo.experts["math"])
    made = filled.compose([FIRST, SECOND], tmp_path / "moe").digest
    filled.alias(FIRST, "stable")
    text = [word for name in (FIRST, SECOND) for word in ("--data", f"{name}={zoo.test['code']}")]
    members = ["--experts", f"{FIRST},{SECOND}"]
    commands: list[tuple[Sequence[object], tuple[int, ...]]] = [
        (["evaluate", tmp_path / "moe", *text, "--windows", 1, "--seq-len", 32], (40, 80)),
        (["preview", *members], (40, 80)),
        (["compose", *members, "--plan"], (40, 80)),
        *((words.split(), (40, 60, 80, 120)) for words in ("list", f"show {FIRST}", f"show {made[:12]}")),
        *((words.split(), (40, 60, 80, 120)) for words in ("compositions", "log", "config")),
    ]
    for words, widths in commands:
        for width in widths:
            monkeypatch.setattr("cli.output.terminal_width", lambda width=width: width)
            lines = click.unstyle(reg(*words).stdout).splitlines()
            assert [line for line in lines if len(line) > width] == [], (words[0], width)
    monkeypatch.undo()
    whole = reg("list").stdout
    assert f"{FIRST}@1" in whole
    assert "…" not in whole
