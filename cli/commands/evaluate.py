"""Commands that score: evaluate, continual, scores."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from cli.next_steps import composing, composing_as_typed, reporting
from cli.option_groups import EVALUATION, command
from cli.options import composed_path, file_path, flag, integer, lists, option, pairs, split
from cli.output import next_step
from cli.recipe import asked, base_option, check_members, recipe_options
from cli.score_tables import (
    Table,
    exact,
    figure,
    forms,
    in_columns,
    print_scores,
    ranking_of,
    share,
    tables_of,
    wide_table,
)
from cli.session import Session, pass_session
from cli.shared_options import cluster_options, connected, scoring, take
from cli.version_output import warn_of_opted_out
from registry.calibration.corpus import check_files
from registry.composition.option import OptionKind
from registry.composition.recipe.fields import FIELDS
from registry.evaluation.methods import named_methods
from registry.io.display import printable
from registry.io.model_folder import MARKER

if TYPE_CHECKING:
    from registry.evaluation import AccuracyRow, Continual

_SWITCHED = {"true": True, "yes": True, "false": False, "no": False}


def _counts(_context: click.Context, _option: click.Parameter, text: str | None) -> list[int] | Literal["all"]:
    """Return the numbers of a list such as `1,2,4`, or `all`."""
    if text == "all":
        return "all"
    parts = split([text or ""])
    if any(not (part.isascii() and part.isdigit() and len(part) < 10 and int(part)) for part in parts):
        raise click.BadParameter(f"{text!r} is not all, nor a list of numbers from 1 such as 1,2,4")
    return [int(part) for part in parts]


def _sweep(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return field → values of `FIELD=V1,V2`; the registry checks them."""
    swept = {}
    for key, listed in pairs(texts, "FIELD=V1,V2,…"):
        name = key.strip().replace("-", "_")
        if name in swept:
            raise click.BadParameter(f"{key} is given twice: list its values, as in {key}=V1,V2")
        swept[name] = [_value(name, text) for text in split([listed])]
    return swept


def _value(name: str, text: str) -> Any:
    one = FIELDS.get(name)
    kind = one.kind if one else OptionKind.TEXT
    try:
        if kind is OptionKind.WHOLE:
            return int(text)
        if kind is OptionKind.NUMBER:
            return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a value of {name}, which is {kind.value}") from None
    return _SWITCHED.get(text.lower(), text) if kind is OptionKind.SWITCH else text


@command(
    "reg evaluate moe/ --data code=code.test.jsonl --data math=math.test.jsonl",
    "reg evaluate moe/ --data code=code.test.jsonl --baselines --oracle",
    "reg evaluate --experts code,math --sweep top_k=1,2 --data code=code.test.jsonl",
    headings=EVALUATION,
)
@click.argument("folders", metavar="[FOLDER…]", nargs=-1, type=composed_path)
@scoring(required=True)
@flag("--baselines", "Add rows for the base model, the experts, and a model of their averaged weights.")
@flag("--oracle", "Add a row for every mixture with each domain's tokens sent to its own expert: the upper bound.")
@flag("--speed", "Add every mixture's time per token, relative to a dense expert measured alternately.", advanced=True)
@option(
    "--experts A,B@2,…",
    "Compose these experts too, with each of --methods and for each value of --sweep.",
    multiple=True,
)
@option(
    "--methods all|NAME,…", "Methods that compose --experts; each composition is scored, then deleted.", multiple=True
)
@option(
    "--sweep FIELD=V1,V2,…",
    "Compose --experts once for each value of one field of a recipe, such as lam, top_k, temperature, scale.",
    multiple=True,
    callback=_sweep,
)
@option(
    "--recipe FILE",
    "With --sweep: experts, base model and the recipe to change, from a YAML file or a composition.json. "
    "[default: the default recipe]",
    "recipe_path",
    type=file_path,
)
@option("--base NAME[@V]", "The base model of --methods and --sweep. [default: the only one registered]")
@integer(
    "--seeds",
    "Seeds of random methods, shown as mean ± standard deviation. [default: 5; 3 where routers are trained]",
    advanced=True,
)
@option(
    "--active-experts all|N,…",
    "Add a row for every folder and each of these numbers of experts per token.",
    callback=_counts,
    advanced=True,
)
@cluster_options
@forms
@pass_session
def evaluate(
    session: Session,
    /,
    folders: tuple[Path, ...],
    data: dict[str, list[Path]],
    experts: tuple[str, ...],
    methods: tuple[str, ...],
    sweep: dict[str, list[Any]],
    recipe_path: Path | None,
    base: str | None,
    **settings: Any,
) -> None:
    """Print perplexities of model folders per domain, and the routing of mixtures.

    If a domain's own expert (the expert of the same name) is registered, the normalised score is printed too: 100 is
    that expert. For mixtures, routing accuracy is the share of a domain's tokens that go to its own expert, and load is
    each expert's share of all tokens; both are means over the layers. --json has every layer, and routing accuracy by
    number of tokens read.

    With --experts and --methods there is one row per method, and a ranking by mean score; methods with several seeds
    show mean ± standard deviation (the seed of the training where routers are trained, else that of the recipe).
    With --experts and --sweep there is one row per value of a field of a recipe, as in --sweep top_k=1,2,4.
    With --active-experts, the same folder is scored with other numbers of experts per token (FlexOlmo, Fig. 3); it is
    not changed.
    Scores of a composition made here are stored with it: reg show DIGEST.
    """
    if recipe_path is not None and not sweep:
        raise click.UsageError("--recipe goes with --sweep; to compose by it: reg compose --recipe FILE --out DIR")
    if not folders and not experts and recipe_path is None:
        raise click.UsageError("give a FOLDER, or --experts and --methods")
    if sweep and not experts and recipe_path is None:
        raise click.UsageError(
            "--sweep composes experts once for each value, and changes no FOLDER: name the experts with --experts A,B "
            "or --recipe FILE."
        )
    if recipe_path is None and bool(experts) != bool(methods or sweep):
        raise click.UsageError("--experts and --methods go together; so do --experts and --sweep.")
    if settings["active_experts"] and not folders:
        raise click.UsageError("--active-experts needs a FOLDER.")
    if settings["seeds"] is not None and not methods:
        raise click.UsageError("--seeds goes with --methods.")
    named_methods(split(methods))
    refs, recipe = split(experts), None
    if recipe_path is not None:
        wanted = asked(session, experts, base, {"recipe_path": recipe_path, "to": None})
        refs, recipe, base = wanted.experts, wanted.recipe, wanted.base
    elif experts:
        check_members(session, refs)
    from registry import TestSettings

    with connected(settings) as cluster, session.registry(create=True, cluster=cluster) as registry:
        warn_of_opted_out(registry, folders)
        tested = take(TestSettings, settings)
        composed: dict[str, Any] = {"experts": refs, "methods": split(methods), "recipe": recipe, "sweep": sweep}
        rows = registry.evaluate(folders, data, tested, **composed, base=base, **settings)
    ranked = bool(methods or sweep) or len(folders) > 1
    followed = print_scores(
        lambda: [row.document() for row in rows],
        lambda: wide_table(rows, list(data)),
        lambda: [*tables_of(rows, list(data)), *(ranking_of(rows) if ranked else [])],
    )
    mixtures = [folder for folder in folders if (folder / MARKER).is_file()]
    if followed and mixtures:
        next_step(reporting(mixtures[0]))
    elif followed and refs:
        next_step(composing(refs, *(["--base", base] if base else [])))


@command("reg continual --schedule code,math --data code=c.jsonl --data math=m.jsonl")
@option(
    "--schedule A,B@2,…",
    "The experts in the order in which they join; each needs --data under its name.",
    multiple=True,
    required=True,
)
@scoring(required=True)
@recipe_options("to", "routing", "routing_tokens", "mixing", "lead", "dtype", "device")
@base_option
@forms
@pass_session
def continual(
    session: Session, /, schedule: tuple[str, ...], data: dict[str, list[Path]], base: str | None, **settings: Any
) -> None:
    """Print the score of each domain after each expert joins, with forgetting and backward transfer.

    After each step the experts so far are composed, scored on their domains, and the composition is deleted. Scores are
    normalised: 100 is the domain's own expert. Forgetting: a domain's best earlier score minus its last, averaged over
    the earlier domains (Chaudhry et al. 2018). Backward transfer: a domain's last score minus its score when it joined
    (Lopez-Paz & Ranzato 2017).
    """
    from registry import TestSettings

    check_files(data)
    tested = take(TestSettings, settings)
    wanted = asked(session, schedule, base, settings)
    with session.registry() as registry:
        result = registry.continual(wanted.experts, data, tested, wanted.recipe, base=wanted.base)
    followed = print_scores(result.document, lambda: _table(result, exact), lambda: [_table(result, figure)])
    if followed:
        without = ("data", "windows", "seq_len", "batch_size", "device", "dtype")
        next_step(composing_as_typed(without=without, renamed={"schedule": "--experts"}))


def _table(result: "Continual", cell: Callable[[float | None], str]) -> Table:
    """Return one line per step: the scores of the domains so far, their mean, forgetting and backward transfer."""
    lines = []
    for step, name in enumerate(result.schedule, start=1):
        so_far = result.until(step)
        scores = [*so_far.score[-1], *[None] * (len(result.schedule) - step)]
        figures = (so_far.average, so_far.forgetting, so_far.backward_transfer)
        lines.append([name, *map(cell, (*scores, *figures))])
    return Table(("score after", *result.schedule, "mean", "forgetting", "backward transfer"), lines)


@command("reg scores --task math=gsm8k --accuracy math=math.json --accuracy moe=moe.json")
@option(
    "--accuracy NAME=FILE",
    "A model and its results_*.json of lm_eval (repeatable). A domain's own expert has the domain's name.",
    "files",
    multiple=True,
    required=True,
    callback=lists("NAME=FILE", str),
)
@option(
    "--task DOMAIN=TASK[:METRIC]",
    "A task of a domain (repeatable), with its metric if the files have several: math=gsm8k:exact_match.",
    "tasks",
    multiple=True,
    required=True,
    callback=lists("DOMAIN=TASK[:METRIC]", str),
)
@forms
def scores(files: dict[str, list[str]], tasks: dict[str, list[str]]) -> None:
    """Print normalised accuracies from result files of lm_eval: 100 is each domain's own expert.

    The score of a model in a task is 100 · (its accuracy) / (accuracy of the domain's own expert), the form of the
    DUME paper's Table 3; that of a domain is the mean over its tasks, and the average the mean over domains. It reads
    files only: no registry, no model, and no lm_eval.
    """
    from registry.evaluation import accuracy_scores

    rows = accuracy_scores(files, tasks)
    print_scores(
        lambda: [row.document() for row in rows],
        lambda: in_columns([_wide(row) for row in rows]),
        lambda: _tables(rows),
    )


def _tables(rows: "Sequence[AccuracyRow]") -> list[Table]:
    metric = rows[0].metric
    columns = [(domain, task) for domain, tasks in metric.items() for task in tasks]
    accuracies = [
        [row.name, *(share(row.accuracy.get(domain, {}).get(task)) for domain, task in columns)] for row in rows
    ]
    scored = [[row.name, *(figure(row.score.get(domain)) for domain in metric), figure(row.average)] for row in rows]
    titles = (printable(f"{domain}: {task} ({metric[domain][task]})") for domain, task in columns)
    return [Table(("accuracy", *titles), accuracies), Table(("normalised score", *metric, "mean"), scored)]


def _wide(row: "AccuracyRow") -> dict[str, str | float | None]:
    line: dict[str, str | float | None] = {"model": row.name}
    for domain, tasks in row.metric.items():
        line |= {f"accuracy {domain} {task}": row.accuracy.get(domain, {}).get(task) for task in tasks}
    line |= {f"score {domain}": row.score.get(domain) for domain in row.metric}
    return line | {"score mean": row.average}
