"""The registry: every command of `reg` is one method here, and does here what it does there."""

import difflib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from registry.errors import (
    ConflictError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from registry.home import Home
from registry.progress import Progress, silent
from registry.reference import Reference, check_alias, check_licence, check_name
from store.arrays import ArrayStore
from store.catalog import ArrayLink, Catalog, CompositionRecord, EventRecord, VersionRecord
from store.catalog.records import KIND_WORDS, Kind, State
from store.lock import exclusive

if TYPE_CHECKING:
    from registry.collecting import PassSettings
    from registry.composing import Member, Plan, Recipe
    from registry.evaluation import Row, TestSettings
    from registry.registering import Registration
    from registry.statistics_file import Collected
    from registry.verification import Verification
    from registry.withdrawing import Garbage, OptOut

PathLike = str | os.PathLike[str]


class Registry:
    """Experts registered once, composed in any subset, withdrawn exactly.

    Args:
        home: the registry's folder; default REG_HOME, else the platform's user-data folder. Created on first use.
        database: SQLAlchemy URL of the catalog; default REG_DATABASE, else SQLite in the home.
        progress: what long steps report to; default nothing.

    Every method raises below `registry.errors.RegError`, before anything is written where the request is wrong.
    """

    def __init__(
        self, home: PathLike | None = None, *, database: str | None = None, progress: Progress = silent
    ) -> None:
        self.home = Home.locate(home, database)
        self.progress = progress
        try:
            self.home.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"the registry's home {self.home.path} cannot be created: {error.strerror}",
                "name another one with --home",
            ) from error
        self.arrays = ArrayStore(self.home.arrays)
        self.catalog = Catalog(self.home.database, self.home.lock)

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
        settings: "PassSettings | None" = None,
        tags: Mapping[str, str] | None = None,
        license: str | None = None,  # noqa: A002 - the field's word
        alias: str | None = None,
        keep_calibration: bool = False,
    ) -> "Registration":
        """Register a checkpoint as the next version of expert `name`, with statistics.

        They are taken on `data`, else on the checkpoint's own `calibration.*` file; else the checkpoint's
        `statistics.safetensors` is used; else on text that the expert samples from itself.

        Args:
            name: `[a-z0-9][a-z0-9._-]*`.
            checkpoint: a local Hugging Face folder with safetensors weights.
            data: calibration files (.txt, .jsonl, .jsonl.gz, .parquet).
            settings: how the forward pass runs.
            tags: keys and values to find it by.
            license: its licence, as the Hub writes it (`apache-2.0`).
            alias: a movable name to point at it.
            keep_calibration: store the calibration tokens too.
        """
        from registry import statistics_file
        from registry.calibration.sampling import self_sampled_label
        from registry.checkpoint import hash_checkpoint
        from registry.collecting import PassSettings, check_collected, collect, text_calibration, window_size
        from registry.registering import Registration, content_of, find_same

        settings = settings or PassSettings()
        tags = _check_annotations(name, tags, license, alias)
        self._check_kind(name, "expert")
        hashed = hash_checkpoint(Path(checkpoint), self.progress)
        calibration = text_calibration(hashed.checkpoint, [Path(file) for file in data], settings)
        collected: Collected | None = None
        carried = hashed.checkpoint.folder / statistics_file.FILE_NAME
        if calibration is None and carried.is_file():
            collected = statistics_file.load(carried)
            check_collected(hashed.checkpoint, hashed.weights, collected, carried)
        self_sampled = calibration is None and collected is None
        kept = keep_calibration if collected is None else collected.calibration is not None
        found = find_same(
            self.catalog.versions(name, states=["active"]),
            content_of(hashed, "expert", license, kept=kept),
            calibration.digest if calibration else collected.calibration_digest if collected else None,
            self_sampled_label(settings.tokens, window_size(hashed.checkpoint, settings)),
        )
        if found is not None:
            return Registration(self._annotate(found, tags, alias), added=False, self_sampled=self_sampled)
        if collected is None:
            collected = collect(
                hashed,
                calibration,
                settings,
                keep_calibration=keep_calibration,
                partial=self.home.partial,
                progress=self.progress,
            )
        return self._register(name, "expert", hashed, license, collected, tags, alias, self_sampled)

    def add_base(
        self,
        name: str,
        checkpoint: PathLike,
        *,
        tags: Mapping[str, str] | None = None,
        license: str | None = None,  # noqa: A002 - the field's word
        alias: str | None = None,
    ) -> "Registration":
        """Register a checkpoint as the next version of base model `name`; arguments as `add_expert`."""
        from registry.checkpoint import hash_checkpoint

        tags = _check_annotations(name, tags, license, alias)
        self._check_kind(name, "base")
        hashed = hash_checkpoint(Path(checkpoint), self.progress)
        return self._register(name, "base", hashed, license, None, tags, alias, False)

    def _register(
        self,
        name: str,
        kind: Kind,
        hashed: Any,
        license: str | None,  # noqa: A002
        collected: "Collected | None",
        tags: dict[str, str],
        alias: str | None,
        self_sampled: bool,
    ) -> "Registration":
        from registry.registering import Registration, new_version, write_arrays

        with self._exclusive(f"registering {name}"):
            arrays = write_arrays(self.arrays, hashed, collected, self.progress)
            version, added = self.catalog.add_version(new_version(name, kind, hashed, license, collected, tags, arrays))
        return Registration(self._annotate(version, tags, alias), added, self_sampled)

    def _annotate(self, version: VersionRecord, tags: dict[str, str], alias: str | None) -> VersionRecord:
        if any(version.tags.get(key) != value for key, value in tags.items()):
            self.catalog.set_tags(version, tags)
        if alias is not None and alias not in version.aliases:
            self.catalog.set_alias(version, alias)
        return self.resolve(version.ref)

    def alias(self, ref: str, alias: str) -> str | None:
        """Point `alias` at a version and return the version it pointed at before, if any."""
        return self.catalog.set_alias(self.resolve(ref), check_alias(alias))

    def remove_alias(self, name: str, alias: str) -> None:
        """Forget `name@alias`."""
        self.resolve(f"{check_name(name)}@{check_alias(alias)}")
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
        members = [self.member(self.resolve(ref, kind="expert")) for ref in experts]
        chosen = self._base(base) if base is not None or TRUNKS[recipe.trunk].needs_base else None
        return make_plan(members, chosen, recipe)

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

        folder = Path(out).absolute()
        check_output(folder, replace=force)
        plan = self.plan(experts, recipe, base=base)
        used = [member.version for member in (*plan.members, *([plan.base] if plan.base else []))]

        def record() -> None:
            self.catalog.record_composition(plan.digest, plan.document, used, str(folder))

        with self._exclusive(f"composing into {folder}", f"out-{_short_digest(str(folder))}"):
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
    ) -> "list[Row]":
        """Return perplexity per domain, and the normalised score where a domain's own expert is registered.

        Args:
            folders: model folders; the first one's tokenizer makes the windows.
            data: domain → test files. A domain's own expert is the one of its name: the version in the first folder's
                `composition.json`, else the newest active one.
            settings: how test text is scored.
            baselines: rows also for the base model, the domains' experts and their plain average, where registered.
        """
        from registry.composing.dense import write_dense
        from registry.composing.folder import composed_of
        from registry.evaluation import Row, TestSettings, perplexities, test_windows

        settings = settings or TestSettings()
        paths = [Path(folder) for folder in folders]
        if not paths or not data:
            raise InvalidInputError("there is nothing to evaluate", "run: reg evaluate moe/ --data code=FILE")
        windows = test_windows({domain: [Path(f) for f in files] for domain, files in data.items()}, paths[0], settings)
        experts = self._own_experts(list(data), composed_of(paths[0]))
        found: dict[str, dict[str, float]] = {}
        with tempfile.TemporaryDirectory(prefix="reg-") as temporary:

            def measure(name: str, versions: Sequence[VersionRecord], domains: Sequence[str]) -> dict[str, float]:
                folder = Path(temporary) / name
                write_dense([self.member(version) for version in versions], folder, self.progress)
                part = {domain: windows[domain] for domain in domains}
                figures = perplexities(name, folder, part, settings, self.progress)
                shutil.rmtree(folder)
                return figures

            if baselines:
                for base in self.catalog.versions(kind="base", states=["active"]):
                    found[f"base {base.ref}"] = measure(base.ref, [base], list(windows))
                for domain, version in experts.items():
                    found[f"expert {domain}"] = measure(version.ref, [version], list(windows))
                if len(experts) > 1:
                    found["average"] = measure("average", [experts[name] for name in sorted(experts)], list(windows))
                own = {domain: found[f"expert {domain}"][domain] for domain in experts}
            else:
                own = {domain: measure(version.ref, [version], [domain])[domain] for domain, version in experts.items()}
        for path in paths:
            found[path.name or str(path)] = perplexities(path.name, path, windows, settings, self.progress)
        return [Row(name, ppl, {d: 100 * own[d] / ppl[d] for d in own}) for name, ppl in found.items()]

    # -- opting out --------------------------------------------------------------------------------------------------

    def opt_out(self, ref: str, *, purge: bool = False) -> "OptOut":
        """Withdraw a version, or with a bare name all of its versions, from every later composition.

        Args:
            ref: `NAME` or `NAME@VERSION`.
            purge: delete its arrays too, except those that another version needs.
        """
        from registry.withdrawing import opt_out

        versions = self.affected_by_opt_out(ref)
        with self._exclusive(f"opting {ref} out"):
            return opt_out(self.catalog, self.arrays, versions, purge=purge)

    def affected_by_opt_out(self, ref: str) -> list[VersionRecord]:
        """Return the versions that `opt_out(ref)` concerns, those withdrawn before included."""
        reference = Reference.parse(ref)
        if reference.number is None and reference.alias is None:
            return self._versions_of(reference.name)
        return [self.resolve(ref, states=("active", "withdrawn", "purged"))]

    # -- looking -----------------------------------------------------------------------------------------------------

    def versions(
        self, *, kind: Kind | None = None, everything: bool = False, tags: Mapping[str, str] | None = None
    ) -> list[VersionRecord]:
        """Return active versions (`everything`: those opted out too) by name and number, narrowed by kind and tags."""
        states: tuple[State, ...] = ("active", "withdrawn", "purged") if everything else ("active",)
        wanted = dict(tags or {})
        return [v for v in self.catalog.versions(kind=kind, states=states) if wanted.items() <= v.tags.items()]

    def resolve(self, ref: str, *, kind: Kind | None = None, states: Sequence[State] = ("active",)) -> VersionRecord:
        """Return the version that `NAME` (its newest active one), `NAME@NUMBER` or `NAME@ALIAS` stands for.

        Args:
            ref: the reference.
            kind: what it must be.
            states: the states it may be in.

        Raises:
            NotFoundError: no such name, version or alias, with the nearest name there is.
            ConflictError: it was opted out.
            InvalidInputError: it is of the other kind, or no reference at all.
        """
        reference = Reference.parse(ref)
        versions = self._versions_of(reference.name)
        if kind is not None and versions[0].kind != kind:
            raise InvalidInputError(
                f"{reference.name} is {KIND_WORDS[versions[0].kind]}, not {KIND_WORDS[kind]}",
                f"run: reg list --kind {kind}",
            )
        number = reference.number
        if reference.alias is not None:
            number = self.catalog.alias_target(reference.name, reference.alias)
            if number is None:
                aliases = sorted(alias for version in versions for alias in version.aliases)
                raise NotFoundError(
                    f"{reference.name} has no alias {reference.alias!r}; it has {', '.join(aliases) or 'none'}",
                    f"run: reg alias {reference.name}@{versions[-1].number} {reference.alias}",
                )
        if number is None:
            allowed = [version for version in versions if version.state in states]
            if not allowed:
                raise ConflictError(f"every version of {reference.name} was opted out", "run: reg list --all")
            return allowed[-1]
        for version in versions:
            if version.number == number:
                if version.state not in states:
                    raise ConflictError(f"{version.ref} was opted out at {version.withdrawn_at}", "run: reg list --all")
                return version
        numbers = ", ".join(str(version.number) for version in versions)
        raise NotFoundError(
            f"{reference.name} has no version {number}; it has {numbers}", f"run: reg show {reference.name}"
        )

    def member(self, version: VersionRecord) -> "Member":
        """Return a version with its arrays, as compositions and evaluations read it."""
        from registry.composing import Member

        return Member(version, tuple(self.catalog.arrays_of(version)), self.arrays)

    def arrays_of(self, version: VersionRecord) -> list[ArrayLink]:
        """Return what a version consists of."""
        return self.catalog.arrays_of(version)

    def log(self, subject: str | None = None, *, limit: int | None = None) -> list[EventRecord]:
        """Return the log, newest first, narrowed to a name, a version or a composition's digest."""
        return self.catalog.events(subject, limit)

    def compositions(self, ref: str | None = None) -> list[CompositionRecord]:
        """Return the compositions that were made, oldest first, narrowed to those made from a version or a name."""
        return self.catalog.compositions(None if ref is None else self.affected_by_opt_out(ref))

    # -- keeping -----------------------------------------------------------------------------------------------------

    def verify(self) -> "Verification":
        """Re-hash everything that is registered."""
        from registry.verification import verify

        return verify(self.catalog, self.arrays, self.progress)

    def gc(self, *, dry_run: bool = False) -> "Garbage":
        """Delete arrays that no version needs, and passes that were never finished; with `dry_run` only tell which."""
        from registry.withdrawing import collect_garbage

        with self._exclusive("collecting garbage"):
            garbage = collect_garbage(self.catalog, self.arrays, dry_run=dry_run)
            if not dry_run:
                shutil.rmtree(self.home.partial, ignore_errors=True)
        return garbage

    # -- inside ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _exclusive(self, what: str, name: str | None = None) -> Iterator[None]:
        lock = self.home.lock if name is None else self.home.path / "locks" / name
        with exclusive(lock, what):
            yield

    def _versions_of(self, name: str) -> list[VersionRecord]:
        versions = self.catalog.versions(name)
        if versions:
            return versions
        near = difflib.get_close_matches(name, self.catalog.names(), n=1)
        raise NotFoundError(
            f"there is no expert {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""), "run: reg list"
        )

    def _check_kind(self, name: str, kind: Kind) -> None:
        found = self.catalog.versions(name)
        if found and found[0].kind != kind:
            raise ConflictError(
                f"{name} is registered as {KIND_WORDS[found[0].kind]}, not as {KIND_WORDS[kind]}", "choose another name"
            )

    def _base(self, ref: str | None) -> "Member":
        if ref is not None:
            return self.member(self.resolve(ref, kind="base"))
        names = sorted({version.name for version in self.catalog.versions(kind="base", states=["active"])})
        if len(names) != 1:
            found = f"there are {len(names)}: {', '.join(names)}" if names else "none is registered"
            hint = f"name one: --base {names[0]}" if names else "run: reg add-base NAME CKPT"
            raise IncompatibleError(f"this trunk method needs the base model, and {found}", hint)
        return self.member(self.resolve(names[0], kind="base"))

    def _own_experts(self, domains: Sequence[str], composed: Mapping[str, str]) -> dict[str, VersionRecord]:
        experts = {}
        for version in self.catalog.versions(kind="expert", states=["active"]):
            wanted = composed.get(version.name, version.digest)
            if version.name in domains and version.digest == wanted:
                experts[version.name] = version
        return {domain: experts[domain] for domain in domains if domain in experts}


def _check_annotations(
    name: str, tags: Mapping[str, str] | None, licence: str | None, alias: str | None
) -> dict[str, str]:
    check_name(name)
    if licence is not None:
        check_licence(licence)
    if alias is not None:
        check_alias(alias)
    for key, value in (tags or {}).items():
        check_name(key, "tag")
        if not value or len(value) > 1000 or not value.isprintable():
            raise InvalidInputError(
                f"tag {key} has a value that is empty, unprintable or too long", "use --tag key=value"
            )
    return dict(tags or {})


def _short_digest(text: str) -> str:
    import hashlib

    return hashlib.sha256(text.encode()).hexdigest()[:16]
