"""Proves: what Click finds wrong is said in the program's own words, with the next command, as text and as JSON.

Common words of other programs are answered with the command that does it here, and Ctrl-C with what to do next.
"""

import json

import click
import pytest
from click.testing import CliRunner

from cli.command_names import ALIASES, COMMANDS, SYNONYMS
from cli.main import main

VOICE: dict[str, tuple[list[str], str, str]] = {
    "argument": (["export", "--out", "x"], "NAME[@V] is missing", "reg export --help"),
    "folder": (["reproduce"], "FOLDER is missing", "reg reproduce --help"),
    "option": (["export", "code"], "--out is missing", "reg export --help"),
    "choice": (
        ["train", "moe", "--data", "x", "--out", "y"],
        "--train is missing: choose from routers, mlps, all, projectors",
        "reg train --help",
    ),
    "no option": (["list", "--limt", "3"], "there is no option --limt; did you mean --limit?", "reg list --help"),
    "value": (["list", "--limit", "x"], "--limit: 'x' is not a valid integer", "reg list --help"),
    "range": (["list", "--limit", "0"], "--limit: 0 is not in the range x>=1", "reg list --help"),
    "without value": (["list", "--limit"], "option '--limit' requires an argument", "reg list --help"),
    "too many": (["list", "a", "b"], "got unexpected extra arguments (a b)", "reg list --help"),
    "no command": (["lsit"], "there is no command 'lsit'; did you mean 'list'?", "reg list --help"),
    "unlike any": (["qqqq"], "there is no command 'qqqq'", "reg --help"),
    "neither": (["compose", "--experts", "math"], "give --out DIR, or --plan", "reg compose --help"),
    "tag": (["add-base", "a", "b", "--tag", "x"], "--tag: 'x' is not of the form K=V", "reg add-base --help"),
    "tag to list by": (["list", "--tag", "nope"], "--tag: 'nope' is not of the form K=V", "reg list --help"),
    "tag twice": (
        ["add-base", "a", "b", "--tag", "a=1", "--tag", "a=2"],
        "--tag: 'a' is given twice, as '1' and as '2'",
        "reg add-base --help",
    ),
    "weight twice": (
        ["compose", "--experts", "a", "--weights", "a=1,a=2", "--out", "y"],
        "--weights: 'a' is given twice, as '1' and as '2'",
        "reg compose --help",
    ),
    "domain": (["evaluate", "moe", "--data", "x"], "--data: 'x' is not of the form DOMAIN=FILE", "reg evaluate --help"),
    "no subcommand": (["db", "foo"], "no such command 'foo'", "reg db --help"),
    "of the group": (
        ["--limit", "3", "list"],
        "there is no option --limit before a command; options of a command stand after its name",
        "reg --help",
    ),
    "output": (
        ["help", "compose", "dens"],
        "there is no output 'dens' among moe, dense, ensemble, hetero, simoe, adapters; did you mean 'dense'?",
        "reg compose --help",
    ),
    "of a group's command": (["receipt", "verify"], "FILE is missing", "reg receipt verify --help"),
}


@pytest.mark.parametrize("case", VOICE)
def test_clicks_errors_have_the_programs_form(case: str) -> None:
    words, message, following = VOICE[case]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: {message}\n  next: {following}\n"
    result = CliRunner().invoke(main, [*words, "--json"] if case != "without value" else ["--json", *words])
    assert (result.exit_code, result.stdout) == (2, "")
    found = json.loads(result.stderr)["error"]
    assert (found["message"], found["next"], found["exit_code"]) == (message, following, 2)


def test_help_is_a_word_too() -> None:
    for words in (["help"], ["help", "help"], ["-q", "help", "--json"]):
        assert CliRunner().invoke(main, words).stdout == CliRunner().invoke(main, ["--help"]).stdout
    for words in (["compose"], ["db", "upgrade"], ["ls"]):
        result = CliRunner().invoke(main, ["help", *words])
        assert (result.exit_code, result.stdout) == (0, CliRunner().invoke(main, [*words, "--help"]).stdout)
    result = CliRunner().invoke(main, ["help", "compse"])
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, "  next: reg compose --help")


LISTS: dict[str, tuple[list[str], str, str]] = {
    "space and comma": (["compose", "--plan", "--experts=code", ",math"], "--experts code,math",
                        "reg compose --plan --experts code,math"),
    "spaces alone": (["preview", "--experts", "code", "math", "law"], "--experts code,math,law",
                     "reg preview --experts code,math,law"),
    "beside a folder": (["evaluate", "--methods", "all,", "base", "moe", "--data", "a=b"], "--methods all,base",
                        "reg evaluate --methods all,base moe --data a=b"),
    "with a home": (["--home", "h", "preview", "--experts", "a,", "b"], "--experts a,b",
                    "reg --home h preview --experts a,b"),
}  # fmt: skip


@pytest.mark.parametrize("case", LISTS)
def test_a_list_with_spaces_is_typed_again_without(case: str) -> None:
    words, listed, following = LISTS[case]
    result = CliRunner().invoke(main, words)
    message = f"{listed.split()[0]}: separate by commas, without spaces: {listed}"
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: {message}\n  next: {following}\n"


def test_a_quoted_list_may_have_spaces() -> None:
    result = CliRunner().invoke(main, ["--home", "absent", "compose", "--experts", "code, math", "--plan"])
    assert "separate" not in result.stderr


def test_words_of_other_programs_are_answered_with_ours() -> None:
    for word, meant in (("delete", "opt-out"), ("register", "add-expert"), ("upload", "push"), ("init", "add-base")):
        result = CliRunner().invoke(main, [word, "x"])
        assert result.exit_code == 2
        assert f"error: there is no command {word!r}; did you mean {meant!r}" in result.stderr
        assert f"next: reg {meant} --help" in result.stderr
    assert {command for commands in SYNONYMS.values() for command in commands} <= set(COMMANDS)
    assert not SYNONYMS.keys() & (COMMANDS.keys() | ALIASES.keys())


@pytest.mark.parametrize(
    ("command", "following"), [("list", "run it again"), ("push", "run it again; it goes on where it stopped")]
)
def test_interrupt_says_what_to_do_next(monkeypatch: pytest.MonkeyPatch, command: str, following: str) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    known = main.get_command(click.Context(main), command)
    assert known is not None
    monkeypatch.setattr(known, "callback", interrupted)
    words = [command, *(["moe", "org/moe"] if command == "push" else [])]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == f"error: interrupted\n  next: {following}\n"
    result = CliRunner().invoke(main, [*words, "--json"])
    assert json.loads(result.stderr)["error"] == {
        "kind": "Interrupted", "message": "interrupted", "next": following, "exit_code": 130,
    }  # fmt: skip
