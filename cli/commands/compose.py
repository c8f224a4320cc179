"""Commands that compose: compose, instantiate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.commands.doctor import print_diagnosis
from cli.commands.push import print_pushed
from cli.errors import INTERRUPTED, CliError
from cli.next_steps import composing_as_typed, evaluating, loading
from cli.option_groups import INSTANTIATION, command
from cli.options import Integer, file, files, flag, numbers, option
from cli.options import destination as output_place
from cli.output import (
    done,
    is_json,
    is_quiet,
    next_step,
    note,
    print_json,
    print_table,
    printed_json,
    progress,
    reg_line,
)
from cli.recipe import Asked, asked, experts_option, no_part, recipe_options
from cli.session import Session, pass_session
from cli.shared_options import connected, fit_line, fit_options, ray_option, take_fit_settings
from registry import composition
from registry.calibration.corpus import check_files
from registry.composition.found import ROUTERS, TRUNKS
from registry.composition.recipe.fields import LEAST_COPIES, MOST_COPIES, chosen, listed
from registry.io.display import counted, plain, short, size

if TYPE_CHECKING:
    from registry import FitSettings, Registry  # with SQLAlchemy
    from registry.doctor import Diagnosis
    from registry.hub.target import Pushed

NEED_BASE = [name for name, one in TRUNKS.items() if one.needs_base]  # trunk methods that take the base model

_NOT_SHOWN = ("weights", "coefficients", "fit", "dtype")


@command(
    "reg compose --experts code,math --out moe/",
    "reg compose --experts code,math --plan",
    "reg compose --recipe moe/composition.json --top-k 2 --out moe2/",
)
@experts_option
@option(
    "--out DIR|URL",
    "The folder to write, or a prefix of a bucket: s3://BUCKET/PREFIX, gs://, az://; it appears whole or not at all.",
    type=output_place,
)
@recipe_options()
@option(
    "--base NAME[@V]",
    f"The base model, with a trunk method that needs it: {listed(NEED_BASE)}. [default: the only one registered]",
)
@option(
    "--from-base N",
    "In place of --experts: N copies of the MLPs of --base, with its trunk and random routers, to be trained by "
    "reg train (sparse upcycling).",
    type=Integer(LEAST_COPIES, MOST_COPIES),
    advanced=True,
    outputs=("moe",),
)
@option(
    "--public NAME[@V]",
    "With --router anchored: the base model that joins the experts as the public one; it is --base too.",
    advanced=True,
    outputs=("moe",),
)
@files(
    "--like",
    "With --to dense: weigh the members by how many documents of FILE are nearest to their text, in the base "
    "model; a member that is nearest to none is left out (repeatable).",
    advanced=True,
    outputs=("dense",),
)
@fit_options(
    "With --to dense --trunk task-arithmetic: fit the coefficients to the text of FILE by gradient, then compose with "
    "them"
)
@file(
    "--save-recipe FILE",
    "Write experts, base model and recipe to a YAML file for --recipe, with --plan too.",
    advanced=True,
)
@option("--push REPO", "Then push it to the Hub, ORG/NAME, as reg push does.", "repo", advanced=True)
@flag("--private", "With --push: make the repository private.", advanced=True)
@flag("--check", "Then examine the folder, as reg doctor does; exit 1 if it is broken.")
@option("--license ID", "With --push: the license of the whole.", "license_id", advanced=True)
@file("--sign KEY", "With --push: sign it first, as reg sign does.", advanced=True)
@flag("--plan", "Print what would be written, and stop.", "plan_only")
@flag(
    "--force",
    "Replace --out if it is an earlier composition, the file of --save-recipe, and with --push what an earlier "
    "push put there.",
)
@ray_option
@pass_session
def compose(
    session: Session,
    /,
    experts: tuple[str, ...],
    out: Path | str | None,
    base: str | None,
    public: str | None,
    like: tuple[Path, ...],
    fit: tuple[Path, ...],
    save_recipe: Path | None,
    repo: str | None,
    private: bool,
    license_id: str | None,
    sign: Path | None,
    check: bool,
    plan_only: bool,
    force: bool,
    ray: str | None,
    **settings: Any,
) -> None:
    """Compose registered experts into one model that transformers loads: a sparse mixture, or what --to names."""
    if out is None and not plan_only:
        raise click.UsageError("give --out DIR, or --plan")
    if repo is None and (private or license_id or sign):
        raise click.UsageError("--private, --license and --sign are for --push.")
    if check and plan_only:
        raise click.UsageError("--check examines what was written, and --plan writes nothing: drop one of them.")
    if save_recipe is not None:
        composition.check_recipe_output(save_recipe, force=force)
    fit_settings = take_fit_settings(settings, fit)
    if settings["to"] == "dense" and not settings["weights"] and settings["recipe_path"] is None:
        check_files([*like, *fit])  # wrong options are refused first
    has_coefficients = bool(settings["coefficients"])
    wanted = asked(session, experts, base or public, settings, checks_base=public is None)
    from registry.destination.address import destination_of, readable

    destination = None
    if out is not None and not plan_only:
        destination = destination_of(out)
        destination.check(replace=force)
    if public is not None:
        wanted = replace(wanted, experts=_with_public(wanted.experts, public, wanted.recipe))
    _check_text(wanted.recipe, bool(like), bool(fit), has_coefficients)
    if fit and plan_only and save_recipe is not None:
        raise click.UsageError("--plan fits no coefficients, so --save-recipe has none to write: drop one of them.")
    from registry import FitSettings

    pushed, diagnosis, fit_reads = None, None, ""
    with connected({"ray": None if plan_only else ray}) as cluster, session.registry(cluster=cluster) as registry:
        _note_without_public(registry, wanted)
        if like:
            wanted = _weighed(registry, wanted, like)
            if not is_json():
                done(None, f"weights by --like: {plain(wanted.recipe.weights, '=')}")
        if fit and plan_only:
            wanted, fit_reads = _unfitted(registry, wanted, fit, FitSettings(**fit_settings))
        elif fit:
            recipe = wanted.recipe.replace(coefficients=None, fit=None)  # those of a recipe file are replaced
            fitted = registry.fit(wanted.experts, fit, recipe, FitSettings(**fit_settings), base=wanted.base)
            wanted = replace(wanted, recipe=fitted.recipe)
            if not is_json():
                found = f"coefficients by --fit: {plain(wanted.recipe.coefficients, '=')}"
                done(None, found, f"  {fit_line(wanted.recipe)}")
        made: dict[str, Any] = {"recipe": wanted.recipe, "base": wanted.base, "from_base": wanted.from_base}
        if destination is None:
            plan = registry.plan(wanted.experts, **made)
            _save(save_recipe, wanted, force=force)
        else:
            target = signer = None
            if repo is not None:
                from registry import signing
                from registry.hub.target import Target

                signer = None if sign is None else signing.signer(sign)  # before anything is composed
                target = Target.parse(repo, private=private, force=force)
                registry.check_push(registry.plan(wanted.experts, **made), target, license=license_id)
            plan = registry.compose(wanted.experts, destination, **made, force=force)
            if not is_json():
                _print_composed(plan, str(out))
            _save(save_recipe, wanted, force=force)  # before the examination, which may be interrupted
            diagnosis = _examined(registry, str(out)) if check else None
            if target is not None and (diagnosis is None or diagnosis.is_healthy):
                with readable(str(out), registry.home, progress()) as folder:
                    pushed = registry.push(folder, target, license=license_id, sign=signer)
    if is_json():
        document = plan_document(plan) | {"out": None if plan_only else out, "pushed": pushed}
        document |= {} if diagnosis is None else {"check": diagnosis.document()}
        if fit_reads:  # what depends on the coefficients is not known
            document |= {"digest": None, "recipe": {**document["recipe"], "coefficients": None}}
        print_json(document)
    else:
        for warning in () if is_quiet() else plan.output.warnings(plan):
            note(f"warning: {warning.reason}; to mend it: {warning.remedy}")
        if plan_only:
            _print_plan(plan, fit_reads)
        else:
            _print_end(plan, str(out), diagnosis, pushed)
    if diagnosis is not None and not diagnosis.is_healthy:
        raise click.exceptions.Exit(1)


def _check_text(recipe: composition.Recipe, like: bool, fit: bool, has_coefficients: bool) -> None:
    """Refuse --like and --fit where they have no part in a recipe, or what they make is given."""
    if like and (recipe.to != "dense" or recipe.weights):
        raise click.UsageError("--like needs --to dense, and makes the weights itself.")
    if fit and like:
        raise click.UsageError("--fit and --like exclude one another: choose what makes the shares of the members.")
    if fit and (recipe.to, recipe.trunk) != ("dense", "task-arithmetic"):
        raise click.UsageError("--fit needs --to dense --trunk task-arithmetic.")
    if fit and has_coefficients:
        raise click.UsageError("--fit makes the coefficients itself: drop --coefficients.")


def _weighed(registry: Registry, wanted: Asked, like: tuple[Path, ...]) -> Asked:
    """Return what is asked for with weights by how many documents are nearest to each member."""
    weights = registry.likeness(wanted.experts, like, base=wanted.base)
    refs = [ref for ref in wanted.experts if registry.resolve(ref).name in weights]
    recipe = wanted.recipe.replace(weights=weights)
    return replace(wanted, experts=refs, recipe=recipe, base=wanted.base if recipe.needs_base else None)


def _unfitted(registry: Registry, wanted: Asked, fit: tuple[Path, ...], settings: FitSettings) -> tuple[Asked, str]:
    """Return what is asked for with equal coefficients, for a plan before the fit, and what the fit will read."""
    check_files(fit)
    names = [registry.resolve(ref).name for ref in wanted.experts]
    equal = dict.fromkeys(names, 1 / max(1, len(names)))
    text = ", ".join(path.name for path in fit)
    reads = f"reads up to {settings.tokens:,} tokens of {text} in {counted(settings.steps, 'step')}"
    recipe = wanted.recipe.replace(coefficients=equal, fit=None)
    return replace(wanted, recipe=recipe), f"{reads}; coefficients are found when it is composed"


def _save(path: Path | None, wanted: Asked, *, force: bool) -> None:
    if path is not None:
        recipe, copies = wanted.recipe, wanted.from_base
        composition.write_recipe(path, recipe, wanted.experts, wanted.base, from_base=copies, force=force)
        note(f"recipe written to {path}")


def _print_end(plan: composition.Plan, out: str, diagnosis: Diagnosis | None, pushed: Pushed | None) -> None:
    """Print what became of the folder, and the next step."""
    if diagnosis is not None:
        print_diagnosis(diagnosis)
    if pushed is not None:
        print_pushed(pushed)
    if pushed is not None or diagnosis is None or (diagnosis.is_healthy and not diagnosis.next):
        names = plan.names if plan.from_base is None else []
        next_step(evaluating([out], names) if pushed is None else loading(pushed.repo_id, pushed.revision))


def _print_composed(plan: composition.Plan, out: Path | str) -> None:
    """Print what was written, before anything else is done with it."""
    members = ", ".join(member.version.ref for member in plan.members)
    if plan.from_base:
        members = f"{plan.from_base} copies of {plan.lead.version.ref}"
    done(
        plan.digest,
        f"composed {members} into {out}  {short(plan.digest)}",
        *(f"  note: {note}" for note in plan.notes),
        f"  {plan.model_type}, {plan.parameters:,} parameters, {plan.active_parameters:,} active per token",
    )


def _examined(registry: Registry, out: str) -> Diagnosis:
    """Return the diagnosis of a folder that was just written; Ctrl-C ends the examination alone."""
    from registry.destination.address import readable

    try:
        with readable(out, registry.home, progress()) as folder:
            return registry.doctor(folder)
    except KeyboardInterrupt:
        message = f"{out} is written; its examination was interrupted"
        raise CliError(message, reg_line(["doctor", out]), "Interrupted", INTERRUPTED) from None


def _with_public(refs: list[str], public: str, recipe: composition.Recipe) -> list[str]:
    """Return the references to the members with that to the public expert; usage errors if the recipe has none."""
    router = recipe.router_method
    if router is None:
        raise no_part("--public", "to", recipe.to, ("moe",))
    if not router.is_trained:
        raise no_part("--public", "router", recipe.router, [name for name, one in ROUTERS.items() if one.is_trained])
    return refs if public in refs else [*refs, public]


def _note_without_public(registry: Registry, wanted: Asked) -> None:
    """Remark that a mixture of trained rows has no public expert, if it has none."""
    router = wanted.recipe.router_method
    if router is None or not router.is_trained:
        return
    if any(registry.resolve(ref).kind == "base" for ref in wanted.experts):
        return
    bases = [wanted.base] if wanted.base else [version.name for version in registry.versions(kind="base")]
    public = bases[0] if len(bases) == 1 else "BASE"
    note(f"no expert stands for general text; to add the base model: --public {public}")


def plan_document(plan: composition.Plan) -> dict[str, Any]:
    """Return the JSON document of a plan, without the folder and the push."""
    return plan.document | {
        "digest": plan.digest,
        "versions": [member.version.ref for member in plan.members],
        "dtype": plan.dtype,
        "parameters": plan.parameters,
        "active_parameters": plan.active_parameters,
        "bytes": plan.nbytes,
        "context": plan.output.routing_cost(plan),
        "peak_bytes": plan.peak_bytes,
        "warnings": plan.output.warnings(plan),
    }


def _print_plan(plan: composition.Plan, fit_reads: str) -> None:
    """Print what would be written; `fit_reads`: what a fit would read, where the coefficients are still to be found."""
    if is_quiet():
        done(None if fit_reads else plan.digest)
        return
    recipe = plan.recipe.document(plan.names)
    column = "coefficient" if recipe.get("coefficients") else "weight"
    factors = recipe.get("coefficients") or recipe.get("weights") or dict.fromkeys(plan.names, 1.0)
    print_table(
        ("index", "expert", "digest", column, "tokens"),
        [
            (
                str(index),
                member.ref,
                short(member.version.digest),
                "-" if fit_reads else f"{factors[member.name]:g}",
                f"{member.tokens:,}",
            )
            for index, member in enumerate(plan.members)
        ],
    )
    rows = [("host", f"{plan.model_type}, {plan.dtype}"), *(("note", note) for note in plan.notes)]
    shown = {key: value for key, value in chosen(recipe).items() if key not in _NOT_SHOWN}
    rows += [(key.replace("_", " "), plain(value, "=")) for key, value in shown.items()]
    rows += [("fit", fit_line(plan.recipe))] if plan.recipe.fit else []
    rows += [("fit", fit_reads)] if fit_reads else []
    rows += [("base", plan.base.version.ref)] if plan.base else []
    if cost := plan.output.routing_cost(plan):
        added = f"{cost.parameters:,} parameters, {size(cost.bytes)}"
        if cost.layers:
            maps = ", one that adjusts the head" if cost.maps else ""
            readers = cost.layers - cost.maps
            read = "a layer that reads" if readers == 1 else f"{readers} layers that read"
            added = f"{read} the text so far{maps}, and {cost.channels} channels: {added}"
        elif cost.maps:
            added = f"head maps, {added}"
        rows += [("context routing adds", added)]
    rows += [
        ("parameters", f"{plan.parameters:,}, of which {plan.active_parameters:,} active per token"),
        ("bytes", f"{plan.nbytes:,} ({size(plan.nbytes)})"),
        ("peak memory", f"about {size(plan.peak_bytes)} beyond the program itself"),
    ]
    digest = "its digest depends on the coefficients" if fit_reads else short(plan.digest)
    print_table(("composition", digest), rows)
    next_step(composing_as_typed(without=("plan_only", "save_recipe")))


@command(
    "reg instantiate mix --weights code=3,math=1 --out mostly-code/",
    "reg instantiate mix --like math.jsonl --out like-math/",
    "reg instantiate mix --fit math.jsonl --out fitted/",
    headings=INSTANTIATION,
)
@click.argument("soup")
@option("--out DIR|URL", "The folder to write, or a prefix of a bucket.", required=True, type=output_place)
@option(
    "--weights A=X,…", "Weights of the domains; others have 0.", multiple=True, callback=numbers("weight", "DOMAIN")
)
@files("--like", "Weigh the domains by how many documents of FILE are nearest to each (repeatable).")
@fit_options("Fit the coefficients of the experts to the text of FILE by gradient, without domain weights")
@flag("--force", "Replace DIR if it is an earlier composition.")
@pass_session
def instantiate(
    session: Session, /, soup: str, out: Path | str, weights: dict[str, float], fit: tuple[Path, ...], **settings: Any
) -> None:
    """Write the dense model of SOUP for some mix of its domains, in seconds and without training.

    The domains' weights are given, or taken from documents; or the experts' coefficients are fitted to text. A soup of
    which a version was opted out is refused: all of it was trained together.
    """
    from registry import FitSettings

    fit_settings = FitSettings(**take_fit_settings(settings, fit))
    with session.registry() as registry:
        found = registry.instantiate(soup, out, weights=weights or None, fit=fit, settings=fit_settings, **settings)
    document = plan_document(found.plan) | {"out": out, "pushed": None}
    if printed_json(document | {"domain_weights": found.domain_weights, "coefficients": found.coefficients}):
        return
    shares = ", ".join(f"{name} {share:.4g}" for name, share in found.domain_weights.items())
    alpha = ", ".join(f"{name} {value:.4g}" for name, value in found.coefficients.items())
    done(
        found.plan.digest,
        f"instantiated {soup} into {out}  {short(found.plan.digest)}",
        *([f"  domains: {shares}"] if shares else []),
        f"  coefficients: {alpha}",
        *([f"  {fit_line(found.plan.recipe)}"] if fit else []),
    )
    next_step(evaluating([out], [name for name, share in found.domain_weights.items() if share]))
