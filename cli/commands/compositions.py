"""Output of recorded compositions: reg compositions, and reg show with a digest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import click

from cli.next_steps import reporting
from cli.option_groups import command
from cli.output import next_step, note, print_line, print_table, printed_json
from cli.score_tables import INTERVAL, Table, figure, interval, print_tables, share
from cli.session import Session, pass_session
from cli.version_output import members_and_base, warn_of_opted_out
from registry.composition.found import OUTPUTS, ROUTERS
from registry.composition.trained import trained_part, trained_tokens
from registry.errors import RegError
from registry.io.display import counted, plain, short

if TYPE_CHECKING:
    from registry import Registry
    from store.catalog import CompositionRecord, EvaluationRecord
    from store.catalog.records import State


@command("reg compositions", "reg compositions math")
@click.argument("ref", required=False, metavar="[NAME[@V]|DIGEST]")
@pass_session
def compositions(session: Session, ref: str | None) -> None:
    """List all compositions, or those made from NAME.

    DIGEST is the digest of one composition, or its first 6 or more digits.
    """
    with session.registry() as registry:
        records = registry.compositions(ref)
    if printed_json(records):
        return
    print_table(
        ("composition", "made", "members", "base", "trunk", "router", "top-k"),
        [
            (
                short(composition.digest),
                composition.created_at[:19],
                *members_and_base(composition),
                *_recipe(composition.document),
            )
            for composition in records
        ],
    )
    if records:
        next_step(["show", short(records[0].digest)])


def _recipe(document: dict[str, Any]) -> tuple[str, str, str]:
    recipe = document["recipe"]
    to = recipe.get("to", "moe")
    method = recipe.get("trunk") or recipe.get("routing") or ""
    labels = [
        recipe.get("router"),
        recipe.get("refine") and f"refine {recipe['refine']}",
        "training" in document and "trained",
    ]
    trunk = method if to == "moe" else ", ".join(filter(None, (to, method)))
    return trunk, ", ".join(filter(None, labels)), str(recipe.get("top_k", ""))


@dataclass(frozen=True)
class Source:
    """A version that a composition was made from.

    Attributes:
        trained_bias: the bias trained beside its router rows, by layer; None without one, or once it is purged.
        bias_after_training: its bias after the training of the composition, by layer; None if that changed none.
    """

    ref: str  # the version
    state: "State"  # its state now
    opted_out_at: str | None  # the time when it was withdrawn or purged; None for an active one
    public: bool  # True if it is the public expert of --router anchored
    bias: float | None  # with --router anchored, the bias that was asked for; None without one
    trained_bias: tuple[float, ...] | None
    bias_after_training: tuple[float, ...] | None


def show_composition(registry: "Registry", composition: "CompositionRecord") -> None:
    """Print a composition: members, recipe, folders, evaluations and audits."""
    warn_of_opted_out(registry, [composition.digest[:12]])
    evaluations, audits = registry.evaluations(composition), registry.audits(composition)
    try:
        after = registry.trained_biases(composition)
    except RegError as error:
        note(f"the biases after its training are not shown: {error.message}")
        after = {}
    sources = [_source(registry, composition.document, ref, after) for ref in composition.members]
    if printed_json(
        vars(composition) | {"made_from": sources, "evaluations": _documents(evaluations), "audits": _documents(audits)}
    ):
        return
    members, base = members_and_base(composition)
    rows = [("made", composition.created_at), ("host", composition.document["host"]), ("members", members)]
    rows += [("base", base)] if base else []
    if earlier := [ref for ref in composition.members if ref not in composition.current]:
        rows += [("earlier folders", f"made from {', '.join(earlier)}, of the same content")]
    rows += [("public expert", source.ref) for source in sources if source.public]
    rows += [
        ("opted out", f"{source.ref}, {source.state} {source.opted_out_at}")
        for source in sources
        if source.opted_out_at is not None
    ]
    recipe = composition.document["recipe"]
    before = ", before the training" if "training" in composition.document else ""
    rows += [
        (key, f"{plain(value)}{before if key == 'router' else ''}")
        for key, value in recipe.items()
        if key != "bias" or not _is_trained(recipe)
    ]
    rows += [(f"bias of {source.ref}", text) for source in sources if (text := _bias(source, composition.document))]
    rows += _training(composition.document)
    rows += [("folder", folder) for folder in composition.folders]
    print_table(("composition", short(composition.digest)), rows)
    for evaluation in evaluations:
        click.echo()
        of_members = recipe["to"] in OUTPUTS and not OUTPUTS[recipe["to"]].is_combined
        _print_evaluation(evaluation.evaluated_at, evaluation.document, of_ensemble=of_members)
    if audits:
        click.echo()
        print_table(
            ("extraction audit", "extracted", "rate", "mean similarity", "largest", "prefix", "continued", "date"),
            [(*_audit_row(audit.document), audit.evaluated_at[:10]) for audit in audits],
        )
    next_step(reporting(short(composition.digest)))


def _is_trained(recipe: Mapping[str, Any]) -> bool:
    """Tell whether the routers of a recipe's document were trained with the experts."""
    router = ROUTERS.get(recipe.get("router") or "")
    return router is not None and router.is_trained


def _source(
    registry: "Registry", document: Mapping[str, Any], ref: str, after: Mapping[str, tuple[float, ...]]
) -> Source:
    """Return a version that a composition was made from; rows that cannot be read are remarked on."""
    version = registry.resolve(ref, states=("active", "withdrawn", "purged"))
    at = {"active": None, "withdrawn": version.withdrawn_at, "purged": version.purged_at}[version.state]
    recipe, trained = document["recipe"], None
    takes_part = _is_trained(recipe) and version.name in {one["name"] for one in document["members"]}
    public = takes_part and version.kind == "base"
    if takes_part and not public and version.state != "purged":
        try:
            rows = registry.member(version).router_rows
            trained = None if rows is None or rows.bias is None else tuple(map(float, rows.bias))
        except RegError as error:
            note(f"the trained bias of {ref} is not shown: {error.message}")
    bias = recipe.get("bias", {}).get(version.name) if takes_part else None
    return Source(ref, version.state, at, public, bias or None, trained, after.get(version.name))


def _bias(source: Source, document: Mapping[str, Any]) -> str:
    """Return what is added to the logits of an expert, in words; empty where nothing is."""
    parts = [f"{source.bias:g} as asked for"] if source.bias else []
    if source.trained_bias and any(source.trained_bias):
        parts.append(f"{_span(source.trained_bias)}, trained beside its rows")
    if source.bias_after_training:
        own = _span(source.bias_after_training)
        return f"{own}, trained with the composition" + (f"; before that {', and '.join(parts)}" if parts else "")
    parts += ["before the training of the composition"] if parts and "training" in document else []
    return "; ".join(parts)


def _span(biases: Sequence[float]) -> str:
    return f"{min(biases):.4g} to {max(biases):.4g} by layer"


def _documents(records: "Sequence[EvaluationRecord]") -> list[dict[str, Any]]:
    return [{"asked": each.asked, "evaluated_at": each.evaluated_at, **each.document} for each in records]


def _audit_row(document: Mapping[str, Any]) -> tuple[str, ...]:
    data, found, settings = document["data"], document["extraction"], document["settings"]
    return (
        data["label"],
        f"{found['extracted']} of {data['documents']}",
        f"{found['rate']:.1%}",
        f"{found['similarity']:.3f}",
        f"{found['most']:.3f}",
        str(settings["prefix"]),
        str(settings["continued"]),
    )


def _training(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of a trained composition: parent, amount, and losses where they are stored."""
    training = document.get("training")
    if training is None:
        return []
    rows = [
        ("parent", document["parent"]),
        (
            "trained",
            f"{trained_part(training)}, {counted(training['steps'], 'step')}, {trained_tokens(training):,} tokens",
        ),
    ]
    if curve := training.get("loss"):
        held_out = training["held_out"]
        rows.append(("loss", f"{curve[0]:.4f} first, {curve[-1]:.4f} last"))
        rows.append(("held-out loss", f"{held_out['before']:.4f} before, {held_out['after']:.4f} after"))
    return rows


def _print_evaluation(at: str, document: Mapping[str, Any], *, of_ensemble: bool) -> None:
    figures, oracle, settings = document["figures"], document["oracle"] or {}, document["settings"]
    rows = [
        [
            domain,
            figure(figures["perplexity"][domain]),
            figure(figures["score"].get(domain)),
            interval(figures.get("interval", {}).get(domain)),
            figure(oracle.get("score", {}).get(domain)),
            share(figures["overall_accuracy"].get(domain)),
            f"{text['tokens']:,} of {text['label']}",
        ]
        for domain, text in document["data"].items()
    ]
    averages = [figures["average"], oracle.get("average")]
    if any(each is not None for each in averages):
        own, best = map(figure, averages)
        rows.append(["mean", "", own, interval(figures.get("average_interval")), best, "", ""])
    header = ["evaluation", "perplexity", "score", INTERVAL, "oracle", "routing accuracy", "tokens"]
    known = {"oracle": oracle, INTERVAL: figures.get("interval")}
    shown = [bool(known.get(column, True)) for column in header]
    header, *rows = [list(compress(row, shown)) for row in (header, *rows)]
    setting = f"windows of {settings['seq_len']:,} tokens, {settings['dtype']}"
    print_line(f"evaluated {at[:19]}: {setting}")
    print_tables([Table(header, rows)])
    if active := [row for row in document.get("active_experts", ()) if row["average"] is not None]:
        scores = ", ".join(f"{row['experts_per_token']}: {figure(row['average'])}" for row in active)
        print_line(f"mean score by experts per token  {scores}")
    if figures["overall_load"]:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in figures["overall_load"].items())
        print_line(f"load  {shares}")
    for domain, weights in figures.get("weights", {}).items() if of_ensemble else ():
        print_line(f"mean weights on {domain}  {', '.join(f'{name} {one:.1%}' for name, (one,) in weights.items())}")
