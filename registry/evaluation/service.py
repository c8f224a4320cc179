"""Evaluation of folders and methods against the registered experts, and of schedules of experts."""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from registry.composition import Recipe
from registry.composition.compose import plan_composition, write_plan
from registry.errors import IncompatibleError, InvalidInputError
from registry.evaluation.benchmark import TokenizerSource, make_benchmark
from registry.evaluation.domain_tasks import DomainTasks
from registry.evaluation.methods import DENSE, Compose, Sweep, named_methods
from registry.evaluation.model_folders import active_experts_of, check_perplexities
from registry.evaluation.results import Continual, Row, TestSettings
from registry.evaluation.scoring import Model
from registry.evaluation.table import Table, Wanted
from registry.io.work_dirs import temporary_folder, working_folder
from registry.member import Member, load_members
from registry.names.reference import require_list
from registry.training import TrainSettings, train_mixture
from registry.workspace import PathLike, Workspace

Data = Mapping[str, Sequence[PathLike]]


def evaluate_registered(
    workspace: Workspace,
    folders: Sequence[PathLike],
    data: Data,
    settings: TestSettings | None,
    wanted: Wanted,
    *,
    experts: Sequence[str] = (),
    base: str | None = None,
    sweep: Sweep | None = None,
) -> list[Row]:
    """Evaluate folders, methods and a sweep (arguments and errors as `Registry.evaluate`)."""
    paths = [Path(folder) for folder in require_list(folders, "folders")]
    files = _files(data)
    methods = named_methods(wanted.methods)
    recipes = (sweep or Sweep()).recipes()
    if bool(require_list(experts, "experts")) != bool(wanted.methods or recipes):
        raise InvalidInputError(
            "experts and methods go together: " + ("there is no method" if experts else "no expert is named"),
            "reg evaluate --experts a,b --methods all --data a=FILE; or sweep a field: --sweep FIELD=V1,V2",
        )
    if wanted.seeds is not None and (wanted.seeds < 1 or not wanted.methods):
        raise InvalidInputError(
            f"seeds is {wanted.seeds}, the least is 1" if wanted.methods else "seeds need methods, and none was named",
            "reg evaluate --experts a,b --methods random --seeds 5 --data a=FILE",
        )
    check_perplexities(paths)
    for recipe in recipes.values():  # before anything is composed
        plan_composition(workspace, experts, recipe, base=base if recipe.needs_base else None)
    plans = [plan_composition(workspace, experts, Recipe(trunk="mean", router="random"))] if experts else []
    if not (paths or experts) or not files:
        raise InvalidInputError("there is nothing to evaluate", "reg evaluate moe/ --data code=FILE")
    counts = [active_experts_of(folder, wanted.active_experts) for folder in paths]
    names = [folder.name for folder in paths]
    labels = [path.name if path.name and names.count(path.name) == 1 else str(path) for path in paths]
    sources = [TokenizerSource.of_folder(folder, name) for folder, name in zip(paths, labels, strict=True)]
    sources += [TokenizerSource.of_plan(plan) for plan in plans]
    registered = _registered(workspace, files)
    benchmark = make_benchmark(sources, files, registered, settings or TestSettings(), workspace.progress)
    with ExitStack() as stack:
        if workspace.cluster is not None:
            digests = [member.version.digest for member in registered]
            work = stack.enter_context(working_folder(workspace.home.work, digests))
            benchmark = replace(benchmark, losses=DomainTasks(workspace.cluster, work), work=work)
        table = Table(benchmark, wanted, workspace.catalog)
        rows = table.dense_rows()
        for name, folder, active in zip(labels, paths, counts, strict=True):
            rows += table.folder_rows(name, folder, active)
        for name in methods:
            rows += [] if name in DENSE else table.method_rows(name, composer_of(workspace, experts, base))
        for name, recipe in recipes.items():
            with temporary_folder(benchmark.work) as temporary:
                composer_of(workspace, experts, base, recipe)({}, temporary / "swept")
                rows += table.folder_rows(name, temporary / "swept")
        return rows


def continual_registered(
    workspace: Workspace,
    schedule: Sequence[str],
    data: Data,
    settings: TestSettings | None,
    recipe: Recipe | None,
    base: str | None,
) -> Continual:
    """Evaluate a schedule of experts (arguments and errors as `Registry.continual`)."""
    refs, files, recipe = list(require_list(schedule, "schedule")), _files(data), recipe or Recipe()
    if recipe.fit is not None:
        raise InvalidInputError(
            "the coefficients were fitted for all members together, and a schedule composes the first of them alone",
            "drop fit from the recipe, to take the coefficients as they are",
        )
    top_k = None if recipe.top_k is None else min(recipe.top_k, len(refs))
    plan = plan_composition(workspace, refs, recipe.replace(top_k=top_k), base=base)
    names = [workspace.resolve(ref).name for ref in refs]
    for wanted, available, lack in ((names, files, "no test text"), (files, names, "no expert in the schedule")):
        if missing := [name for name in wanted if name not in available]:
            raise InvalidInputError(
                f"there is {lack} for {', '.join(missing)}",
                f"give --data for each of the schedule: {' '.join(f'--data {name}=FILE' for name in names)}",
            )
    benchmark = make_benchmark(
        [TokenizerSource.of_plan(plan)],
        files,
        _registered(workspace, files),
        settings or TestSettings(),
        workspace.progress,
    )
    if missing := [name for name in names if name not in benchmark.experts]:
        raise IncompatibleError(f"the text cannot be scored by {', '.join(missing)}", "leave it out of the schedule")

    def perplexities(model: Model, domains: Sequence[str]) -> list[float]:
        by_domain = benchmark.losses_of(model, {domain: benchmark.windows[domain] for domain in domains})
        return [by_domain[domain].perplexity for domain in domains]

    steps = [
        composer_of(workspace, refs[:count], base, recipe.of_members(names[:count]))
        for count in range(1, len(refs) + 1)
    ]
    own = []
    for name in names:
        member = benchmark.experts[name]
        with benchmark.dense(member.version.ref, [member]) as model:
            own += perplexities(model, [name])
    rows = []
    for step, compose in enumerate(steps, start=1):
        with temporary_folder() as temporary:
            compose({}, temporary / "composed")
            rows.append(perplexities(benchmark.open(f"step {step}", temporary / "composed"), names[:step]))
    scores = [[100 * (alone / p) for alone, p in zip(own, row, strict=False)] for row in rows]
    return Continual(tuple(names), rows, scores)


def composer_of(
    workspace: Workspace,
    experts: Sequence[str],
    base: str | None = None,
    recipe: Recipe | None = None,
) -> Compose:
    """Return a function that composes `experts` for a trial, without a record in the catalog.

    Settings change the recipe, by default the default one. Methods that need a base model take `base`, or the only one.
    """

    def compose(settings: Mapping[str, Any], folder: Path) -> None:
        fields = dict(settings)
        steps, seed = fields.pop("train_steps", None), fields.pop("train_seed", 0)
        method_recipe = (recipe or Recipe()).replace(**fields)
        plan = plan_composition(workspace, experts, method_recipe, base=base if method_recipe.needs_base else None)
        if steps is None:
            write_plan(workspace, plan, folder)
            return
        untrained = folder.with_name(f"{folder.name} untrained")
        write_plan(workspace, plan, untrained)
        names = [member.version.ref for member in plan.members]
        train_mixture(workspace, untrained, folder, names, TrainSettings(steps=steps, seed=seed), record=False)
        shutil.rmtree(untrained)

    return compose


def _files(data: Data) -> dict[str, list[Path]]:
    return {domain: [Path(file) for file in require_list(files, "data")] for domain, files in data.items()}


def _registered(workspace: Workspace, domains: Mapping[str, Any]) -> list[Member]:
    """Return the base models, and the experts that are named like a domain."""
    versions = (version for version in workspace.versions() if version.kind == "base" or version.name in domains)
    return load_members(workspace, versions)
