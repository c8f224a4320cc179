"""What a registry composes and measures: the part of `Registry` that reads versions and writes model folders."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, overload

from registry.checkpoint.documents import read_config
from registry.errors import CheckpointError, InvalidInputError, RegError
from registry.handle import Handle, PathLike
from registry.reference import several
from registry.resolving import base_model
from store.catalog import VersionRecord
from store.lock import exclusive
from store.ownership import check_owner

if TYPE_CHECKING:
    from registry.composing import Ensemble, EnsembleRecipe, Plan, Recipe
    from registry.evaluation import Row, TestSettings
    from registry.maths.lam import LamCurve
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
        """
        from registry.composing import EnsembleRecipe, Recipe, make_ensemble, make_plan

        recipe = recipe or Recipe()
        if base is not None and not recipe.needs_base:
            raise InvalidInputError(
                f"{recipe.label} takes no base model, and base {base!r} was given",
                "drop --base, or use that model's trunk: --trunk base",
            )
        members = [self.member(self.resolve(ref, kind="expert")) for ref in several(experts, "experts")]
        needed = self.member(base_model(self.catalog, base)) if recipe.needs_base else None
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
        """
        from registry.composing import Ensemble, write_composition, write_ensemble
        from registry.composing.folder import check_output
        from registry.composing.retaking import workplace

        check_owner(self.catalog, self.arrays)
        folder = Path(out).absolute()
        check_output(folder, replace=force)
        plan = self.plan(experts, recipe, base=base)
        used = [member.version for member in (*plan.members, *([plan.base] if plan.base else []))]

        def record() -> None:
            self.catalog.record_composition(plan.digest, plan.document, used, str(folder))

        with (
            exclusive(self.home.output_lock(folder), f"composing into {folder}"),
            workplace(self.home, self.progress) as place,
        ):
            if isinstance(plan, Ensemble):
                write_ensemble(plan, folder, replace=force, record=record, progress=self.progress)
            else:
                write_composition(plan, folder, replace=force, record=record, place=place)
        return plan

    def lam_curve(
        self, experts: Sequence[str], recipe: "Recipe | None" = None, *, base: str | None = None
    ) -> "list[LamCurve]":
        """Return, for each layer, how routers of various ridge strengths do on held-out folds (arguments as `plan`)."""
        from registry.composing import Recipe
        from registry.composing.retaking import materials_of, workplace

        plan = self.plan(experts, replace(recipe or Recipe(), lam="auto"), base=base)
        layers = plan.lead.architecture.num_hidden_layers
        with workplace(self.home, self.progress) as place, self.progress("solving", layers, "layer") as advance:
            materials, curves = materials_of(plan, place), []
            for layer in range(layers):
                curves.append(materials.lam_curve(layer))
                advance(1)
        return curves

    def train_router(
        self, folder: PathLike, out: PathLike, data: Sequence[str], settings: "TrainSettings", *, force: bool = False
    ) -> "Trained":
        """Train the routers of a composed folder on `data` and write the result to `out` (`training.train_router`)."""
        from registry.training import train_router

        check_owner(self.catalog, self.arrays)
        places, stores = (Path(folder), Path(out)), (self.catalog, self.arrays, self.home)
        return train_router(*stores, *places, data, settings, force=force, progress=self.progress)

    def export(self, ref: str, out: PathLike) -> VersionRecord:
        """Write a registered version to `out` as the dense folder it came from, tensors bit for bit."""
        from registry.composing.dense import write_dense

        version = self.resolve(ref)
        write_dense([self.member(version)], Path(out), self.progress)
        return version

    def evaluate(
        self,
        folders: Sequence[PathLike],
        data: Mapping[str, Sequence[PathLike]],
        settings: "TestSettings | None" = None,
        *,
        baselines: bool = False,
    ) -> "list[Row]":
        """Return perplexity per domain, and the normalised score where a domain's own expert is registered.

        Args:
            folders: model folders; the first one's tokenizer makes the windows, and no other may contradict it.
            data: domain → test files. A domain's own expert is the one of its name: the version in the first folder's
                `composition.json`, else the newest active one.
            settings: how test text is scored.
            baselines: rows also for the base model, the domains' experts and their plain average, where registered.
        """
        paths = [Path(folder) for folder in several(folders, "folders")]
        files = {domain: [Path(file) for file in several(named, "data")] for domain, named in data.items()}
        for path in paths:
            self._check_model_folder(path)

        from registry.evaluation import TestSettings, evaluate

        versions = self.catalog.versions(states=["active"])
        return evaluate(
            paths,
            files,
            [self.member(version) for version in versions if version.kind == "base" or version.name in data],
            settings or TestSettings(),
            baselines=baselines,
            progress=self.progress,
        )

    def _check_model_folder(self, folder: Path) -> None:
        """Check that `folder` holds a model; what is taken for a registered version is told how to become one."""
        try:
            read_config(folder)
        except CheckpointError as error:
            hint = error.hint
            if not folder.exists():
                hint = "name folders that hold a model: reg evaluate moe/ --data code=FILE"
                with suppress(RegError):
                    ref = self.resolve(str(folder)).ref
                    hint = f"{ref} is registered: run: reg export {ref} --out DIR, then evaluate DIR"
            raise CheckpointError(error.message, hint) from error
