"""The registry: what the commands of `reg` do with a home is a method here, and does here what it does there."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from registry.ancestry import (
    Relation,
    Weights,
    check_related,
    relations_of,
    weights_of_checkpoint,
    weights_of_version,
)
from registry.annotations import Annotations
from registry.checkpoint import Checkpoint
from registry.errors import InvalidInputError, NotFoundError, StorageError
from registry.home import Home
from registry.opening import opened
from registry.pass_settings import PassSettings
from registry.progress import Progress, silent
from registry.reference import check_alias, several
from registry.resolving import (
    ALL_STATES,
    affected,
    base_model,
    check_has_alias,
    check_name_is_free,
    composition_of,
    logged_as,
    resolve,
)
from store.arrays import ArrayStore
from store.catalog import ArrayLink, Catalog, CompositionRecord, EvaluationRecord, EventRecord, VersionRecord
from store.catalog.records import Kind, State
from store.lock import exclusive
from store.ownership import check_owner, check_unowned

if TYPE_CHECKING:
    from registry.checking import Check
    from registry.composing import Member, Plan, Recipe
    from registry.composing.member import StoredWeights
    from registry.evaluation import Continual, Row, TestSettings
    from registry.registering import Registration
    from registry.verification import Verification
    from registry.withdrawing import Garbage, OptOut

PathLike = str | os.PathLike[str]


class Registry:
    """Experts registered once, composed in any subset, withdrawn exactly.

    Args:
        home: the registry's folder; default REG_HOME, else the platform's user-data folder.
        database: SQLAlchemy URL of the catalog; default REG_DATABASE, else SQLite in the home.
        progress: what long steps report to; default nothing.
        create: make the registry where there is none; without it a `home` that holds none is a NotFoundError.

    Every method raises below `registry.errors.RegError`, before anything is written where the request is wrong.
    """

    def __init__(
        self,
        home: PathLike | None = None,
        *,
        database: str | None = None,
        progress: Progress = silent,
        create: bool = True,
    ) -> None:
        self.home = Home.locate(home, database)
        self.home.check(create=create)
        self.progress = progress
        try:
            self.home.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"the registry's home {self.home.path} cannot be created: {error.strerror}",
                "name another one with --home",
            ) from error
        self.arrays = ArrayStore(self.home.arrays)
        self.catalog = Catalog(self.home.database, self.home.lock, partial(check_unowned, self.arrays))

    def __enter__(self) -> "Registry":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the database's connections back."""
        self.catalog.close()

    # -- registering -------------------------------------------------------------------------------------------------

    def add_expert(
        self,
        name: str,
        checkpoint: PathLike,
        *,
        data: Sequence[PathLike] = (),
        settings: PassSettings | None = None,
        tags: Mapping[str, str] | None = None,
        license: str | None = None,  # noqa: A002 - the field's word
        alias: str | None = None,
        keep_calibration: bool = False,
        base: PathLike | None = None,
        allow_unrelated: bool = False,
        remote_code: bool = False,
    ) -> "Registration":
        """Register a checkpoint as the next version of expert `name`, with statistics.

        They are taken on `data`, else on the checkpoint's own `calibration.*` file; else the checkpoint's
        `statistics.safetensors` is used; else on text that the expert samples from itself.

        Args:
            name: `[a-z0-9][a-z0-9._-]*`.
            checkpoint: a Hugging Face folder with safetensors weights, `hf://ORG/NAME[@REVISION]`, or a PEFT adapter.
            data: calibration files (.txt, .jsonl, .jsonl.gz, .parquet).
            settings: how the forward pass runs.
            tags: keys and values to find it by.
            license: its license, as the Hub writes it (`apache-2.0`).
            alias: a movable name to point at it.
            keep_calibration: store the calibration tokens too.
            base: an adapter's base model, if its configuration does not name it: a registered name, a folder, `hf://…`.
            allow_unrelated: take it even if it does not come from the base model of anything registered.
            remote_code: take it even if no native host carries it.
        """
        check_owner(self.catalog, self.arrays)
        check_name_is_free(self.catalog, name, "expert")
        annotations = Annotations(dict(tags or {}), license, alias)
        files = [Path(file) for file in several(data, "data")]
        with self._opened(checkpoint, base, remote_code) as opened:
            relations = self._relations(opened, allow_unrelated)

            from registry.registering import register_expert

            registration = register_expert(
                self.home,
                self.catalog,
                self.arrays,
                name,
                opened,
                files,
                settings or PassSettings(),
                annotations,
                keep_calibration=keep_calibration,
                others=self._experts(but=name),
                progress=self.progress,
            )
        return replace(registration, relations=relations, newest=self.resolve(name).ref)

    def add_base(
        self,
        name: str,
        checkpoint: PathLike,
        *,
        tags: Mapping[str, str] | None = None,
        license: str | None = None,  # noqa: A002 - the field's word
        alias: str | None = None,
        remote_code: bool = False,
    ) -> "Registration":
        """Register a checkpoint as the next version of base model `name`; arguments as `add_expert`."""
        check_owner(self.catalog, self.arrays)
        check_name_is_free(self.catalog, name, "base")
        annotations = Annotations(dict(tags or {}), license, alias)
        with self._opened(checkpoint, None, remote_code) as opened:
            relations = self._relations(opened, allow_unrelated=True)

            from registry.registering import register_base

            registration = register_base(
                self.home, self.catalog, self.arrays, name, opened, annotations, progress=self.progress
            )
        return replace(registration, relations=relations, newest=self.resolve(name).ref)

    def check(
        self,
        checkpoint: PathLike,
        *,
        data: Sequence[PathLike] = (),
        settings: PassSettings | None = None,
        base: PathLike | None = None,
        allow_unrelated: bool = False,
        remote_code: bool = False,
    ) -> "Check":
        """Return what `add_expert` would say of a checkpoint, registering nothing (arguments as there).

        Statistics are taken on `data`, or those that the checkpoint carries are used; it samples no text.
        """
        files = [Path(file) for file in several(data, "data")]
        with self._opened(checkpoint, base, remote_code) as opened:
            relations = self._relations(opened, allow_unrelated)

            from registry.checking import check

            return check(opened, relations, files, settings or PassSettings(), self._experts(), self.progress)

    def alias(self, ref: str, alias: str) -> str | None:
        """Point `alias` at a version and return the version it pointed at before, if any."""
        check_owner(self.catalog, self.arrays)
        return self.catalog.set_alias(self.resolve(ref), check_alias(alias))

    def remove_alias(self, name: str, alias: str) -> None:
        """Forget `name@alias`."""
        check_owner(self.catalog, self.arrays)
        check_has_alias(self.catalog, name, alias)
        self.catalog.delete_alias(name, alias)

    # -- composing ---------------------------------------------------------------------------------------------------

    def plan(self, experts: Sequence[str], recipe: "Recipe | None" = None, *, base: str | None = None) -> "Plan":
        """Return what a composition will be, without reading a weight.

        Args:
            experts: names, versions or aliases, in any order.
            recipe: how; default the default recipe.
            base: the base model, where the trunk method needs one; default the only one that is registered.
        """
        from registry.composing import Recipe, make_plan
        from registry.maths.trunk import TRUNKS

        recipe = recipe or Recipe()
        needs_base = TRUNKS[recipe.trunk].needs_base
        if base is not None and not needs_base:
            raise InvalidInputError(
                f"trunk method {recipe.trunk!r} takes no base model, and base {base!r} was given",
                "drop --base, or use that model's trunk: --trunk base",
            )
        members = [self.member(self.resolve(ref, kind="expert")) for ref in several(experts, "experts")]
        return make_plan(members, self.member(base_model(self.catalog, base)) if needs_base else None, recipe)

    def compose(
        self,
        experts: Sequence[str],
        out: PathLike,
        recipe: "Recipe | None" = None,
        *,
        base: str | None = None,
        force: bool = False,
    ) -> "Plan":
        """Write the composition of `experts` to the folder `out`, and return its plan (arguments as `plan`).

        Args:
            force: replace `out` if it is an earlier composition.
        """
        from registry.composing.compose import write_composition
        from registry.composing.folder import check_output

        check_owner(self.catalog, self.arrays)
        folder = Path(out).absolute()
        check_output(folder, replace=force)
        plan = self.plan(experts, recipe, base=base)
        used = [member.version for member in (*plan.members, *([plan.base] if plan.base else []))]

        def record() -> None:
            self.catalog.record_composition(plan.digest, plan.document, used, str(folder))

        with exclusive(self.home.output_lock(folder), f"composing into {folder}"):
            write_composition(plan, folder, replace=force, record=record, progress=self.progress)
        return plan

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
        from registry.evaluation.requests import evaluate_registered
        from registry.evaluation.table import Wanted

        wanted = Wanted(baselines, oracle, speed, tuple(several(methods, "methods")))
        return evaluate_registered(self, folders, data, settings, wanted, experts=experts, base=base)

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
        from registry.evaluation.requests import continual_registered

        return continual_registered(self, schedule, data, settings, recipe, base)

    # -- opting out --------------------------------------------------------------------------------------------------

    def opt_out(self, ref: str, *, purge: bool = False) -> "OptOut":
        """Withdraw a version, or with a bare name all of its versions, from every later composition.

        Args:
            ref: `NAME` or `NAME@VERSION`.
            purge: delete its arrays too, except those that another version needs.
        """
        from registry.withdrawing import opt_out

        versions = self.affected_by_opt_out(ref)
        with exclusive(self.home.lock, f"opting {ref} out"):
            return opt_out(self.catalog, self.arrays, versions, purge=purge)

    def affected_by_opt_out(self, ref: str) -> list[VersionRecord]:
        """Return the versions that `opt_out(ref)` concerns, those withdrawn before included."""
        return affected(self.catalog, ref)

    # -- looking -----------------------------------------------------------------------------------------------------

    def versions(
        self, *, kind: Kind | None = None, everything: bool = False, tags: Mapping[str, str] | None = None
    ) -> list[VersionRecord]:
        """Return active versions (`everything`: those opted out too) by name and number, narrowed by kind and tags."""
        states = ALL_STATES if everything else ("active",)
        wanted = dict(tags or {})
        return [v for v in self.catalog.versions(kind=kind, states=states) if wanted.items() <= v.tags.items()]

    def resolve(self, ref: str, *, kind: Kind | None = None, states: Sequence[State] = ("active",)) -> VersionRecord:
        """Return the version that `NAME`, `NAME@NUMBER` or `NAME@ALIAS` stands for (`resolving.resolve`)."""
        return resolve(self.catalog, ref, kind=kind, states=states)

    def member(self, version: VersionRecord) -> "Member":
        """Return a version with its arrays, as compositions and evaluations read it."""
        from registry.composing import Member

        return Member(version, tuple(self.catalog.arrays_of(version)), self.arrays)

    def arrays_of(self, version: VersionRecord) -> list[ArrayLink]:
        """Return what a version consists of."""
        return self.catalog.arrays_of(version)

    def log(self, subject: str | None = None, *, limit: int | None = None) -> list[EventRecord]:
        """Return the log, newest first, narrowed to a name, a version, an alias's version or a composition.

        A composition is named by the beginning of its digest, 6 digits or more.

        Raises:
            NotFoundError: there is no such thing.
        """
        return self.catalog.events(None if subject is None else logged_as(self.catalog, subject), limit)

    def compositions(self, ref: str | None = None) -> list[CompositionRecord]:
        """Return the compositions that were made, oldest first, narrowed to those made from a version or a name.

        The beginning of a digest, of 6 digits or more, stands for the one composition that has it.

        Raises:
            NotFoundError: there is no such thing.
        """
        if ref is None:
            return self.catalog.compositions()
        found = composition_of(self.catalog, ref)
        return self.catalog.compositions(self.affected_by_opt_out(ref)) if found is None else [found]

    def composition(self, digest: str) -> CompositionRecord | None:
        """Return the composition whose digest begins so, with 6 digits or more; None where that is no digest."""
        return composition_of(self.catalog, digest)

    def evaluations(self, composition: CompositionRecord) -> list[EvaluationRecord]:
        """Return what was found of a composition, the latest first."""
        return self.catalog.evaluations(composition.digest)

    def relations(self, ref: str) -> tuple[Relation, ...]:
        """Return the distance of a version to every other active version of its shape, the nearest first."""
        version = self.resolve(ref)
        mine = weights_of_version(self.arrays_of(version), self.arrays)
        return self._related(mine, [other for other in self.versions() if other.id != version.id])

    # -- keeping -----------------------------------------------------------------------------------------------------

    def verify(self) -> "Verification":
        """Re-hash everything that is registered."""
        from registry.verification import verify

        return verify(self.catalog, self.arrays, self.progress)

    def gc(self, *, dry_run: bool = False) -> "Garbage":
        """Delete arrays that no version needs, and what interrupted registrations left; with `dry_run` only tell."""
        from registry.withdrawing import collect_garbage, collect_leftovers

        with exclusive(self.home.lock, "collecting garbage"):
            garbage = collect_garbage(self.catalog, self.arrays, dry_run=dry_run)
            return collect_leftovers(self.home, garbage, dry_run=dry_run)

    # -- within --------------------------------------------------------------------------------------------------------

    def _opened(
        self, checkpoint: PathLike, base: PathLike | None, remote_code: bool
    ) -> AbstractContextManager[Checkpoint]:
        return opened(
            checkpoint,
            self.home.merged,
            base=base,
            registered=self._registered,
            remote_code=remote_code,
            progress=self.progress,
        )

    def _registered(self, ref: str) -> "StoredWeights | None":
        try:
            version = self.resolve(ref)
        except (NotFoundError, InvalidInputError):
            return None

        from registry.composing.member import StoredWeights

        return StoredWeights(self.member(version))

    def _relations(self, checkpoint: Checkpoint, allow_unrelated: bool) -> tuple[Relation, ...]:
        relations = self._related(weights_of_checkpoint(checkpoint), self.versions())
        if not allow_unrelated:
            check_related(checkpoint.label, relations)
        return relations

    def _related(self, mine: Weights, versions: Sequence[VersionRecord]) -> tuple[Relation, ...]:
        described = ((version, self.arrays_of(version)) for version in versions)
        return relations_of(mine, described, self.arrays, self.progress)

    def _experts(self, *, but: str | None = None) -> "list[Member]":
        return [self.member(version) for version in self.versions(kind="expert") if version.name != but]
