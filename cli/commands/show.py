"""reg show."""

from collections.abc import Mapping
from typing import Any

import click

from cli.commands.show_composition import show_composition
from cli.next_steps import after_registration
from cli.option_groups import GroupedCommand
from cli.output import as_json, count, next_step, print_json, print_table, short, size
from cli.session import Session, pass_session
from cli.version_output import (
    members_and_base,
    relation_documents,
    relation_lines,
    shown_parameters,
    version_document,
)
from registry.checkpoint.router_rows import ROUTER_FILE


@click.command(cls=GroupedCommand, examples=("reg show math", "reg show math@1", "reg show 93072823"))
@click.argument("ref", metavar="NAME[@V]|DIGEST")
@as_json
@pass_session
def show(session: Session, ref: str, as_json: bool) -> None:
    """Show one version: its content, the data of its statistics, and compositions made from it.

    DIGEST is a composition's, or its first 6 or more digits: shows its members, which of them is the public expert and
    which were opted out since, their biases, recipe, folders, evaluations and audits, latest first.
    """
    with session.registry() as registry:
        if (composition := registry.composition(ref)) is not None:
            show_composition(registry, composition, as_json)
            return
        version = registry.resolve(ref, states=("active", "withdrawn", "purged"))
        arrays = registry.arrays_of(version)
        compositions = registry.compositions(version.ref)
        training = registry.training_of(version)
        relations = registry.relations(version.ref) if version.state == "active" else ()
    sizes: dict[str, int] = {}
    for link in arrays:
        sizes[link.role] = sizes.get(link.role, 0) + link.nbytes
    if as_json:
        print_json(
            version_document(version)
            | {
                "bytes": sizes,
                "compositions": [c.digest for c in compositions],
                "relations": relation_documents(relations),
                "training": training,
            }
        )
        return
    rows = [("digest", short(version.digest)), ("state", version.state), ("registered", version.created_at)]
    rows += [("withdrawn", version.withdrawn_at)] if version.withdrawn_at else []
    rows += [("purged", version.purged_at)] if version.purged_at else []
    if version.content is not None:
        architecture = version.content["architecture"]
        shape = f"{architecture['num_hidden_layers']} layers, hidden size {architecture['hidden_size']}"
        rows += [
            ("family", f"{version.content['family']}, {shape}, {version.content['dtype']}"),
            ("license", version.content["license"] or "not given"),
        ]
        rows += [("soup", _soup_line(version.content["soup"]))] if "soup" in version.content else []
        rows += [("simoe", _simoe_line(version.content["simoe"]))] if "simoe" in version.content else []
    rows += [("parameters", shown_parameters(version))]
    rows += [("aliases", ", ".join(version.aliases))] if version.aliases else []
    rows += [("tag", f"{key}={value}") for key, value in version.tags.items()]
    for s in version.statistics:
        clipped = f", {s.saturated:,} activations were clipped at their bound" if s.saturated else ""
        rows += [("statistics", f"{s.site}: {s.tokens:,} tokens{clipped}")]
    calibrations = {f"{s.calibration_label}  {short(s.calibration_digest)}" for s in version.statistics}
    rows += [("calibration", label) for label in sorted(calibrations)]
    if training is not None:
        rows += [("trained", f"{count(training.steps, 'step')}, {training.tokens:,} tokens")]
        rows += [("loss", f"{training.loss[0]:.4f} first, {training.loss[-1]:.4f} last")]
        rows += [("held-out loss", f"{training.before:.4f} before, {training.after:.4f} after")]
    if any((link.role, link.name) == ("file", ROUTER_FILE) for link in arrays):
        rows += [("router rows", "trained beside a public expert, for --router anchored")]
    rows += [(f"{role} arrays", size(nbytes)) for role, nbytes in sizes.items()]
    rows += [("weights", line) for line in relation_lines(relations)]
    for composition in compositions:
        members, base = members_and_base(composition)
        rows += [("composition", f"{short(composition.digest)}  {members}" + (f"  base model {base}" if base else ""))]
    print_table((version.kind, version.ref), rows)
    if compositions:
        next_step(["show", short(compositions[0].digest)])
    elif version.state == "active":
        is_base = version.kind == "base"
        following = ["train-expert", "NAME", "--base", version.ref, "--data", "FILE"]
        next_step(following if is_base else after_registration(version.name, relations))


def _soup_line(soup: Mapping[str, Any]) -> str:
    """Return what a version is in the soup that it was trained in."""
    if "soup" in soup:
        return f"expert {soup['number']} of {soup['soup'][:12]}, trained together with all of it"
    domains = ", ".join(soup["domains"])
    return f"shared weights of {count(soup['experts'], 'expert')}; domains {domains}: reg instantiate"


def _simoe_line(simoe: Mapping[str, Any]) -> str:
    """Return the part of an expert in the SIMoE that it was trained in."""
    own = f"expert {simoe['number']} of {simoe['experts']}, router on {count(simoe['prompt_tokens'], 'prompt token')}"
    return f"{own}; shared weights {simoe['delta'][:12]}, trained together by all: reg compose --to simoe"
