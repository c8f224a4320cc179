"""Options that several commands share, but for those of a recipe and of a training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cli.options import Size, advanced, choice, device, files, flag, integer, lists, options, unique_pairs
from cli.output import JSON_HELP, once_for_all, quiet_option
from registry.families.sites import SITES
from registry.statistics.settings import DEFAULT_SEQ_LEN, DEFAULT_TOKENS

if TYPE_CHECKING:
    from registry import PassSettings
    from registry.distributed import Cluster

Command = TypeVar("Command", bound=Callable[..., Any])

_DTYPES = ("auto", "bfloat16", "float16", "float32")

checkpoint = click.argument("checkpoint", metavar="CKPT")
adapter_base = click.option(
    "--base",
    metavar="BASE",
    help="The base model of an adapter CKPT: a registered NAME[@V], a folder or hf://ORG/NAME. "
    "[default: from the adapter's configuration]",
)
allow_unrelated = flag(
    "--allow-unrelated",
    "Accept CKPT even if it is unrelated to all registered models of the same shape.",
    advanced=True,
)
tokenizer_of = advanced(
    "--tokenizer-of",
    metavar="NAME[@V]",
    help="Number the added tokens of CKPT as this version does, where both gave one number to two tokens.",
)
remote_code = flag(
    "--remote-code",
    "Accept CKPT even if no native host supports it: its compositions then need --remote-code too.",
    advanced=True,
)
annotations = options(
    advanced("--tag", "tags", multiple=True, metavar="K=V", callback=unique_pairs("K=V"),
             help="A tag for searching (repeatable)."),
    click.option(
        "--license",
        "license_id",
        metavar="ID",
        help="The checkpoint's license, an identifier of the Hub such as apache-2.0. It is part of the content: "
        "the same checkpoint under another license is another version.",
    ),
    click.option("--alias", metavar="ALIAS", help="Point this alias at the version: NAME@ALIAS."),
)  # fmt: skip
"""--tag, --license and --alias of a new version."""

pass_options = options(
    choice(
        "--sites",
        list(SITES),
        "all; or router: only the statistics of routers, without those that --trunk regmean needs; or counts: "
        "only how often each token occurs, without a forward pass.",
        "all",
    ),
    integer("--tokens", "Total calibration tokens.", DEFAULT_TOKENS),
    integer(
        "--document-tokens",
        "Take only the first N tokens of each document, a window each; without, windows anywhere in the text.",
        least=2,
        advanced=True,
    ),
    integer("--seq-len", "Tokens per window.", DEFAULT_SEQ_LEN, least=2),
    integer("--batch-size", "Windows per batch.", 16),
    device,
    advanced(
        "--max-memory",
        type=Size(),
        metavar="SIZE",
        help="Memory that the pass may take, such as 6GiB. A model that does not fit is read layer by layer, with "
        "the same result. [default: the free memory]",
    ),
    choice(
        "--dtype",
        _DTYPES,
        "The dtype of the computation: bfloat16, float16, float32, or auto: the checkpoint's own where the device "
        "computes it fast, else float32.",
        "auto",
        advanced=True,
    ),
)
"""The settings of the forward pass that collects statistics."""

calibration = options(
    files("--data", "Calibration text: .txt, .jsonl, .jsonl.gz, .parquet (repeatable)."), pass_options
)
"""--data and the settings of the forward pass."""

hub_target = options(
    click.argument("repo", metavar="REPO"),
    click.option("--revision", metavar="BRANCH", help="The branch, created if it does not exist. [default: main]"),
    flag("--private", "Create a private repository; an existing public one is refused."),
    flag("--create-pr", "Propose the commit as a pull request."),
    flag("--force", "Replace the content of an earlier push, in a new commit."),
)
"""The argument REPO and the options of a push."""

ray_option = advanced(
    "--ray",
    metavar="ADDRESS",
    help="Run parts of the work as tasks of a Ray cluster: local for the processors of this machine, auto for the "
    "cluster of this node, or HOST:PORT. The result is the same, bit for bit.",
)
cluster_options = options(
    ray_option,
    advanced(
        "--num-gpus",
        type=click.FloatRange(min=0),
        metavar="N",
        help="With --ray: GPUs that each task takes; 0.5 lets two tasks share one. [default: 0: tasks compute on the "
        "processor]",
    ),
)


def pass_settings(**settings: Any) -> "PassSettings":
    """Return the settings of the forward pass, as parsed by `pass_options`."""
    from registry import PassSettings

    return PassSettings(**settings)


def scoring(*, required: bool) -> Callable[[Command], Command]:
    """Return a decorator that adds --data DOMAIN=FILE, and the options of scoring."""
    return options(
        click.option(
            "--data",
            multiple=True,
            required=required,
            metavar="DOMAIN=FILE",
            help="Test text of a domain, which has the name of its expert if there is one (repeatable).",
            callback=lists("DOMAIN=FILE", Path),
        ),
        integer("--windows", "Windows per domain.", 48),
        integer("--seq-len", "Tokens per window.", 256, least=2),
        integer("--batch-size", "Windows per batch.", 16, advanced=True),
        device,
        choice(
            "--dtype",
            _DTYPES,
            "The dtype of the computation: bfloat16, float16, float32, or auto: the weights' own where the device "
            "computes it fast, else float32.",
            "auto",
            advanced=True,
        ),
    )


def _alone(context: click.Context, option: click.Parameter, chosen: bool) -> bool:
    if chosen and (other := context.meta.setdefault(__name__, option.opts[-1])) != option.opts[-1]:
        raise click.UsageError(f"{other} and {option.opts[-1]} exclude one another.")
    return chosen


def _json_alone(context: click.Context, option: click.Parameter, given: bool) -> bool:
    return _alone(context, option, once_for_all(context, option, given))


forms = options(
    quiet_option,
    click.option("--json", "as_json", is_flag=True, callback=_json_alone, help=JSON_HELP),
    click.option("--markdown", "as_markdown", is_flag=True, callback=_alone, help="Print Markdown tables."),
    click.option("--csv", "as_csv", is_flag=True, callback=_alone, help="Print CSV, all scores in one table."),
)
"""--json, --markdown and --csv, which exclude one another, and --quiet."""


@contextmanager
def connected(ray: str | None, num_gpus: float | None = None) -> "Iterator[Cluster | None]":
    """Connect to the cluster that the options name; None without --ray.

    Raises:
        click.UsageError: --num-gpus stands alone.
        ClusterError: there is no cluster.
    """
    if ray is None:
        if num_gpus is not None:
            raise click.UsageError("--num-gpus goes with --ray.")
        yield None
        return
    from registry.distributed import connect

    with connect(ray, gpus=num_gpus or 0.0) as cluster:
        yield cluster
