"""Kinds of options and of their values, with what parses these."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.output import COPIES, Decorator, progress
from registry.names.suggest import suggest
from store.bucket import url_of
from store.errors import InvalidInputError
from store.object_store import is_url

Value = TypeVar("Value")


class Integer(click.IntRange):
    """A whole number within bounds, named `integer` in error messages."""

    name = "integer"


if TYPE_CHECKING:
    _Words = click.Choice[str]
    _Bytes = click.ParamType[int]
    _Path = click.Path[Any]
else:
    _Words, _Bytes, _Path = click.Choice, click.ParamType, click.Path  # older versions are not generic


class Choice(_Words):
    """A choice of words; the error message for another word suggests the closest one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            text = f"{error.message.removesuffix('.')}{suggest(str(value), self.choices) or '.'}"
            raise click.BadParameter(text, ctx=error.ctx, param=error.param) from None


class Option(click.Option):
    """An option with what help needs to know of it."""

    def __init__(self, *args: Any, advanced: bool = False, outputs: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.advanced = advanced  # in a command with many options, only `--help-all` lists it
        self.outputs = outputs  # of compositions that it has a part in; empty for all


def option(usage: str, text: str, *parameter: str, default: object = None, **settings: Any) -> Decorator:
    """Return a decorator that adds an option, such as `--out DIR`, with the help `text`; it may name its parameter."""
    name, _, metavar = usage.partition(" ")
    shown = {} if default is None else {"default": default, "show_default": True}
    return click.option(name, *parameter, cls=Option, metavar=metavar, help=text, **shown, **settings)


def _with_value(usage: str, usual: str) -> str:
    return usage if " " in usage else f"{usage} {usual}"


def integer(usage: str, text: str, default: int | None = None, *, least: int = 1, **settings: Any) -> Decorator:
    """Return a decorator that adds an option of a whole number, `--name N`, of at least `least`."""
    return option(_with_value(usage, "N"), text, default=default, type=Integer(least), **settings)


def number(usage: str, text: str, default: float | None = None, **settings: Any) -> Decorator:
    """Return a decorator that adds an option of a number, `--name X`."""
    return option(_with_value(usage, "X"), text, default=default, type=float, **settings)


def choice(usage: str, choices: Sequence[str], text: str, default: str | None = None, **settings: Any) -> Decorator:
    """Return a decorator that adds an option of one of some words, `--name NAME`."""
    own = _with_value(usage, usage.removeprefix("--").upper())
    return option(own, text, default=default, type=Choice(choices), **settings)


def flag(name: str, text: str, *parameter: str, **settings: Any) -> Decorator:
    """Return a decorator that adds an option without a value; it may name the parameter."""
    return click.option(name, *parameter, cls=Option, is_flag=True, help=text, **settings)


def file(usage: str, text: str, **settings: Any) -> Decorator:
    """Return a decorator that adds an option of a file or folder."""
    return option(usage, text, type=file_path, **settings)


def files(name: str, text: str, **settings: Any) -> Decorator:
    """Return a decorator that adds a repeatable option of a file."""
    return file(f"{name} FILE", text, multiple=True, **settings)


def options(*added: Decorator) -> Decorator:
    """Return a decorator that adds several options, in this order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(added):
            command = option(command)
        return command

    return add


class Size(_Bytes):
    """A size of memory in bytes, such as `6GiB` or `500MB`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        match = _SIZE.fullmatch(str(value).strip())
        nbytes = 0 if match is None else int(float(match[1]) * _UNITS[match[2].lower()])
        if nbytes < 1:
            self.fail(f"{value!r} is not a size such as 6GiB or 500MB.", param, ctx)
        return nbytes


_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{ending}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for base, ending in ((1000, "b"), (1024, "ib"))
}
"""Unit of a size → bytes."""

_SIZE = re.compile(rf"(\d{{1,15}}(?:\.\d{{1,9}})?) ?({'|'.join(_UNITS)})", re.IGNORECASE)


class InBucket(str):
    """The URL of a composed folder, of which the command gets a local copy (`bring_copies`)."""


class Place(_Path):
    """A path; a URL, which would become a folder named `s3:`, is refused, or made what the command gets by `of_url`."""

    def __init__(self, of_url: Callable[[str], object], **settings: Any) -> None:
        super().__init__(**settings)
        self._of_url = of_url

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or what a URL stands for."""
        if not is_url(value):
            return super().convert(value, param, ctx)
        try:
            return self._of_url(value)
        except InvalidInputError as error:
            self.fail(f"{error.message}; {error.hint}", param, ctx)


def _refused(url: str) -> str:
    raise InvalidInputError(
        f"{url!r} is a URL, and this takes a path", "compositions go to a bucket: reg compose --out URL"
    )


def _in_bucket(url: str) -> str:
    return InBucket(url_of(url))


file_path = Place(_refused, path_type=Path)
destination = Place(url_of, path_type=Path)
composed_path = Place(_in_bucket, path_type=Path)
composed_text = Place(_in_bucket)  # which may be a digest too
device = option("--device DEVICE", "A torch device. [default: the GPU if there is one]", advanced=True)


Reader = Callable[[click.Context, click.Parameter, Sequence[str]], Value]  # a callback that parses texts


def unique_pairs(form: str) -> Reader[dict[str, str]]:
    """Return a callback that parses `key=value` texts and rejects duplicate keys."""

    def read(_context: click.Context, _option: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
        values: dict[str, str] = {}
        for key, value in pairs(texts, form):
            if key in values:
                raise click.BadParameter(f"{key!r} is given twice, as {values[key]!r} and as {value!r}")
            values[key] = value
        return values

    return read


def numbers(what: str, of: str = "NAME") -> Reader[dict[str, float]]:
    """Return a callback that parses lists of `name=number`; messages say what a number is, and of what."""

    def read(context: click.Context, option: click.Parameter, texts: Sequence[str]) -> dict[str, float]:
        found = {}
        for name, value in unique_pairs(f"{of}={what.upper()}")(context, option, split(texts)).items():
            try:
                found[name] = float(value)
            except ValueError:
                raise click.BadParameter(f"the {what} of {name} is {value!r}, not a number") from None
        return found

    return read


def lists(form: str, kind: Callable[[str], Value]) -> Reader[dict[str, list[Value]]]:
    """Return a callback that parses `key=value` texts into key → values, each made by `kind`."""

    def read(_context: click.Context, _option: click.Parameter, texts: Sequence[str]) -> dict[str, list[Value]]:
        values: dict[str, list[Value]] = {}
        for key, value in pairs(texts, form):
            values.setdefault(key, []).append(kind(value))
        return values

    return read


def pairs(texts: Sequence[str], form: str) -> list[tuple[str, str]]:
    """Return (key, value) of each `key=value`; others are refused, in a message with the `form`."""
    for text in texts:
        if not all(text.partition("=")):
            raise click.BadParameter(f"{text!r} is not of the form {form}")
    return [(key, value) for key, _, value in (text.partition("=") for text in texts)]


def is_typed(name: str) -> bool:
    """Return True if a parameter of this command stands on the command line."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def split(texts: Sequence[str]) -> list[str]:
    """Return the parts of comma-separated lists, in order."""
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def bring_copies(ctx: click.Context) -> None:
    """Replace the URLs among a command's parameters by paths of local copies, which are deleted when it ends."""
    for name, value in ctx.params.items():
        if isinstance(value, InBucket):
            ctx.params[name] = _copy(ctx, value)
        elif isinstance(value, tuple):
            ctx.params[name] = tuple(_copy(ctx, one) if isinstance(one, InBucket) else one for one in value)


def _copy(ctx: click.Context, url: InBucket) -> Path:
    from cli.session import Session
    from registry.destination.address import fetched
    from registry.home import Home

    session = ctx.ensure_object(Session)
    path = ctx.with_resource(fetched(url, Home.locate(session.home, session.database), progress()))
    ctx.meta.setdefault(COPIES, {})[str(path)] = str(url)
    return path
