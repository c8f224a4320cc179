"""Options that several commands share."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.places import local_path
from registry.families.sites import SITES
from registry.names.suggest import suggest
from registry.statistics.settings import DEFAULT_SEQ_LEN, DEFAULT_TOKENS

if TYPE_CHECKING:
    from registry import PassSettings

Command = TypeVar("Command", bound=Callable[..., Any])


class Integer(click.IntRange):
    """A whole number within bounds, named `integer` in error messages."""

    name = "integer"


if TYPE_CHECKING:
    _Words = click.Choice[str]
    _Bytes = click.ParamType[int]
else:
    _Words, _Bytes = click.Choice, click.ParamType  # older versions are not generic


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
    """An option with what help needs to know of it.

    Args:
        advanced: only `--help-all` lists it, in a command with many options.
        outputs: the outputs of a composition that it has a part in; empty for all.
    """

    def __init__(self, *args: Any, advanced: bool = False, outputs: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.advanced = advanced
        self.outputs = outputs


def advanced(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """Return a decorator that adds an advanced option, as `click.option` adds one."""
    return click.option(*names, cls=Option, advanced=True, **settings)


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

DTYPES = Choice(["bfloat16", "float16", "float32"])
PASS_DTYPES = Choice(["auto", "bfloat16", "float16", "float32"])
file_path = local_path


def checkpoint(command: Command) -> Command:
    """Add the argument CKPT."""
    return click.argument("checkpoint", metavar="CKPT")(command)


def adapter_base(command: Command) -> Command:
    """Add --base."""
    return click.option(
        "--base",
        metavar="BASE",
        help="The base model of an adapter CKPT: a registered NAME[@V], a folder or hf://ORG/NAME. "
        "[default: from the adapter's configuration]",
    )(command)


def allow_unrelated(command: Command) -> Command:
    """Add --allow-unrelated."""
    return advanced(
        "--allow-unrelated",
        is_flag=True,
        help="Accept CKPT even if it is unrelated to all registered models of the same shape.",
    )(command)


def tokenizer_of(command: Command) -> Command:
    """Add --tokenizer-of."""
    return advanced(
        "--tokenizer-of",
        metavar="NAME[@V]",
        help="Number the added tokens of CKPT as this version does, where both gave one number to two tokens.",
    )(command)


def remote_code(command: Command) -> Command:
    """Add --remote-code."""
    return advanced(
        "--remote-code",
        is_flag=True,
        help="Accept CKPT even if no native host supports it: its compositions then need --remote-code too.",
    )(command)


def annotations(command: Command) -> Command:
    """Add --tag, --license and --alias."""
    for option in (
        click.option("--alias", metavar="ALIAS", help="Point this alias at the version: NAME@ALIAS."),
        click.option(
            "--license",
            "license_id",
            metavar="ID",
            help="The checkpoint's license, an identifier of the Hub such as apache-2.0. It is part of the content: "
            "the same checkpoint under another license is another version.",
        ),
        advanced(
            "--tag",
            "tags",
            multiple=True,
            metavar="K=V",
            help="A tag for searching (repeatable).",
            callback=unique_pairs("K=V"),
        ),
    ):
        command = option(command)
    return command


def calibration(command: Command) -> Command:
    """Add --data and the settings of the forward pass."""
    data = click.option(
        "--data",
        multiple=True,
        type=file_path,
        metavar="FILE",
        help="Calibration text: .txt, .jsonl, .jsonl.gz, .parquet (repeatable).",
    )
    return data(pass_options(command))


def pass_options(command: Command) -> Command:
    """Add the settings of the forward pass."""
    for option in (
        advanced(
            "--dtype",
            type=PASS_DTYPES,
            metavar="DTYPE",
            default="auto",
            show_default=True,
            help="The dtype of the computation: bfloat16, float16, float32, or auto: the checkpoint's own where the "
            "device computes it fast, else float32.",
        ),
        advanced(
            "--max-memory",
            type=Size(),
            metavar="SIZE",
            help="Memory that the pass may take, such as 6GiB. A model that does not fit is read layer by layer, with "
            "the same result. [default: the free memory]",
        ),
        advanced("--device", metavar="DEVICE", help="A torch device. [default: the GPU if there is one]"),
        click.option(
            "--batch-size",
            type=Integer(1),
            metavar="N",
            default=16,
            show_default=True,
            help="Windows per batch.",
        ),
        click.option(
            "--seq-len",
            type=Integer(2),
            metavar="N",
            default=DEFAULT_SEQ_LEN,
            show_default=True,
            help="Tokens per window.",
        ),
        advanced(
            "--document-tokens",
            type=Integer(2),
            metavar="N",
            help="Take only the first N tokens of each document, a window each; without, windows anywhere in the text.",
        ),
        click.option(
            "--tokens",
            type=Integer(1),
            metavar="N",
            default=DEFAULT_TOKENS,
            show_default=True,
            help="Total calibration tokens.",
        ),
        click.option(
            "--sites",
            type=Choice(list(SITES)),
            metavar="SITES",
            default="all",
            show_default=True,
            help="all; or router: only the statistics of ridge routers, without those that --trunk regmean needs; or "
            "counts: only how often each token occurs, without a forward pass.",
        ),
    ):
        command = option(command)
    return command


def hub_target(command: Command) -> Command:
    """Add the argument REPO and the options of a push."""
    for option in (
        click.option("--force", is_flag=True, help="Replace the content of an earlier push, in a new commit."),
        click.option("--create-pr", is_flag=True, help="Propose the commit as a pull request."),
        click.option("--private", is_flag=True, help="Create a private repository; an existing public one is refused."),
        click.option("--revision", metavar="BRANCH", help="The branch, created if it does not exist. [default: main]"),
        click.argument("repo", metavar="REPO"),
    ):
        command = option(command)
    return command


def pass_settings(**settings: Any) -> "PassSettings":
    """Return the settings of the forward pass, as parsed by `calibration`."""
    from registry import PassSettings

    return PassSettings(**settings)


def unique_pairs(form: str) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], dict[str, str]]:
    """Return a callback that parses `key=value` texts and rejects duplicate keys."""

    def read(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
        values: dict[str, str] = {}
        for key, value in pairs(texts, form):
            if key in values:
                raise click.BadParameter(f"{key!r} is given twice, as {values[key]!r} and as {value!r}")
            values[key] = value
        return values

    return read


def pairs(texts: Sequence[str], form: str) -> list[tuple[str, str]]:
    """Return (key, value) of each `key=value`; `form` describes the expected form in messages.

    Raises:
        click.BadParameter: a text has no `=`, or nothing before or after it.
    """
    parsed = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise click.BadParameter(f"{text!r} is not of the form {form}")
        parsed.append((key, value))
    return parsed


def split(texts: Sequence[str]) -> list[str]:
    """Return the parts of comma-separated lists, in order."""
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]
