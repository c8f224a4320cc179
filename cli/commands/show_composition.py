"""Output of a composition with its evaluations and audits."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cli.output import print_json, print_table
from cli.score_tables import Table, figure, print_tables
from cli.version_output import members_and_base

if TYPE_CHECKING:
    from store.catalog import CompositionRecord, EvaluationRecord


def show_composition(
    composition: "CompositionRecord",
    evaluations: "Sequence[EvaluationRecord]",
    audits: "Sequence[EvaluationRecord]",
    as_json: bool,
) -> None:
    """Print a composition: members, recipe, folders, evaluations and audits."""
    if as_json:
        print_json(vars(composition) | {"evaluations": _documents(evaluations), "audits": _documents(audits)})
        return
    members, base = members_and_base(composition)
    rows = [("made", composition.created_at), ("host", composition.document["host"]), ("members", members)]
    rows += [("base", base)] if base else []
    rows += [(key, _text(value)) for key, value in composition.document["recipe"].items()]
    rows += _training(composition.document)
    rows += [("folder", folder) for folder in composition.folders]
    print_table(("composition", composition.digest), rows)
    for evaluation in evaluations:
        click.echo()
        _print_evaluation(evaluation.evaluated_at, evaluation.document)
    if audits:
        click.echo()
        print_table(
            ("extraction audit", "extracted", "rate", "mean similarity", "largest", "prefix", "continued"),
            [_audit_row(audit.document) for audit in audits],
        )


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
        ("trained", f"{training.get('train', 'routers')}, {training['steps']} steps"),
    ]
    if curve := training.get("loss"):
        held_out = training["held_out"]
        rows.append(("loss", f"{curve[0]:.4f} first, {curve[-1]:.4f} last"))
        rows.append(("held-out loss", f"{held_out['before']:.4f} before, {held_out['after']:.4f} after"))
    return rows


def _print_evaluation(at: str, document: Mapping[str, Any]) -> None:
    """Print one evaluation: a line for each domain, and one for the average."""
    figures, oracle, settings = document["figures"], document["oracle"] or {}, document["settings"]
    rows = []
    for domain, text in document["data"].items():
        accuracy = figures["overall_accuracy"].get(domain)
        rows.append(
            [
                domain,
                figure(figures["perplexity"][domain]),
                figure(figures["score"].get(domain)),
                figure(oracle.get("score", {}).get(domain)),
                "" if accuracy is None else f"{accuracy:.1%}",
                f"{text['tokens']:,} of {text['label']}",
            ]
        )
    rows.append(["average", "", figure(figures["average"]), figure(oracle.get("average")), "", ""])
    header = ["evaluation", "perplexity", "score", "oracle", "routing accuracy", "tokens"]
    if not oracle:
        header, rows = header[:3] + header[4:], [row[:3] + row[4:] for row in rows]
    setting = f"windows of {settings['seq_len']:,} tokens, {settings['dtype']}"
    click.echo(f"evaluated {at[:19]}: {setting}")
    print_tables([Table(header, rows)])
    if active := [row for row in document.get("active_experts", ()) if row["average"] is not None]:
        scores = ", ".join(f"{row['experts_per_token']}: {figure(row['average'])}" for row in active)
        click.echo(f"average score by experts per token  {scores}")
    if figures["overall_load"]:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in figures["overall_load"].items())
        click.echo(f"load  {shares}")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
