"""What a registry composes and measures: the part of `Registry` that reads versions and writes model folders."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, overload

from registry.errors import InvalidInputError
from registry.meanwhile import unless_purged
from registry.names.reference import several
from registry.names.resolve import base_model, composition_of
from registry.workspace import Handle, PathLike
from store.catalog import VersionRecord
from store.lock import exclusive
from store.ownership import check_owner

if TYPE_CHECKING:
    from registry.composition import Ensemble, EnsembleRecipe, Plan, Recipe
    from registry.composition.passes import Workplace
    from registry.composition.preview import Preview
    from registry.composition.reproduce import Reproduction
    from registry.evaluation import Continual, Row, TestSettings
    from registry.maths.lam import LamCurve
    from registry.member import Member
    from registry.report import Figures
    from registry.training import Trained, TrainSettings


class Composer(Handle):
    """Composing, exporting and evaluating (errors as in `Registry`)."""

    @overload
    def plan(self, experts: Sequence[str], recipe: "Recipe | None" = None, *, base: str | None = None) -> "Plan": ...

    @overload
    def plan(self, experts: Sequence[str], recipe: "EnsembleRecipe", *, base: str | None = None) -> "Ensemble": ...

    @overload
    def plan(
        self, experts: Sequence[str], recipe: "Recipe | EnsembleRecipe | None", *, base: str | None = None
    ) -> "Plan | Ensemble": ...

    def plan(
        self, experts: Sequence[str], recipe: "Recipe | EnsembleRecipe | None" = None, *, base: str | None = None
    ) -> "Plan | Ensemble":
        """Return what a composition will be, without reading a weight.

        Args:
            experts: names, versions or aliases, in any order.
            recipe: how; default the default recipe.
            base: the base model, where the recipe needs one; default the only one that is registered.

        Raises:
            NotFoundError: there is no such expert or base model.
            IncompatibleError: the members cannot stand in one composition.
            InvalidInputError: the recipe does not go with them.
        """
        from registry.composition import EnsembleRecipe, Recipe, make_ensemble, make_plan

        recipe = recipe or Recipe()
        if base is not None and not recipe.needs_base:
            raise InvalidInputError(
                f"{recipe.label} takes no base model, and base {base!r} was given",
                "drop --base, or use that model's trunk: --trunk base",
            )
        members = [self.member(self.resolve(ref, kind="expert")) for ref in several(experts, "experts")]
        needed = self.member(base_model(self.catalog, base)) if recipe.needs_base else None
        with unless_purged(self.catalog, [member.version for member in (*members, *([needed] if needed else []))]):
            if isinstance(recipe, EnsembleRecipe):
                return make_ensemble(members, needed, recipe)
            return make_plan(members, needed, recipe)

    @overload
    def compose(
        self,
        experts: Sequence[str],
        out: PathLike,
        recipe: "Recipe | None" = None,
        *,
        base: str | None = None,
        force: bool = False,
    ) -> "Plan": ...

    @overload
    def compose(
        self,
        experts: Sequence[str],
        out: PathLike,
        recipe: "Recipe | EnsembleRecipe | None",
        *,
        base: str | None = None,
        force: bool = False,
    ) -> "Plan | Ensemble": ...

    def compose(
        self,
        experts: Sequence[str],
        out: PathLike,
        recipe: "Recipe | EnsembleRecipe | None" = None,
        *,
        base: str | None = None,
        force: bool = False,
    ) -> "Plan | Ensemble":
        """Write the composition of `experts` to the folder `out`, and return its plan (arguments as `plan`).

        Args:
            force: replace `out` if it is an earlier composition.

        Raises:
            OutputError: `out` holds something else.
            DamagedError: what is stored of a member is not what was written.
        """
        from registry.io.model_folder import check_output

        check_owner(self.catalog, self.arrays)
        folder = Path(out).absolute()
        check_output(folder, replace=force)
        plan = self.plan(experts, recipe, base=base)

        def record() -> None:
            self.catalog.record_composition(plan.digest, plan.document, read_by(plan), str(folder))

        with exclusive(self.home.output_lock(folder), f"composing into {folder}"):
            self.write(plan, folder, replace=force, record=record)
        return plan

    def write(
        self, plan: "Plan | Ensemble", folder: Path, *, replace: bool = False, record: Callable[[], None] | None = None
    ) -> None:
        """Write what was planned to a folder, of which the catalog is told only what `record` tells it.

        Args:
            plan: of `plan`.
            folder: absent, empty, or with `replace` an earlier composition.
            replace: see `folder`.
            record: called when everything is written, just before the folder appears; None for a folder that is soon
                deleted again.
        """
        from registry.composition import Ensemble, write_composition, write_ensemble

        with unless_purged(self.catalog, read_by(plan)), self._workplace(plan) as place:
            if isinstance(plan, Ensemble):
                write_ensemble(plan, folder, replace=replace, record=record or _nothing, progress=self.progress)
            else:
                write_composition(plan, folder, replace=replace, record=record, place=place)

    def likeness(
        self, experts: Sequence[str], files: Sequence[PathLike], *, base: str | None = None, device: str | None = None
    ) -> dict[str, float]:
        """Return the share of the documents in `files` that each of `experts` is nearest to, where it is not 0.

        They are weights for a dense composition of those experts: `Recipe(to="dense", trunk="mean", weights=…)`.

        Args:
            experts: names, versions or aliases, in any order.
            files: `.txt` (one document a file), `.jsonl`, `.jsonl.gz`, `.parquet`.
            base: the base model, which embeds them; default the only one that is registered.
            device: a torch device; default the GPU if there is one.
        """
        from registry.composition import Recipe
        from registry.composition.domain_weights import likeness

        plan = self.plan(experts, Recipe(trunk="base", to="dense"), base=base)
        assert plan.base is not None
        paths = [Path(file) for file in several(files, "files")]
        with unless_purged(self.catalog, read_by(plan)), self._workplace(plan) as place:
            return likeness(plan.members, plan.base, paths, place, device)

    def lam_curve(
        self, experts: Sequence[str], recipe: "Recipe | None" = None, *, base: str | None = None
    ) -> "list[LamCurve]":
        """Return, for each layer, how routers of various ridge strengths do on held-out folds (arguments as `plan`)."""
        from registry.composition import Recipe
        from registry.composition.passes import materials_of

        plan = self.plan(experts, replace(recipe or Recipe(), lam="auto"), base=base)
        layers = plan.lead.architecture.num_hidden_layers
        with (
            unless_purged(self.catalog, read_by(plan)),
            self._workplace(plan) as place,
            self.progress("solving", layers, "layer") as advance,
        ):
            materials, curves = materials_of(plan, place), []
            for layer in range(layers):
                curves.append(materials.lam_curve(layer))
                advance(1)
        return curves

    def preview(self, experts: Sequence[str], recipe: "Recipe | None" = None, *, base: str | None = None) -> "Preview":
        """Return where a composition's routers will send each expert's tokens, from statistics alone.

        No weight is read. What a recipe does by passes of tokens (`refine`, `token_weight`) is not foreseen: the
        figures are those without it, and the preview says so. Arguments as `plan`.
        """
        from registry.composition import Recipe
        from registry.composition.preview import preview

        plan = self.plan(experts, recipe or Recipe(), base=base)
        with unless_purged(self.catalog, read_by(plan)):
            return preview(plan, self.progress)

    def train_router(
        self,
        folder: PathLike,
        out: PathLike,
        data: Sequence[str],
        settings: "TrainSettings",
        *,
        force: bool = False,
        record: bool = True,
    ) -> "Trained":
        """Train the routers of a composed folder on text, and no other weight, and return what came of it.

        Args:
            folder: a composed folder.
            out: where the result is written, absent or empty; or with `force` an earlier composition.
            data: `FILE`s of text, or names of members whose calibration tokens were kept.
            settings: how it is trained.
            force: see `out`.
            record: tell the catalog of it.

        Raises:
            CheckpointError: `folder` is no composition, or its files are not those that were composed.
            CalibrationError: there is no token to predict.
        """
        from registry.training import train_router

        check_owner(self.catalog, self.arrays)
        places, stores = (Path(folder), Path(out)), (self.catalog, self.arrays, self.home)
        return train_router(*stores, *places, data, settings, force=force, record=record, progress=self.progress)

    def reproduce(self, folder: PathLike, out: PathLike | None = None) -> "Reproduction":
        """Compose a folder again from what its own `composition.json` says, and compare every byte of every file.

        Args:
            folder: a composed folder; what it was composed of must be registered here and active, by name and digest.
            out: where to keep what is composed now, absent or empty; without it that is deleted again.

        Returns:
            every file of either folder, and whether it is the same.

        Raises:
            CheckpointError: `folder` is no composition, or its routers were trained.
            NotFoundError: a member is not registered here.
        """
        from registry.composition.reproduce import reproduce

        return reproduce(self, Path(folder), None if out is None else Path(out))

    def export(self, ref: str, out: PathLike) -> VersionRecord:
        """Write the version `ref` to `out` as the dense folder it came from, tensors bit for bit, and return it.

        Raises:
            NotFoundError: there is no such version.
            OutputError: `out` is not empty.
        """
        from registry.composition.dense import write_dense

        version = self.resolve(ref)
        with unless_purged(self.catalog, [version]):
            write_dense([self.member(version)], Path(out), self.progress)
        return version

    def evaluate(
        self,
        folders: Sequence[PathLike],
        data: Mapping[str, Sequence[PathLike]],
        settings: "TestSettings | None" = None,
        *,
        baselines: bool = False,
        oracle: bool = False,
        speed: bool = False,
        experts: Sequence[str] = (),
        methods: Sequence[str] = (),
        base: str | None = None,
    ) -> "list[Row]":
        """Return perplexity per domain, and the normalised score where a domain's own expert is registered.

        The figures of a composition that was made here are stored with it.

        Args:
            folders: model folders; the first one's tokenizer makes the windows, and no other may contradict it.
            data: domain → test files. A domain's own expert is the one of its name: the version in the first folder's
                `composition.json`, else the newest active one.
            settings: how test text is scored.
            baselines: rows also for the base model, the domains' experts and their plain average, where registered.
            oracle: of every mixture a further row: each domain's tokens sent to the domain's expert, its upper bound.
            speed: of every mixture also the time of a token, relative to a dense expert's.
            experts: compose these by each of `methods` too, into folders that are deleted again.
            methods: names of `registry.evaluation.METHODS`, or `all`.
            base: the base model for these methods; default the only one that is registered.
        """
        from registry.evaluation.service import evaluate_registered
        from registry.evaluation.table import Wanted

        wanted = Wanted(baselines, oracle, speed, tuple(several(methods, "methods")))
        return evaluate_registered(self, folders, data, settings, wanted, experts=experts, base=base)

    def report(
        self,
        composition: PathLike,
        data: "Mapping[str, Sequence[PathLike]] | None" = None,
        settings: "TestSettings | None" = None,
    ) -> "Figures":
        """Return the figures of a composition's report; `registry.report.page` makes HTML of them.

        Routing and scores are measured on `data`, else those of the stored evaluation with the most domains, else
        routing is foretold from statistics (`preview`). What there is no figure for is left out, and noted.

        Args:
            composition: a composed folder, or the beginning of the digest of a composition made here, 6 digits or more.
            data: domain → test files, for a folder; with rows also for base model, experts, their average and the
                oracle.
            settings: how test text is scored.
        """
        from registry.report.build import figures_of

        folder = Path(composition)
        made = None if folder.is_dir() else composition_of(self.catalog, str(composition))
        return figures_of(self, made or folder, data or {}, settings)

    def continual(
        self,
        schedule: Sequence[str],
        data: Mapping[str, Sequence[PathLike]],
        settings: "TestSettings | None" = None,
        recipe: "Recipe | None" = None,
        *,
        base: str | None = None,
    ) -> "Continual":
        """Return what every domain is worth after each expert of `schedule` has joined, and what was forgotten.

        Args:
            schedule: experts in the order in which they join.
            data: the name of each → test files.
            settings: how test text is scored.
            recipe: how those so far are composed; top_k is at most their number, and weights are those of who is there.
            base: as `plan`.
        """
        from registry.evaluation.service import continual_registered

        return continual_registered(self, schedule, data, settings, recipe, base)

    def _workplace(self, plan: "Plan | Ensemble") -> "AbstractContextManager[Workplace]":
        from registry.composition.passes import workplace

        members = _members(plan)
        return workplace(self.home, self.progress, members, lambda: self.catalog.check_active(read_by(plan)))


def read_by(plan: "Plan | Ensemble") -> list[VersionRecord]:
    """Return what a plan reads: the members, and the base model where it takes part."""
    return [member.version for member in _members(plan)]


def _members(plan: "Plan | Ensemble") -> "list[Member]":
    return [*plan.members, *([plan.base] if plan.base else [])]


def _nothing() -> None:
    pass
