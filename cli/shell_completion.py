"""Shell completion: click's own scripts, and completion of registered names.

Completion must be quick and silent: torch is not imported, and a missing registry is not reported.
"""

import os
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

from cli.session import Session

SHELLS = ("bash", "zsh", "fish")

_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' type value breaks before
    local line=${COMP_LINE:0:COMP_POINT}
    COMPREPLY=()
    # Bash replaces only the text after the last of these characters in the word.
    breaks=${COMP_WORDBREAKS//[[:space:]\\"\\'<>|;&(]/}
    before=${line##*[[:space:]]}
    if [[ -n $breaks && $before == *["$breaks"]* ]]; then
        before=${before%%"${before##*["$breaks"]}"}
    else
        before=
    fi
    while IFS=, read -r type value; do
        case $type in
            dir) compopt -o dirnames 2>/dev/null ;;
            file) compopt -o default 2>/dev/null ;;
            plain) COMPREPLY+=("${value#"$before"}") ;;
        esac
        if [[ $value == *, ]]; then compopt -o nospace 2>/dev/null; fi
    done < <(REG_COMPLETION_LINE=$line %(complete_var)s=bash_complete $1 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class _Bash(BashComplete):
    """Completion for bash, which ends words at `@`; so the whole line is parsed here."""

    source_template = _BASH

    @staticmethod
    def _check_version() -> None:  # click's check starts bash, and warns if there is none
        return

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor's, and the part of the cursor's word before the cursor."""
        line = os.environ.get("REG_COMPLETION_LINE", "")
        words = click.shell_completion.split_arg_string(line)
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value}"


add_completion_class(_Bash)


def script(shell: str, group: click.Command, variable: str) -> str:
    """Return the completion script of a shell for a command group, which sets `variable` when it asks."""
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    return completion_class(group, {}, "reg", variable).source().rstrip("\n")


@dataclass(eq=False)
class Registered(click.types.StringParamType):
    """The name of a registered version: text that the shell can complete, and that is resolved later."""

    kind: Literal["expert", "base"] | None = None
    _: KW_ONLY
    many: bool = False  # names separated by commas
    everything: bool = False  # opted-out versions too
    folders: bool = False  # folders too

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return names or, after `@`, the versions and aliases of a name; nothing is created."""
        before, comma, last = incomplete.rpartition(",") if self.many else ("", "", incomplete)
        taken = {word.partition("@")[0] for word in before.split(",")} - {""}
        refs: list[str] = []
        if not (self.folders and last.startswith((".", "/", "~"))):
            with suppress(Exception):
                refs = [ref for ref in self._references(ctx, last) if ref not in taken and ref.startswith(last)]
        if not refs and self.folders:
            return [CompletionItem(incomplete, type="dir")]
        return [CompletionItem(before + comma + ref) for ref in refs]

    def _references(self, ctx: click.Context, text: str) -> list[str]:
        """Return all names or, for `NAME@…`, its versions and aliases; RegError if the registry cannot be read."""
        from registry.maintenance.catalog_schema import revisions
        from registry.names.resolve import ALL_STATES
        from registry.registry import Registry

        session = Session(ctx.meta)
        home, database, arrays = session.home, session.database, session.arrays
        revision, head = revisions(home, database, arrays)
        if revision != head:
            return []
        states = ALL_STATES if self.everything else ("active",)
        name, at, _ = text.partition("@")
        with Registry(home, database=database, arrays=arrays, create=False) as registry:
            if not at:
                return [*registry.catalog.names(kind=self.kind, states=states)]
            own = registry.catalog.versions(name, kind=self.kind, states=states)
        selectors = [str(version.number) for version in own] + [alias for version in own for alias in version.aliases]
        return [f"{name}@{selector}" for selector in selectors]


_BY_METAVAR = {
    "NAME": Registered(),
    "NAME[@V]": Registered(),
    "NAME[@V]|DIGEST": Registered(everything=True),
    "[NAME[@V]|DIGEST]": Registered(everything=True),
    "A,B@2,…": Registered("expert", many=True),
    "FILE|NAME": Registered("expert", folders=True),
    "CKPT": Registered(folders=True),
    "BASE": Registered("base", folders=True),
    "SOUP": Registered("base"),
}
"""Name of a parameter in the help → its type with completion."""


def complete_names(command: click.Command) -> None:
    """Give the parameters of a command and its subcommands completion of registered names."""
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        complete_names(subcommand)
    for param in command.params:
        label = "BASE" if param.name == "base" else param.metavar or param.human_readable_name
        if label in _BY_METAVAR and not isinstance(param.type, click.Path):
            param.type = _BY_METAVAR[label]
