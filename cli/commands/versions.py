"""Commands on registered versions: list, show, alias, export."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.commands.compositions import show_composition
from cli.next_steps import after_registration, evaluating
from cli.option_groups import command, typed_words
from cli.options import choice, file, flag, integer, option, unique_pairs
from cli.output import done, is_json, is_quiet, next_step, note, print_table, printed_json, reg_line
from cli.session import Session, pass_session
from cli.version_output import members_and_base, relation_documents, relation_lines, shown_parameters, version_document
from registry.checkpoint.joint_training import parts_in
from registry.checkpoint.model_files import ROUTER_FILE
from registry.checkpoint.version_files import adapters_beside
from registry.io.display import counted, short, size
from registry.names.reference import Reference

if TYPE_CHECKING:
    from store.catalog import VersionRecord

SCREENFUL = 50  # default maximum number of lines


@command("reg list", "reg list --kind expert --tag language=en", "reg list --all --limit 20", name="list")
@choice("--kind", ["expert", "base"], "Only one kind: expert or base.")
@option("--tag K=V", "Only versions with this tag (repeatable).", "tags", multiple=True, callback=unique_pairs("K=V"))
@flag("--all", "Include opted-out versions.", "everything")
@integer("--limit", f"Maximum number of versions. [default: {SCREENFUL}; with --json or --quiet all]")
@integer("--offset", "Skip the first N versions.", 0, least=0)
@pass_session
def list_(session: Session, /, limit: int | None, offset: int, **chosen: Any) -> None:
    """List registered versions, by name and number.

    With --quiet, it prints only their names, such as math@1, one a line.

    Tokens are those of an expert's own calibration text. Base models have none, and experts of a soup or a SIMoE share
    one text. If there are more versions than shown, a line on stderr gives their number and the command that shows the
    next ones.
    """
    shown = limit if is_json() or is_quiet() else limit or SCREENFUL
    with session.registry() as registry:
        home = registry.home.path
        versions = registry.versions(**chosen, limit=shown, offset=offset)
        full = shown is not None and len(versions) == shown
        total = registry.count_versions(**chosen) if full else 0
    if printed_json([version_document(version) for version in versions]):
        pass
    elif is_quiet():
        for version in versions:
            click.echo(version.ref)
    else:
        print_table(
            ("version", "kind", "digest", "parameters", "tokens", "aliases", "tags", "state"),
            [
                (
                    version.ref,
                    version.kind,
                    short(version.digest),
                    shown_parameters(version),
                    _tokens(version),
                    ",".join(version.aliases),
                    ",".join(f"{key}={value}" for key, value in version.tags.items()),
                    version.state,
                )
                for version in versions
            ],
        )
        if not versions and not offset:
            filtered = "of that kind or with those tags " if chosen["kind"] or chosen["tags"] else ""
            others = "" if chosen["everything"] else "; reg list --all shows opted-out versions"
            note(
                f"nothing {filtered}is registered in {home}: reg add-expert NAME CKPT registers an expert, "
                f"--home or REG_HOME names another registry{others}"
            )
    if (more := total - offset - len(versions)) > 0:
        words = ["list", *typed_words(without=("offset", "as_json")), "--offset", str(offset + len(versions))]
        note(f"{more:,} more: {reg_line([*words, '--json'] if is_json() else words)}")
    elif versions:
        next_step(["show", versions[0].ref])


def _tokens(version: "VersionRecord") -> str:
    """Return the tokens of a version's own calibration text, or a dash."""
    if any(parts_in(version.content)):
        return "-"
    return next((f"{one.tokens:,}" for one in version.statistics), "-")


@command("reg show math", "reg show math@1", "reg show 93072823")
@click.argument("ref", metavar="NAME[@V]|DIGEST")
@pass_session
def show(session: Session, ref: str) -> None:
    """Show one version: its content, the data of its statistics, and compositions made from it.

    DIGEST is a composition's, or its first 6 or more digits: shows its members, which of them is the public expert and
    which were opted out since, their biases, recipe, folders, evaluations and audits, latest first.
    """
    with session.registry() as registry:
        if (composition := registry.composition(ref)) is not None:
            show_composition(registry, composition)
            return
        version = registry.resolve(ref, states=("active", "withdrawn", "purged"))
        arrays = registry.arrays_of(version)
        compositions = registry.compositions(version.ref)
        training = registry.training_of(version)
        relations = registry.relations(version.ref) if version.state == "active" else ()
        beside = adapters_beside(version, registry.versions(kind="expert"))
    sizes: dict[str, int] = {}
    for link in arrays:
        sizes[link.role] = sizes.get(link.role, 0) + link.nbytes
    if printed_json(
        version_document(version)
        | {
            "bytes": sizes,
            "compositions": [c.digest for c in compositions],
            "relations": relation_documents(relations),
            "training": training,
        }
    ):
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
        rows += [(training.key, training.sentence(part)) for training, part in parts_in(version.content)]
    rows += [("parameters", shown_parameters(version))]
    aliases = [f"{one} (protected)" if one in version.protected else one for one in version.aliases]
    rows += [("aliases", ", ".join(aliases))] if aliases else []
    rows += [("tag", f"{key}={value}") for key, value in version.tags.items()]
    for s in version.statistics:
        clipped = f", {s.saturated:,} activations were clipped at their bound" if s.saturated else ""
        rows += [("statistics", f"{s.site}: {s.tokens:,} tokens{clipped}")]
    calibrations = {f"{s.calibration_label}  {short(s.calibration_digest)}" for s in version.statistics}
    rows += [("calibration", label) for label in sorted(calibrations)]
    if training is not None:
        rows += [("trained", f"{counted(training.steps, 'step')}, {training.tokens:,} tokens")]
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
        next_step(following if is_base else after_registration(version, relations, (), beside))


@command("reg alias math@1 stable --protect", "reg alias math stable --delete")
@click.argument("ref", metavar="NAME[@V]")
@click.argument("alias")
@flag("--delete", "Delete NAME@ALIAS instead.")
@flag("--protect", "Protect it: from now on it is moved and deleted with --force alone, or by a purge of its version.")
@flag("--force", "Move or delete a protected alias; moved, it stays protected.")
@pass_session
def alias(session: Session, ref: str, alias: str, delete: bool, protect: bool, force: bool) -> None:
    """Point ALIAS at a version, so that NAME@ALIAS refers to it; an alias can be moved."""
    if delete and protect:
        raise click.UsageError("--delete and --protect exclude one another.")
    name = Reference.parse(ref).name
    with session.registry() as registry:
        if delete:
            registry.remove_alias(name, alias, force=force)
            now = before = None
            state = ""
        else:
            before = registry.alias(ref, alias, protect=protect, force=force)
            version = registry.resolve(f"{name}@{alias}")
            now, state = version.ref, ", protected" if alias in version.protected else ""
    if printed_json({"alias": f"{name}@{alias}", "version": now, "before": before}):
        return
    if now is None:
        done(None, f"deleted {name}@{alias}")
        next_step(["show", name])
    else:
        done(now, f"{name}@{alias} is {now}{state}" + (f" (was {before})" if before not in (None, now) else ""))
        next_step(["show", f"{name}@{alias}"])


@command("reg export math --out math/", "reg export math@1 --out math-1/", "reg export law --as lora --out law-lora/")
@click.argument("ref", metavar="NAME[@V]")
@file("--out DIR", "The folder to write; absent or empty.", required=True)
@choice("--as", ["dense", "lora"], "A whole model, or an adapter of its base model.", "dense")
@integer("--rank", "For an expert that was trained in full: by default as many as keep 90% of its change.")
@option("--base NAME[@V]", "The same: its base model, by default the only one.")
@pass_session
def export(session: Session, /, ref: str, out: Path, rank: int | None, base: str | None, **chosen: str) -> None:
    """Write a registered version as a dense model folder, with bit-identical tensors.

    With --as lora it is written as PEFT's folder, adapter_config.json and adapter_model.safetensors: an adapter byte
    for byte as it came, an expert that was trained in full as its change of the base model at low rank.
    """
    with session.registry() as registry:
        version = registry.export(ref, out, as_lora=chosen["as"] == "lora", rank=rank, base=base)
    if not printed_json({"ref": version.ref, "digest": version.digest, "out": out}):
        done(str(out), f"wrote {version.ref} to {out}")
        if chosen["as"] == "dense":
            next_step(evaluating([out], [version.name] if version.kind == "expert" else []))
