"""Options that more than one command has."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.session import pairs
from registry.names.suggest import suggest

if TYPE_CHECKING:
    from registry import PassSettings

Command = TypeVar("Command", bound=Callable[..., Any])


class Integer(click.IntRange):
    """A whole number within bounds, called so when something else is given."""

    name = "integer"


if TYPE_CHECKING:
    _Words = click.Choice[str]
else:
    _Words = click.Choice  # older versions are not generic


class Choice(_Words):
    """One of some words; of another the message says which is nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word that `value` is."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            text = f"{error.message.removesuffix('.')}{suggest(str(value), self.choices) or '.'}"
            raise click.BadParameter(text, ctx=error.ctx, param=error.param) from None


DTYPES = Choice(["bfloat16", "float16", "float32"])
file_path = click.Path(path_type=Path)


def checkpoint(command: Command) -> Command:
    """Add the argument CKPT."""
    return click.argument("checkpoint", metavar="CKPT")(command)


def adapter_base(command: Command) -> Command:
    """Add --base."""
    return click.option(
        "--base",
        metavar="BASE",
        help="Where CKPT is an adapter: its base model, as a registered NAME[@V], a folder or hf://ORG/NAME. "
        "[default: as the adapter's own configuration says]",
    )(command)


def allow_unrelated(command: Command) -> Command:
    """Add --allow-unrelated."""
    return click.option(
        "--allow-unrelated",
        is_flag=True,
        help="Take CKPT even if it does not come from the base model of anything registered.",
    )(command)


def remote_code(command: Command) -> Command:
    """Add --remote-code."""
    return click.option(
        "--remote-code",
        is_flag=True,
        help="Take CKPT even if no native host carries it: its compositions then need --remote-code too.",
    )(command)


def annotations(command: Command) -> Command:
    """Add --tag, --license and --alias."""
    for option in (
        click.option("--alias", metavar="ALIAS", help="Point this alias at the version: NAME@ALIAS."),
        click.option(
            "--license",
            "license_id",
            metavar="ID",
            help="The checkpoint's license, as the Hub writes it: apache-2.0. It is part of the content: the same "
            "checkpoint under another license is another version.",
        ),
        click.option(
            "--tag",
            "tags",
            multiple=True,
            metavar="K=V",
            help="A tag to find it by (repeatable).",
            callback=unique_pairs("K=V"),
        ),
    ):
        command = option(command)
    return command


def calibration(command: Command) -> Command:
    """Add --data and the settings of the forward pass."""
    for option in (
        click.option(
            "--dtype",
            type=DTYPES,
            metavar="DTYPE",
            help="bfloat16, float16 or float32: what the model computes in. [default: the checkpoint's own]",
        ),
        click.option("--device", metavar="DEVICE", help="A torch device. [default: the GPU if there is one]"),
        click.option(
            "--batch-size",
            type=Integer(1),
            metavar="N",
            default=16,
            show_default=True,
            help="Windows in a batch.",
        ),
        click.option(
            "--seq-len", type=Integer(2), metavar="N", default=256, show_default=True, help="Tokens in a window."
        ),
        click.option(
            "--tokens",
            type=Integer(1),
            metavar="N",
            default=24576,
            show_default=True,
            help="Calibration tokens in all.",
        ),
        click.option(
            "--folds",
            type=Integer(1),
            metavar="N",
            default=2,
            show_default=True,
            help="Parts that the MLP inputs' statistics are kept in, for --lam auto; each takes the room of the whole.",
        ),
        click.option(
            "--sites",
            type=Choice(["all", "router"]),
            metavar="SITES",
            default="all",
            show_default=True,
            help="all, or router: only what routers need, so that --trunk regmean is not to be had.",
        ),
        click.option(
            "--data",
            multiple=True,
            type=file_path,
            metavar="FILE",
            help="Calibration text: .txt, .jsonl, .jsonl.gz, .parquet (repeatable).",
        ),
    ):
        command = option(command)
    return command


def hub_target(command: Command) -> Command:
    """Add the argument REPO and what a push to it may do."""
    for option in (
        click.option("--force", is_flag=True, help="Replace what an earlier push put there, by a new commit."),
        click.option("--create-pr", is_flag=True, help="Propose it as a pull request."),
        click.option("--private", is_flag=True, help="Make the repository private; one that is public is refused."),
        click.option("--revision", metavar="BRANCH", help="The branch, made where there is none. [default: main]"),
        click.argument("repo", metavar="REPO"),
    ):
        command = option(command)
    return command


def pass_settings(**settings: Any) -> "PassSettings":
    """Return the settings that `calibration` parsed."""
    from registry import PassSettings

    return PassSettings(**settings)


def unique_pairs(what: str) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], dict[str, str]]:
    """Return a callback that reads `key=value` texts and refuses a key that comes twice."""

    def read(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, value in pairs(texts, what):
            if key in found:
                raise click.BadParameter(f"{key!r} is given twice, as {found[key]!r} and as {value!r}")
            found[key] = value
        return found

    return read
