"""The registry that a command line names, by --home, --database and --arrays anywhere on it, and how it is opened."""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cli.output import progress

if TYPE_CHECKING:
    from registry import Registry
    from registry.distributed import Cluster

_OPENED = "reg.registry"
_OPTIONS = {
    "home": ("DIR", "The registry's folder"),
    "database": ("URL", "SQLAlchemy URL of the catalog"),
    "arrays": ("DIR|URL", "Folder or bucket (s3://, gs://, az://) of the arrays"),
}
"""Option → what its value is, and its help, in the order of the help."""


class Session:
    """The registry that a command line names; `meta`, which all its contexts share, has the values of the options."""

    def __init__(self, meta: MutableMapping[str, Any]) -> None:
        self._meta = meta

    def _value(self, name: str) -> str | None:
        """Return the value of an option: that of the command line, else that of the environment, if any."""
        found: str | None = self._meta.get(_key(name, typed=True), self._meta.get(_key(name, typed=False)))
        return found

    @property
    def home(self) -> Path | None:
        """The registry's folder, if one is named."""
        home = self._value("home")
        return None if home is None else Path(home)

    @property
    def database(self) -> str | None:
        """The URL of the catalog, if one is named."""
        return self._value("database")

    @property
    def arrays(self) -> str | None:
        """The folder or URL of the arrays, if one is named."""
        return self._value("arrays")

    @property
    def typed(self) -> frozenset[str]:
        """Names of the options that are on the command line, not in the environment."""
        return frozenset(name for name in _OPTIONS if _key(name, typed=True) in self._meta)

    @contextmanager
    def registry(self, *, create: bool = False, cluster: "Cluster | None" = None) -> Iterator["Registry"]:
        """Open the registry, once for a command; with `create` the first write creates it. Work runs on `cluster`."""
        from registry import Registry

        located: dict[str, Any] = {"database": self.database, "arrays": self.arrays, "progress": progress()}
        if create:  # nothing stays of a failure
            with Registry(self.home, create="when written to", **located) as opened:
                opened.cluster = cluster
                yield opened
            return
        if _OPENED not in self._meta:
            registry = Registry(self.home, create=False, **located)
            self._meta[_OPENED] = click.get_current_context().with_resource(registry)
        opened = self._meta[_OPENED]
        opened.cluster = cluster
        yield opened


pass_session = click.make_pass_decorator(Session)


class _Whole(click.types.StringParamType):
    """A text that an environment variable holds whole, with its spaces."""

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]


def _key(name: str, *, typed: bool) -> str:
    return f"{__name__}.{name}.{'typed' if typed else 'environment'}"


def _keep(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> None:
    """Keep the value of an option for the whole command line; one that is empty, or not the same again, is refused."""
    name = str(option.name)
    key = _key(name, typed=context.get_parameter_source(name) is ParameterSource.COMMANDLINE)
    for value in values:
        if not value:  # an unset shell variable must not select another registry
            raise click.UsageError(f"--{name} is empty", context)
        if (other := context.meta.setdefault(key, value)) != value:
            raise click.UsageError(f"--{name} is given twice, as {other!r} and as {value!r}", context)


def registry_options(*, hidden: bool = False) -> list[click.Parameter]:
    """Return --home, --database and --arrays of the group, which read the environment, or hidden ones of a command."""
    shared: dict[str, Any] = {"multiple": True, "expose_value": False, "callback": _keep, "type": _Whole()}
    options: list[click.Parameter] = []
    for name, (metavar, text) in _OPTIONS.items():
        variable = f"REG_{name.upper()}"
        own: dict[str, Any] = {"hidden": True} if hidden else {"envvar": variable}
        text = f"{text} ({variable}), before or after the command."
        options.append(click.Option([f"--{name}"], metavar=metavar, help=text, **own, **shared))
    return options


def accept_registry_options(command: click.Command) -> None:
    """Let these options stand after a command too, or a command of its own; its help does not repeat them."""
    command.params += registry_options(hidden=True)
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        accept_registry_options(subcommand)
