"""The registry: what the commands of `reg` do with a home is a method here, and does here what it does there."""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from registry.checkpoint.annotations import Annotations
from registry.content import intact_arrays
from registry.errors import ConflictError, InvalidInputError, NotFoundError
from registry.hub.push import Publisher
from registry.meanwhile import unless_purged
from registry.names.reference import check_alias, several
from registry.names.resolve import (
    affected,
    check_has_alias,
    check_name_is_free,
    composition_of,
    logged_as,
)
from registry.progress import remark
from registry.registration.summary_store import Summaries
from registry.statistics.settings import PassSettings
from registry.workspace import PathLike
from store.catalog import ArrayLink, CompositionRecord, EvaluationRecord, EventRecord, VersionRecord
from store.lock import exclusive
from store.ownership import check_owner

if TYPE_CHECKING:
    from registry.checkpoint import Checkpoint
    from registry.maintenance.garbage import Garbage
    from registry.maintenance.verify import Verification
    from registry.member import StoredWeights
    from registry.opt_out.verify_receipt import ReceiptCheck
    from registry.opt_out.withdraw import OptOut
    from registry.registration.check import Check
    from registry.registration.expert_overlap import Sibling
    from registry.registration.lineage import Relation, Weights
    from registry.registration.lineage_index import Relating
    from registry.registration.register import Registration


class Registry(Publisher):
    """Experts registered once, composed in any subset, withdrawn exactly.

    Args:
        home: the registry's folder; default REG_HOME, else the platform's user-data folder.
        database: SQLAlchemy URL of the catalog; default REG_DATABASE, else SQLite in the home.
        progress: what long steps report to; default nothing.
        create: make the registry where there is none; without it a `home` that holds none is a NotFoundError.

    Every method raises below `registry.errors.RegError`, before anything is written where the request is wrong.
    """

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
            tags: keys and values to find it by. `language` (`de` or `de,en`) and `hub` (`ORG/NAME@COMMIT`) are for the
                cards of its compositions; of `hf://…` the latter is set.
            license: its license, as the Hub writes it (`apache-2.0`); default what the checkpoint's `expert.json` says.
            alias: a movable name to point at it.
            keep_calibration: store the calibration tokens too.
            base: an adapter's base model, if its configuration does not name it: a registered name, a folder, `hf://…`.
            allow_unrelated: take it even if it does not come from the base model of anything registered.
            remote_code: take it even if no native host carries it.

        Returns:
            the version, and how it lies to what is registered; where the same content is there, that version.

        Raises:
            CheckpointError: it is no checkpoint that can be registered, or what it carries is not its own.
            CalibrationError: there is no text to take statistics on.
            IncompatibleError: it comes from no base model of anything registered.
            ConflictError: `name` is a base model's.
        """
        check_owner(self.catalog, self.arrays)
        check_name_is_free(self.catalog, name, "expert")
        annotations = Annotations(dict(tags or {}), license, alias)
        files = [Path(file) for file in several(data, "data")]
        with self._opened(checkpoint, base, remote_code) as opened:
            from registry.checkpoint.manifest import as_announced, read_announced

            announced = read_announced(opened.folder)
            annotations = as_announced(annotations, announced, os.fspath(checkpoint), opened.folder)
            mine, relations = self._relations(opened, allow_unrelated)

            from registry.registration.register import register_expert

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
                summaries=self._summaries,
                progress=self.progress,
            )
            self._relating.keep(registration.version, mine)
        if announced is not None and announced.digest != registration.version.digest:
            digest = registration.version.digest[:12]
            said = f"{checkpoint} announces {announced.digest[:12]}"
            remark(self.progress, f"{said}, and is {digest} here: license, statistics or files differ")
        return replace(registration, relations=relations, newest=self._newest(registration.version))

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
        """Register a checkpoint as the next version of base model `name`, and return it (arguments as `add_expert`)."""
        check_owner(self.catalog, self.arrays)
        check_name_is_free(self.catalog, name, "base")
        annotations = Annotations(dict(tags or {}), license, alias)
        with self._opened(checkpoint, None, remote_code) as opened:
            mine, relations = self._relations(opened, allow_unrelated=True)

            from registry.registration.register import register_base

            registration = register_base(
                self.home, self.catalog, self.arrays, name, opened, annotations, progress=self.progress
            )
            self._relating.keep(registration.version, mine)
        return replace(registration, relations=relations, newest=self._newest(registration.version))

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
            _, relations = self._relations(opened, allow_unrelated)

            from registry.registration.check import check

            others, settings = self._experts(), settings or PassSettings()
            return check(opened, relations, files, settings, others, self._summaries, self.progress)

    def alias(self, ref: str, alias: str) -> str | None:
        """Point `alias` at the version that `ref` stands for, and return the version it pointed at before, if any.

        Raises:
            NotFoundError: there is no such version.
            InvalidInputError: no alias can be called that.
        """
        check_owner(self.catalog, self.arrays)
        return self.catalog.set_alias(self.resolve(ref), check_alias(alias))

    def remove_alias(self, name: str, alias: str) -> None:
        """Forget `name@alias`.

        Raises:
            NotFoundError: `name` has no such `alias`.
        """
        check_owner(self.catalog, self.arrays)
        check_has_alias(self.catalog, name, alias)
        self.catalog.delete_alias(name, alias)

    # -- opting out --------------------------------------------------------------------------------------------------

    def opt_out(self, ref: str, *, purge: bool = False, receipt: PathLike | None = None) -> "OptOut":
        """Withdraw a version, or with a bare name all of its versions, from every later composition.

        Args:
            ref: `NAME` or `NAME@VERSION`.
            purge: delete its arrays too, except those that another version needs, and whatever else the home holds of
                it; name, number, digest and times stay.
            receipt: a file to write the receipt to (`receipts.Receipt`); there must be none.

        Returns:
            what was withdrawn and deleted, and where it still is.

        Raises:
            NotFoundError: there is no such version.
            OutputError: `receipt` cannot be written.
        """
        from registry.opt_out.withdraw import opt_out

        versions = self.affected_by_opt_out(ref)
        with ExitStack() as stack:
            if receipt is not None:
                from registry.opt_out.receipt import make_receipt, receipt_file

                write = stack.enter_context(receipt_file(Path(receipt), ref))
            stack.enter_context(exclusive(self.home.lock, f"opting {ref} out"))
            done = opt_out(self.home, self.catalog, self.arrays, versions, purge=purge)
            if receipt is not None:
                write(make_receipt(self, done))
        return done

    def verify_receipt(self, file: PathLike, folders: Sequence[PathLike] = ()) -> "ReceiptCheck":
        """Hold a receipt against the registry: what was withdrawn is, what was deleted is gone, the log goes on.

        Args:
            file: what `opt_out` wrote.
            folders: composed folders, which must be whole and name nothing that was withdrawn.

        Returns:
            what is not as the receipt says, a line each, and what came after it.

        Raises:
            ConflictError: it is of another registry.
        """
        from registry.opt_out.receipt import read_receipt
        from registry.opt_out.verify_receipt import check_receipt

        return check_receipt(self, read_receipt(Path(file)), [Path(one) for one in several(folders, "folders")])

    def affected_by_opt_out(self, ref: str) -> list[VersionRecord]:
        """Return the versions that `opt_out(ref)` concerns, those withdrawn before included; `ref` as there.

        Raises:
            NotFoundError: `ref` names none.
        """
        return affected(self.catalog, ref)

    # -- looking -----------------------------------------------------------------------------------------------------

    def arrays_of(self, version: VersionRecord) -> list[ArrayLink]:
        """Return what `version` consists of: every array by role, name, digest, dtype and shape."""
        return self.catalog.arrays_of(version)

    def log(
        self, subject: str | None = None, *, limit: int | None = None, before: int | None = None
    ) -> list[EventRecord]:
        """Return the log, newest first, narrowed to a name, a version, an alias's version or a composition.

        Args:
            subject: what it is narrowed to; a composition by the beginning of its digest, 6 digits or more.
            limit: events at most.
            before: only events older than the one with this id.

        Raises:
            NotFoundError: there is no such thing.
        """
        return self.catalog.events(None if subject is None else logged_as(self.catalog, subject), limit, before)

    def compositions(self, ref: str | None = None) -> list[CompositionRecord]:
        """Return the compositions that were made, oldest first, narrowed to those made from a version or a name.

        Args:
            ref: `NAME` or `NAME@VERSION`; or the beginning of a digest, of 6 digits or more, for the one that has it.

        Raises:
            NotFoundError: there is no such thing.
        """
        if ref is None:
            return self.catalog.compositions()
        found = composition_of(self.catalog, ref)
        return self.catalog.compositions(self.affected_by_opt_out(ref)) if found is None else [found]

    def composition(self, digest: str) -> CompositionRecord | None:
        """Return the composition whose digest begins with `digest`, 6 digits or more; None where that is no digest.

        Raises:
            NotFoundError: no composition has such a digest.
        """
        return composition_of(self.catalog, digest)

    def evaluations(self, composition: CompositionRecord) -> list[EvaluationRecord]:
        """Return what `evaluate` found of `composition`, the latest first."""
        return self.catalog.evaluations(composition.digest)

    def relations(self, ref: str) -> "tuple[Relation, ...]":
        """Return the distance of the version `ref` to every other active version of its shape, the nearest first.

        Raises:
            NotFoundError: there is no such version.
        """
        version = self.resolve(ref)
        with unless_purged(self.catalog, [version]):
            intact_arrays(self.catalog, version)
            others = [other for other in self.versions() if other.id != version.id]
            return self._relating.relations(self._relating.weights(version), others)

    # -- keeping -----------------------------------------------------------------------------------------------------

    def verify(self) -> "Verification":
        """Re-hash everything that is registered, follow the log, and return what was found."""
        from registry.maintenance.verify import verify

        return verify(self.catalog, self.arrays, self.progress)

    def gc(self, *, dry_run: bool = False) -> "Garbage":
        """Delete arrays that no version needs, and what interrupted commands left, and return what that was.

        With `dry_run` nothing is deleted.
        """
        from registry.maintenance.garbage import collect_leftovers
        from registry.opt_out.withdraw import collect_garbage

        with exclusive(self.home.lock, "collecting garbage"):
            garbage = collect_garbage(self.catalog, self.arrays, dry_run=dry_run)
            return collect_leftovers(self.home, self.catalog, garbage, dry_run=dry_run)

    # -- within --------------------------------------------------------------------------------------------------------

    def _opened(
        self, checkpoint: PathLike, base: PathLike | None, remote_code: bool
    ) -> "AbstractContextManager[Checkpoint]":
        from registry.checkpoint.open import opened

        return opened(
            checkpoint,
            self.home.merged,
            base=base,
            registered=self._registered,
            remote_code=remote_code,
            progress=self.progress,
        )

    def _newest(self, version: VersionRecord) -> str:
        try:
            return self.resolve(version.name).ref
        except ConflictError:  # it was opted out meanwhile
            return version.ref

    def _registered(self, ref: str) -> "StoredWeights | None":
        try:
            version = self.resolve(ref)
        except (NotFoundError, InvalidInputError):
            return None

        from registry.member import StoredWeights

        return StoredWeights(self.member(version))

    def _relations(self, checkpoint: "Checkpoint", allow_unrelated: bool) -> "tuple[Weights, tuple[Relation, ...]]":
        from registry.registration.lineage import weights_of_checkpoint

        mine, versions = weights_of_checkpoint(checkpoint), self.versions()
        relations = self._relating.relations(mine, versions)
        if not allow_unrelated:
            self._relating.check_related(checkpoint.label, mine, versions, relations)
        return mine, relations

    @property
    def _relating(self) -> "Relating":
        from registry.registration.lineage_index import Relating

        return Relating(self.catalog, self.arrays, self._summaries, self.progress)

    @cached_property
    def _summaries(self) -> Summaries:
        return Summaries(self.home, self.catalog)

    def _experts(self, *, but: str | None = None) -> "list[Sibling]":
        from registry.registration.expert_overlap import Sibling

        versions = self.versions(kind="expert")
        return [Sibling(version, partial(self.member, version)) for version in versions if version.name != but]
