"""The facade: every operation on a registry is one method of `Registry`, and every command of `reg` calls one.

Methods delegate to the package of their subject, which is loaded when a method first needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from registry import composition as composition_  # methods have the names of these three packages
from registry import doctor as doctor_
from registry import evaluation, gguf, hub, maintenance, registration, signing, training
from registry import opt_out as opt_out_
from registry import quantization as quantization_
from registry import report as report_
from registry.calibration.corpus import check_files
from registry.checkpoint import TrainingRecord, readable_training
from registry.checkpoint.annotations import Annotations
from registry.distributed import Cluster
from registry.home import Home
from registry.io.model_folder import check_output, require_composed
from registry.methods import dense
from registry.methods import simoe as simoe_
from registry.methods import soup as soup_
from registry.names.reference import check_alias, require_list
from registry.names.resolve import ALL_STATES, check_has_alias, composition_of, logged_as, versions_matching
from registry.progress import Progress, silent
from registry.statistics.settings import PassSettings
from registry.training.training_paths import base_version, check_paths
from registry.workspace import PathLike, Workspace
from store.catalog import (
    ArrayLink,
    CompositionRecord,
    EvaluationRecord,
    EventRecord,
    TagCount,
    VersionRecord,
)
from store.catalog.records import Kind, State


class Registry:
    """Experts registered once, composed in any subset, withdrawn exactly.

    Attributes:
        home: the registry's folder.
        catalog: versions, compositions and the log, in SQL.
        arrays: weights and statistics, by content digest.

    Args:
        home: the registry's folder; default REG_HOME, else the platform's user-data folder.
        database: SQLAlchemy URL of the catalog; default REG_DATABASE, else SQLite in the home.
        arrays: folder or bucket URL (s3://, gs://, az://) of the arrays; default REG_ARRAYS, else a folder in the home.
        progress: receives the progress of long steps; default none.
        create: create the registry if it does not exist, at once or `"when written to"`; otherwise a `home` without one
            is a NotFoundError.
        cluster: a result of `registry.distributed.connect`, whose nodes take parts of `add_expert`, `add_experts`,
            `compose` and `evaluate`. They see the home, the checkpoints and the outputs by the same paths.

    Arguments of methods, where these do not say more:
        name: `[a-z0-9][a-z0-9._-]*`.
        ref: `NAME`, `NAME@NUMBER` or `NAME@ALIAS`; a bare name is its newest version.
        experts: names, versions or aliases, in any order.
        base: the base model, a name or version; default the only one that is registered.
        recipe: the methods and their parameters; default the default recipe.
        data, files: files of text: `.txt` (one document a file), `.jsonl`, `.jsonl.gz`, `.parquet`; where domains are
            measured, domain → files.
        settings: settings of the step; most have defaults.
        tags: keys and values to find it by. `language` (`de` or `de,en`) and `hub` (`ORG/NAME@COMMIT`) also appear on
            cards of its compositions; `hub` is set automatically for `hf://` checkpoints.
        license: its license, as the Hub writes it (`apache-2.0`); default that of the checkpoint's `expert.json`.
        alias: a movable name to point at it.
        folder: a composed folder.
        out: a folder to write, absent or empty; it appears whole or not at all.
        force: replace `out` if it is an earlier composition.
        device: a torch device; default the GPU if there is one.

    Every method raises subclasses of `registry.errors.RegError`, and a wrong request raises before anything is written:
    a reference that matches nothing is a NotFoundError, a version that was opted out a ConflictError, an `out` that
    holds something else an OutputError, text that cannot be read, or is none, a CalibrationError, a folder that is not
    as it was composed a CheckpointError, an array that is not as it was written a DamagedError; a disk, a Hub or a
    library that is full, refuses or is missing is a StorageError. Methods name further reasons.
    """

    def __init__(
        self,
        home: PathLike | None = None,
        *,
        database: str | None = None,
        arrays: PathLike | None = None,
        progress: Progress = silent,
        create: bool | Literal["when written to"] = True,
        cluster: Cluster | None = None,
    ) -> None:
        self._workspace = opened = Workspace.open(Home.locate(home, database, arrays), progress, create, cluster)
        self.home, self.catalog, self.arrays = opened.home, opened.catalog, opened.arrays
        maintenance.follow_opt_outs(opened)

    @property
    def cluster(self) -> Cluster | None:
        """The nodes that long steps run on; None for this process. It can be set."""
        return self._workspace.cluster

    @cluster.setter
    def cluster(self, cluster: Cluster | None) -> None:
        self._workspace = replace(self._workspace, cluster=cluster)

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the database's connections."""
        self._workspace.close()

    @property
    def progress(self) -> Progress:
        """Receiver of the progress of long steps."""
        return self._workspace.progress

    @progress.setter
    def progress(self, progress: Progress) -> None:
        self._workspace = replace(self._workspace, progress=progress)

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
        tokenizer_of: str | None = None,
        signers: PathLike | None = None,
    ) -> registration.Registration:
        """Register a checkpoint as the next version of expert `name`, with statistics.

        They are collected on `data`, else on the checkpoint's own `calibration.*` file; else the checkpoint's
        `statistics.safetensors` is used; else the expert samples its own text.

        Args:
            checkpoint: a Hugging Face folder with safetensors weights, `hf://ORG/NAME[@REVISION]`, or a PEFT adapter.
            keep_calibration: store the calibration tokens too.
            base: an adapter's base model, if its configuration does not name it: a registered name, a folder, `hf://…`.
            allow_unrelated: accept a checkpoint that shares no ancestor with anything registered.
            remote_code: accept a checkpoint that no native host carries.
            tokenizer_of: a version: added tokens get the numbers that it has for them, others new ones after all, and
                rows of embedding and head move with them. For experts that gave one number to different tokens.
            signers: OpenSSH's file of allowed signers: register only what one of them signed (`push_expert`), with
                the tag `signer`.

        Returns the version and its relations to what is registered; an existing version if it has the same content.

        Raises:
            CheckpointError: the checkpoint cannot be registered, or its statistics are of other weights.
            CalibrationError: there is no text to collect statistics on.
            IncompatibleError: it shares no ancestor with anything registered.
            ConflictError: `name` is a base model's.
            SignatureError: none of the `signers` signed it, as it is here.
        """
        request = registration.RegistrationRequest(
            name,
            checkpoint,
            "expert",
            data,
            settings,
            Annotations(dict(tags or {}), license, alias),
            keep_calibration,
            base,
            allow_unrelated,
            remote_code,
            tokenizer_of,
            signers=signers,
        )
        with registration.open_candidate(self._workspace, request) as candidate:  # torch is loaded after it
            return registration.register_candidate(self._workspace, candidate)

    def add_experts(self, file: PathLike, *, settings: PassSettings | None = None) -> registration.RegisteredList:
        """Register the experts of a list, each as `add_expert` does, and return registrations and errors, by name.

        All are checked before the first is registered. One that fails after all is among the failed ones, and the
        others are registered; experts that are registered already are skipped.

        Args:
            file: YAML, a list of experts: name, checkpoint, and what else `add_expert` takes. Paths in it start from
                its folder.

        Raises InvalidInputError, with the line, if the file is no such list; other errors are those of `add_expert`.
        """
        requests = registration.read_experts(Path(file), settings or PassSettings())
        return registration.register_experts(self._workspace, requests)

    def add_base(
        self,
        name: str,
        checkpoint: PathLike,
        *,
        tags: Mapping[str, str] | None = None,
        license: str | None = None,  # noqa: A002 - the field's word
        alias: str | None = None,
        remote_code: bool = False,
        own_text: int = 0,
    ) -> registration.Registration:
        """Register a checkpoint as the next version of base model `name`, and return it (arguments as `add_expert`).

        With `own_text` the model writes so many tokens, conversations where its tokenizer has a chat template, and they
        are counted and kept: a composition of adapters then sends text that no expert knows to the base model
        (CalibrationError: it cannot write them).
        """
        annotations = Annotations(dict(tags or {}), license, alias)
        request = registration.RegistrationRequest(
            name, checkpoint, "base", annotations=annotations, remote_code=remote_code, own_text=own_text
        )
        with registration.open_candidate(self._workspace, request) as candidate:  # torch is loaded after it
            return registration.register_candidate(self._workspace, candidate)

    def train_expert(
        self,
        name: str,
        base: PathLike,
        data: Sequence[PathLike],
        settings: training.ExpertTraining | None = None,
        *,
        public_data: Sequence[PathLike] = (),
        out: PathLike | None = None,
        tags: Mapping[str, str] | None = None,
        license: str | None = None,  # noqa: A002 - the field's word
        alias: str | None = None,
        keep_calibration: bool = False,
    ) -> training.TrainedExpert:
        """Train an expert from a base model and register it, with statistics on the same text; return the result.

        A training that was interrupted continues when it is started again. The version stores how it was trained and
        its loss curve, in `expert_training.json`. With a frozen trunk its trunk is the base model's to the byte.

        Under a launcher (torchrun) all processes call this, and the first registers: others' results do not have that.

        Args:
            base: the model to begin from: a registered name or version, a folder, or `hf://ORG/NAME[@REVISION]`.
            public_data: files of public text: with `coordinate` the router rows begin as the differences of the
                embeddings of both texts; without, at 0.
            out: a folder to write the checkpoint to; the expert is then not registered.
            keep_calibration: store the calibration tokens too.

        Raises InvalidInputError if a loss is NaN or infinite, and ConflictError if `name` is a base model's.
        """
        check_files([*data, *public_data])
        base_version(self.catalog, base)
        return training.train_expert(
            self._workspace,
            name,
            base,
            training.TrainingText(data, public_data),
            settings or training.ExpertTraining(),
            out=out,
            annotations=Annotations(dict(tags or {}), license, alias),
            keep_calibration=keep_calibration,
        )

    def train_soup(
        self,
        name: str,
        base: PathLike,
        domains: Mapping[str, Sequence[PathLike]],
        settings: soup_.SoupTraining,
        *,
        tags: Mapping[str, str] | None = None,
        license: str | None = None,  # noqa: A002 - the field's word
        alias: str | None = None,
    ) -> soup_.TrainedSoup:
        """Train a soup (Ablin et al. 2025) and register it: `instantiate` makes a dense model of any domain
        weights. Returns it.

        Its shared weights S are registered as base model `name`, and S + E_1 to S + E_n as the experts `name-1` to
        `name-n`, with counts of their tokens as statistics. A training that was interrupted continues when it is
        started again. It holds n + 1 copies of the weights, each with its gradient and two moments, in float32; with a
        rank, one copy and the factors.

        Args:
            base: the base model to begin from: a registered name or version, a folder, or
                `hf://ORG/NAME[@REVISION]`.
            domains: the files of text of each domain, by its name; two domains or more. With `settings.clusters` the
                documents of all files make that many domains, by k-means of their embeddings, and names have no part.

        Raises CalibrationError if a domain has no text, or there are fewer documents than clusters, InvalidInputError
        if `base` is an expert, there are fewer domains or clusters than a step's mixture has, or the rank is more than
        a matrix has, and any error of `train_expert`.
        """
        check_files(domains, "domains")
        base_version(self.catalog, base)
        return soup_.train_soup(
            self._workspace, name, base, domains, settings, annotations=Annotations(dict(tags or {}), license, alias)
        )

    def train_simoe(
        self,
        name: str,
        base: str,
        data: Sequence[PathLike],
        settings: simoe_.SimoeTraining | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        license: str | None = None,  # noqa: A002 - the field's word
        alias: str | None = None,
    ) -> simoe_.TrainedSimoe:
        """Train sparse interpolated experts (SIMoE, Chen et al. 2025) and return them, registered as
        `name-1` to `name-n`.

        Expert m is the base model with diag(z_m) D added: D is trained for all of them together, z_m is a mask of its
        rows. They are experts like any other, with counts of tokens as statistics; `Recipe(to="simoe")` composes them
        as they were trained. The base model stays as it is. An interrupted training continues when it is started again.

        Args:
            name: what the experts' names begin with.
            base: the registered base model to begin from.

        Raises CalibrationError if no text is longer than a prompt, InvalidInputError if `base` is an expert, or the
        model's windows are not longer than a prompt, and any error of `train_expert`.
        """
        check_files(data)
        self.resolve(base, kind="base")
        return simoe_.train_simoe(
            self._workspace,
            name,
            base,
            data,
            settings or simoe_.SimoeTraining(),
            annotations=Annotations(dict(tags or {}), license, alias),
        )

    def check(
        self,
        checkpoint: PathLike,
        *,
        data: Sequence[PathLike] = (),
        settings: PassSettings | None = None,
        base: PathLike | None = None,
        allow_unrelated: bool = False,
        remote_code: bool = False,
        tokenizer_of: str | None = None,
    ) -> registration.Check:
        """Return what `add_expert` would report of a checkpoint, and register nothing (arguments as `add_expert`).

        Statistics are collected on `data`, or read from the checkpoint; no text is sampled.
        """
        request = registration.RegistrationRequest(
            None,
            checkpoint,
            data=data,
            settings=settings,
            base=base,
            allow_unrelated=allow_unrelated,
            remote_code=remote_code,
            tokenizer_of=tokenizer_of,
        )
        with registration.open_candidate(self._workspace, request) as candidate:
            return registration.check_candidate(self._workspace, candidate)

    def alias(self, ref: str, alias: str, *, protect: bool = False, force: bool = False) -> str | None:
        """Point `alias`, a name, at the version `ref`, and return the version it pointed at before, if any.

        With `protect` it is from then on moved and deleted with `force` alone (ConflictError without).
        """
        self._workspace.check_owner()
        return self.catalog.set_alias(self.resolve(ref), check_alias(alias), protect=protect, force=force)

    def remove_alias(self, name: str, alias: str, *, force: bool = False) -> None:
        """Delete `name@alias` (NotFoundError: `name` has no such `alias`; ConflictError: it is protected)."""
        self._workspace.check_owner()
        check_has_alias(self.catalog, name, alias)
        self.catalog.delete_alias(name, alias, force=force)

    # -- composing ---------------------------------------------------------------------------------------------------

    def plan(
        self,
        experts: Sequence[str],
        recipe: composition_.Recipe | None = None,
        *,
        base: str | None = None,
        from_base: int | None = None,
    ) -> composition_.Plan:
        """Return what a composition will be, without reading a weight.

        Args:
            experts: base models too, where the recipe needs no statistics of them.
            from_base: with no `experts`: so many copies of the base model are the experts of a mixture (sparse
                upcycling, Komatsuzaki et al. 2023), 2 or more, with trunk `base` and router `random`, which are the
                default recipe then.

        Raises IncompatibleError if the members cannot be composed with each other, InvalidInputError if the recipe
        does not fit them.
        """
        return composition_.plan_composition(self._workspace, experts, recipe, base=base, from_base=from_base)

    def compose(
        self,
        experts: Sequence[str],
        out: PathLike | composition_.Destination,
        recipe: composition_.Recipe | None = None,
        *,
        base: str | None = None,
        from_base: int | None = None,
        force: bool = False,
    ) -> composition_.Plan:
        """Write the composition of `experts` to `out`, and return its plan (arguments as `plan`).

        Args:
            out: a folder that does not exist or is empty; or the URL of a prefix in a bucket, as a text: s3://…, gs://…,
                az://….; or a `Destination` that was checked.
        """
        return composition_.compose(self._workspace, experts, out, recipe, base=base, from_base=from_base, force=force)

    def write(
        self,
        plan: composition_.Plan,
        folder: Path,
        *,
        replace: bool = False,
        record: Callable[[], None] | None = None,
    ) -> None:
        """Write a planned composition to a folder, without recording it in the catalog.

        Args:
            plan: a result of `plan`.
            folder: absent, empty, or with `replace` an earlier composition.
            record: called when everything is written, just before the folder appears; None for a folder that is soon
                deleted again.
        """
        composition_.write_plan(self._workspace, plan, folder, replace=replace, record=record)

    def likeness(
        self, experts: Sequence[str], files: Sequence[PathLike], *, base: str | None = None, device: str | None = None
    ) -> dict[str, float]:
        """Return, for each of `experts`, the share of documents in `files` that it is nearest to, where it is not 0.

        The base model embeds them. Use the result as weights of a dense composition:
        `Recipe(to="dense", trunk="mean", weights=…)`.
        """
        check_files(files, "files")
        return dense.document_shares(self._workspace, experts, files, base=base, device=device)

    def fit(
        self,
        experts: Sequence[str],
        files: Sequence[PathLike],
        recipe: composition_.Recipe | None = None,
        settings: training.FitSettings | None = None,
        *,
        base: str | None = None,
    ) -> training.Fitted:
        """Fit a coefficient for the task vector of each of `experts` to text, and return the recipe that has them.

        `Registry.compose` with that recipe writes the model, `Recipe(to="dense", trunk="task-arithmetic")` by default.

        Args:
            recipe: how they are combined, without coefficients.

        Raises CalibrationError if there is too little text, InvalidInputError if the recipe makes no dense model of
        task vectors, or a loss is NaN or infinite.
        """
        check_files(files, "files")
        return training.fit_coefficients(self._workspace, experts, files, recipe, settings, base=base)

    def instantiate(
        self,
        soup: str,
        out: PathLike,
        *,
        weights: Mapping[str, float] | None = None,
        like: Sequence[PathLike] = (),
        fit: Sequence[PathLike] = (),
        settings: training.FitSettings | None = None,
        force: bool = False,
    ) -> soup_.Instantiated:
        """Write the dense model of a soup for some domain weights to the folder `out`, as a composition.

        One of `weights`, `like` and `fit` says what it is for. Returns its plan, domain weights and coefficients.

        Args:
            soup: a name or version that `train_soup` registered the shared weights under.
            weights: domain → weight, 0 or more, in any unit; domains that are not named have 0.
            like: files of documents, of which the domain weights are the histogram over the nearest domains.
            fit: files of text that the coefficients are fitted to by gradient, without domain weights.
            settings: settings of the fit; of `like`, its device.

        Raises InvalidInputError if it is no soup, or the weights are not those of its domains, and ConflictError if
        one of its experts was opted out: they were trained together.
        """
        check_files([*require_list(like, "like"), *require_list(fit, "fit")])
        soup_.check_soup(self.resolve(soup))
        return soup_.instantiate(
            self._workspace, soup, out, weights=weights, like=like, fit=fit, settings=settings, force=force
        )

    def preview(
        self, experts: Sequence[str], recipe: composition_.Recipe | None = None, *, base: str | None = None
    ) -> composition_.Preview:
        """Return where a composition's routers will send each expert's tokens, predicted from statistics alone.

        No weight is read. Passes of tokens (`refine`) are not simulated: the figures are those
        without them, and the preview says so. Arguments as `plan`.
        """
        return composition_.preview_composition(self._workspace, experts, recipe, base=base)

    def suggest(
        self,
        files: Sequence[PathLike],
        *,
        budget: int | None = None,
        max_bytes: int | None = None,
        must: Sequence[str] = (),
        without: Sequence[str] = (),
    ) -> composition_.Suggestion:
        """Return which experts to compose for text like that of `files`, predicted from counts of tokens alone.

        One expert after another is chosen, that which lowers the predicted loss of the text most, as long as it does so
        by 3 %. No model runs. If nobody knows the text, the result says so, and has the nearest.

        Args:
            budget: choose so many at most.
            max_bytes: weights that the default mixture of them has at most (IncompatibleError: none can be made).
            must: experts to choose first; others are those that can stand beside them.
            without: experts not to choose.

        Raises InvalidInputError if `must` and `without` contradict each other, or leave no expert, or no room, and
        IncompatibleError if none has counts of tokens.
        """
        check_files(files, "files")
        _ = [
            self.resolve(ref, kind="expert") for ref in (*require_list(must, "must"), *require_list(without, "without"))
        ]
        return composition_.suggest_experts(
            self._workspace, files, budget=budget, max_bytes=max_bytes, must=must, without=without
        )

    def proxy(
        self,
        experts: Sequence[str],
        files: Sequence[PathLike],
        out: PathLike,
        *,
        base: str | None = None,
        documents: int = 500,
        device: str | None = None,
    ) -> list[training.ProxyText]:
        """Write the public documents nearest to each of `experts` to a file each, and return what was chosen.

        Routers can be trained on them where no expert's text is at hand (FlexOlmo §3.3.3). A document may be chosen for
        several experts (IncompatibleError: one has no statistics of its MLP inputs, or there is no base model).

        Args:
            files: public text.
            out: a folder, in which each expert has `NAME.jsonl`.
            base: the base model, in which documents are compared.
            documents: number for each expert; if there are fewer, it gets all.
        """
        check_files(files, "files")
        training.check_proxy(self._workspace, experts, out, base=base)
        return training.proxy_text(self._workspace, experts, files, out, base=base, documents=documents, device=device)

    def train_router(
        self,
        folder: PathLike,
        out: PathLike,
        data: Sequence[str],
        settings: training.TrainSettings,
        *,
        force: bool = False,
        record: bool = True,
    ) -> training.Trained:
        """Train the routers of a composed folder on text alone, and return the result (arguments as `train`)."""
        require_composed(Path(folder))
        check_paths(Path(folder).absolute(), Path(out).absolute(), data, replace=force)
        return training.train_mixture(self._workspace, folder, out, data, settings, force=force, record=record)

    def train(
        self,
        folder: PathLike,
        out: PathLike,
        data: Sequence[str],
        settings: training.MixtureTraining,
        *,
        force: bool = False,
        record: bool = True,
    ) -> training.Trained:
        """Train weights of a composed mixture on text: routers alone, expert MLPs, or all; and return the result.

        Under a launcher (torchrun) all processes call this, the first one writes, and all return the same.

        Raises InvalidInputError if its routers would get no gradient, or a loss is not finite.

        Args:
            data: files of text, or names of members whose calibration tokens were kept.
            record: store the tensors that change, and record the result in the catalog.
        """
        require_composed(Path(folder))
        check_paths(Path(folder).absolute(), Path(out).absolute(), data, replace=force)
        return training.train_mixture(self._workspace, folder, out, data, settings, force=force, record=record)

    def reproduce(self, folder: PathLike, out: PathLike | None = None) -> composition_.Reproduction:
        """Compose a folder again from its own `composition.json`, and return how every byte of every file compares.

        Of a trained folder, the stored tensors replace those of its parent (NotFoundError: one is not stored).

        Args:
            folder: a composed folder; its members must be registered here and active, by name and digest.
            out: where to keep the new folder, absent or empty; without it that folder is deleted.
        """
        require_composed(Path(folder))
        return composition_.reproduce_folder(self._workspace, Path(folder), None if out is None else Path(out))

    def export(
        self, ref: str, out: PathLike, *, as_lora: bool = False, rank: int | None = None, base: str | None = None
    ) -> VersionRecord:
        """Write the version `ref` to `out` as the dense folder it was registered from, bit for bit, and return it.

        Args:
            as_lora: write PEFT's folder, `adapter_config.json` and `adapter_model.safetensors`: of an adapter as they
                came; of an expert that was trained in full its change of the base model at low rank.
            rank: the rank of that; by default as many of each matrix as keep 90 % of the change.
            base: the base model; by default the only one.

        Raises:
            InvalidInputError: a rank or a base model was given, and `as_lora` was not, or the version is an adapter; or
                the rank is less than 1.
            IncompatibleError: the expert has tensors of other shapes than the base model.
        """
        self.resolve(ref)
        check_output(Path(out), replace=None)
        return composition_.export(self._workspace, ref, out, as_lora=as_lora, rank=rank, base=base)

    # -- measuring ---------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        folders: Sequence[PathLike],
        data: Mapping[str, Sequence[PathLike]],
        settings: evaluation.TestSettings | None = None,
        *,
        baselines: bool = False,
        oracle: bool = False,
        speed: bool = False,
        experts: Sequence[str] = (),
        methods: Sequence[str] = (),
        base: str | None = None,
        seeds: int | None = None,
        active_experts: Sequence[int] | Literal["all"] = (),
        recipe: composition_.Recipe | None = None,
        sweep: Mapping[str, Sequence[Any]] | None = None,
    ) -> list[evaluation.Row]:
        """Return perplexity per domain, and the normalised score where a domain's own expert is registered.

        The figures of a composition that was made here are stored with it.

        Args:
            folders: model folders; the first one's tokenizer makes the windows, and no other may contradict it.
            data: domain → test files. A domain's own expert is the one of its name: the version in the first folder's
                `composition.json`, else the newest active one.
            baselines: add rows for the base model, the domains' experts and their averaged weights, where registered.
            oracle: for every mixture, add a row with each domain's tokens sent to the domain's expert, its upper bound.
            speed: for every mixture, also measure the time of a token, relative to a dense expert's.
            experts: compose these by each of `methods` and of `sweep` too, into folders that are deleted again.
            methods: names of `registry.evaluation.METHODS`, or `all`.
            seeds: seeds of methods with randomness, 1 or more; default five, or three if their routers are trained.
            active_experts: for each folder, which must be a mixture, add a row for each of these numbers of experts per
                token, from 1 to its number of experts; `all` for every one. Nothing is written.
            recipe: what `sweep` changes one field of; default the default recipe.
            sweep: one field of it and its values, as in {"lam": [0.01, 0.1]}: a row for each.
        """
        active = evaluation.check_model_folders(self._workspace, folders, active_experts, text=data)
        wanted = evaluation.Wanted(baselines, oracle, speed, tuple(require_list(methods, "methods")), seeds, active)
        return evaluation.evaluate_registered(
            self._workspace,
            folders,
            data,
            settings,
            wanted,
            experts=experts,
            base=base,
            sweep=evaluation.Sweep(sweep or {}, recipe or composition_.Recipe()),
        )

    def doctor(
        self,
        folder: PathLike,
        data: Mapping[str, Sequence[PathLike]] | None = None,
        *,
        quick: bool = False,
        device: str | None = None,
    ) -> doctor_.Diagnosis:
        """Examine any model folder, from its files to what it writes, and return the findings and a verdict.

        `registry.doctor.diagnose(None, folder)` does so without a registry, which knows a composition's members.

        Args:
            folder: a model folder, dense or a mixture, composed here or not (CheckpointError: there is none; whatever
                is wrong with one is a finding).
            data: domain → files of text to run it on; default text of its members, kept or sampled, else built-in text.
            quick: read files and weights, and run nothing.
        """
        return doctor_.diagnose(self._workspace, folder, data, quick=quick, device=device, progress=self.progress)

    def audit_extraction(
        self,
        folders: Sequence[PathLike],
        data: Sequence[PathLike],
        settings: evaluation.ExtractionSettings | None = None,
    ) -> list[evaluation.Extraction]:
        """Return how many documents each model continues nearly word for word from their first tokens, and no text.

        The figures of a composition that was made here are stored with it.

        Args:
            folders: model folders with one tokenizer, that of the first.
            data: files of text, such as what an expert was trained on.

        Raises CalibrationError if no document is long enough, CheckpointError if a folder holds no model, or has
        another tokenizer than the first, and InvalidInputError if a model takes fewer tokens.
        """
        example = "reg audit-extraction moe/ --data FILE"
        evaluation.check_model_folders(self._workspace, folders, text={"text": data}, example=example)
        return evaluation.audit_registered(self._workspace, folders, data, settings)

    def continual(
        self,
        schedule: Sequence[str],
        data: Mapping[str, Sequence[PathLike]],
        settings: evaluation.TestSettings | None = None,
        recipe: composition_.Recipe | None = None,
        *,
        base: str | None = None,
    ) -> evaluation.Continual:
        """Return every domain's score after each expert of `schedule` has joined, and the forgetting.

        Args:
            schedule: experts in the order in which they join.
            data: the name of each → test files.
            recipe: how those so far are composed; top_k is at most their number, and weights are those of who is there.
        """
        check_files(data)
        return evaluation.continual_registered(self._workspace, schedule, data, settings, recipe, base=base)

    def report(
        self,
        composition: PathLike,
        data: Mapping[str, Sequence[PathLike]] | None = None,
        settings: evaluation.TestSettings | None = None,
    ) -> report_.ReportData:
        """Return the figures of a composition's report; `registry.report.page` renders them as HTML.

        Routing and scores are measured on `data`, else taken from the widest stored evaluation; else
        routing is predicted from statistics (`preview`). A figure that is not available is left out, and noted.

        Args:
            composition: a composed folder, or the beginning of the digest of a composition made here, 6 digits or more.
            data: domain → test files, for a folder; adds rows for base model, experts, their average and the oracle.
        """
        report_.check_source(self.catalog, composition)
        check_files(data or {})
        return report_.build_report(self._workspace, composition, data, settings)

    def bom(self, folder: PathLike, out: PathLike | None = None, *, replace: bool = False) -> report_.BillOfMaterials:
        """Write the bill of materials of a composed folder, an ML-BOM in CycloneDX 1.7, and return what is unknown.

        Args:
            folder: a composed folder, unchanged.
            out: the file; default `bom.cdx.json` in the folder, which is replaced.
            replace: replace `out` (OutputError: it exists and this is False, or it is another file of the folder).

        Raises StorageError if cyclonedx-python-lib is not installed.
        """
        require_composed(Path(folder))
        return report_.write_bom(self._workspace, folder, out, replace=replace)

    def export_gguf(
        self,
        folder: PathLike,
        out: PathLike,
        type: str | None = None,  # noqa: A002 - llama.cpp's word
        *,
        llama_cpp: PathLike | None = None,
        importance: bool = True,
        pre_tokenizer: str | None = None,
        replace: bool = False,
    ) -> gguf.GgufExport:
        """Write a composed folder as GGUF for llama.cpp, whose converter and programs do it, and return the files.

        llama.cpp's tokens of some text are compared with the tokenizer's before anything is kept.

        Args:
            folder: a composed folder, unchanged.
            out: a file; of adapters a folder, for their base model and a LoRA for each expert.
            type: f32, f16, bf16, q8_0, or a type of fewer bits: q6_K, q5_K_M, q4_K_M, iq4_XS, q4_0, q3_K_M, q2_K; by
                default the one that holds the weights exactly.
            llama_cpp: the folder of llama.cpp's source; by default the one whose converter is on PATH.
            importance: weigh errors of fewer bits by the members' statistics.
            pre_tokenizer: llama.cpp's name of the rules that cut text as the tokenizer does, where it does not know it.
            replace: replace `out`, a file.

        Raises:
            NotFoundError: there is no llama.cpp, or not the program that the type needs; no such base model.
            IncompatibleError: llama.cpp knows no such model, cuts text into other tokens, or lacks what an adapter has.
            CheckpointError: llama.cpp fails.
        """
        require_composed(Path(folder))
        return gguf.export_gguf(
            self._workspace, folder, out, type,
            llama_cpp=llama_cpp, importance=importance, pre_tokenizer=pre_tokenizer, replace=replace,
        )  # fmt: skip

    def quantize(
        self, folder: PathLike, out: PathLike, scheme: str = "w4a16", *, statistics: bool = True
    ) -> quantization_.Quantized:
        """Write a composed folder in few bits, as compressed-tensors, and return what was rounded, and how well.

        Args:
            folder: a composed folder, unchanged.
            scheme: w4a16 or w8a16, integers of 4 or 8 bits; or fp8, float8 to the nearest, activations too in servers.
            statistics: round by GPTQ with the members' Grams, where they are registered here with statistics.

        Raises:
            IncompatibleError: the folder brings a modelling file, or its host stacks experts in one tensor.
            StorageError: compressed-tensors is not installed.
        """
        require_composed(Path(folder))
        return quantization_.quantize(self._workspace, folder, out, scheme, statistics=statistics)

    # -- the Hub -----------------------------------------------------------------------------------------------------

    def push(
        self,
        folder: PathLike,
        target: hub.Target | str,
        *,
        license: str | None = None,  # noqa: A002 - the field's word
        sign: PathLike | hub.Sign | None = None,
    ) -> hub.Pushed:
        """Push a composed folder to the Hub in one commit, compare what arrived, and return the commit.

        The folder must be, byte for byte, what was composed. What the registry knows beyond it (scores, members' Hub
        repositories, languages) is added to the card that is pushed.

        Args:
            target: the repository; a text is `ORG/NAME[@REVISION]`.
            license: the license of the whole; default the roll-up of the members' licenses.
            sign: a key to sign the folder with (`registry.signing.sign`), or `registry.signing.signer` of it; a
                signature in the folder is pushed in any case.

        Raises InvalidInputError if the members' licenses give none for the whole, ConflictError if a member was opted
        out, or the repository holds something else, and SignatureError if the key cannot sign.
        """
        require_composed(Path(folder))
        signer = sign if sign is None or callable(sign) else signing.signer(sign)
        return hub.push(self._workspace, folder, target, license, signer)

    def check_push(
        self,
        plan: composition_.Plan,
        target: hub.Target | str,
        *,
        license: str | None = None,  # noqa: A002 - the field's word
    ) -> None:
        """Refuse, before it is composed, what could not be pushed (arguments as `push`; `plan` is its plan)."""
        hub.check_push(self._workspace, plan, target, license)

    def push_expert(
        self, ref: str, target: hub.Target | str, *, calibration: bool = False, sign: PathLike | None = None
    ) -> hub.Pushed:
        """Push a registered expert to the Hub: checkpoint, statistics and `expert.json`; return the commit.

        `add_expert(name, "hf://ORG/NAME")` registers it elsewhere without data and without a forward pass, with the
        same content digest; if calibration tokens are not pushed, with the digest in `expert.json`.

        Args:
            ref: a version of an expert.
            target: the repository; a text is `ORG/NAME[@REVISION]` (ConflictError: it holds something else).
            calibration: push kept calibration tokens too; text that the expert sampled itself is always pushed.
            sign: an OpenSSH key to sign `expert.json` with (SignatureError: it cannot).
        """
        self.resolve(ref)
        return hub.push_expert(self._workspace, ref, target, calibration=calibration, sign=sign)

    # -- opting out --------------------------------------------------------------------------------------------------

    def opt_out(
        self, ref: str, *, purge: bool = False, receipt: PathLike | None = None, dry_run: bool = False
    ) -> opt_out_.OptOut:
        """Withdraw a version, or with a bare name all of its versions, from every later composition.

        Returns what was withdrawn and deleted, and where copies remain.

        Args:
            ref: `NAME` or `NAME@VERSION`.
            purge: delete its arrays too, except those that another version needs, and all else that the home holds of
                it; name, number, digest and times stay.
            receipt: a file to write the receipt to (OutputError: it exists, or cannot be written).
            dry_run: change nothing, write no receipt, and return what would be done, with who would get its tokens.
        """
        if receipt is not None:
            opt_out_.check_new_receipt(Path(receipt))
        return opt_out_.opt_out(self._workspace, ref, purge=purge, receipt=receipt, dry_run=dry_run)

    def opted_out(self, composition: PathLike) -> list[VersionRecord]:
        """Return the versions that a composition was made from and that were opted out since.

        Args:
            composition: a folder, or the beginning of the digest of a composition made here; of anything else the
                result is empty.
        """
        return opt_out_.opted_out_members(self._workspace, composition)

    def verify_receipt(self, file: PathLike, folders: Sequence[PathLike] = ()) -> opt_out_.ReceiptCheck:
        """Compare a receipt with the registry (withdrawn versions, deleted arrays, the log); return the differences.

        Args:
            file: a file that `opt_out` wrote (ConflictError: in another registry).
            folders: composed folders; each must be unchanged and hold nothing that was withdrawn.
        """
        opt_out_.check_receipt(Path(file))
        return opt_out_.verify_receipt(self._workspace, file, folders)

    def affected_by_opt_out(self, ref: str) -> list[VersionRecord]:
        """Return the versions that `opt_out(ref)` concerns, those withdrawn before included; `ref` as `opt_out`."""
        return versions_matching(self.catalog, ref)

    # -- looking -----------------------------------------------------------------------------------------------------

    def versions(
        self,
        *,
        kind: Kind | None = None,
        everything: bool = False,
        tags: Mapping[str, str] | None = None,
        search: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[VersionRecord]:
        """Return active versions by name and number, filtered by kind, tags and words.

        Args:
            kind: expert or base.
            everything: include those opted out.
            tags: only versions that have all of these.
            search: only versions in whose name, aliases, tags or beginning of the digest each of these words is found.
            limit: at most so many versions.
            offset: skip so many.
        """
        return self.catalog.versions(
            kind=kind, states=_states(everything), tags=tags, search=search, limit=limit, offset=offset
        )

    def count_versions(
        self,
        *,
        kind: Kind | None = None,
        everything: bool = False,
        tags: Mapping[str, str] | None = None,
        search: str | None = None,
    ) -> int:
        """Return how many versions `versions` would return without a limit (arguments as `versions`)."""
        return self.catalog.count_versions(kind=kind, states=_states(everything), tags=tags, search=search)

    def tag_counts(self, limit: int) -> list[TagCount]:
        """Return the tags of active versions with the number of versions of each, the `limit` most frequent first."""
        return self.catalog.tag_counts(limit)

    def resolve(self, ref: str, *, kind: Kind | None = None, states: Sequence[State] = ("active",)) -> VersionRecord:
        """Resolve a reference to a version, and return it.

        Args:
            kind: expert or base; None for either.
            states: the states that it may be in.
        """
        return self._workspace.resolve(ref, kind=kind, states=states)

    def member(self, version: VersionRecord) -> composition_.Member:
        """Return `version` with its arrays, as compositions read it (ConflictError: it was purged meanwhile)."""
        return composition_.load_member(self._workspace, version)

    def members(self, versions: Iterable[VersionRecord]) -> list[composition_.Member]:
        """Return those of `versions` that were not purged meanwhile, with their arrays."""
        return composition_.load_members(self._workspace, versions)

    def arrays_of(self, version: VersionRecord) -> list[ArrayLink]:
        """Return the arrays of `version`: role, name, digest, dtype and shape of each."""
        return self.catalog.arrays_of(version)

    def training_of(self, version: VersionRecord) -> TrainingRecord | None:
        """Return how `reg train-expert` trained `version`, with its loss curve; None if it was not trained so.

        A record of another form, which an imported checkpoint can hold, gives None and a remark.
        """
        return readable_training(self._workspace, version)

    def trained_biases(self, composition: CompositionRecord) -> dict[str, tuple[float, ...]]:
        """Return what the routers of a trained `composition` add to each expert's logits.

        Returns expert → number by layer; empty where it has no biases, or no training changed them, or a member was
        purged.
        """
        return composition_.trained_biases(self._workspace, composition)

    def log(
        self, subject: str | None = None, *, limit: int | None = None, before: int | None = None
    ) -> list[EventRecord]:
        """Return the log, newest first, of everything or of one name, version, alias's version or composition.

        Args:
            subject: its name; of a composition the beginning of its digest, 6 digits or more.
            limit: at most so many events.
            before: only events older than the one with this id.
        """
        return self.catalog.events(None if subject is None else logged_as(self.catalog, subject), limit, before)

    def compositions(self, ref: str | None = None) -> list[CompositionRecord]:
        """Return the recorded compositions, oldest first: all, or those made from a version or a name.

        Args:
            ref: `NAME` or `NAME@VERSION`; or the beginning of one composition's digest, 6 digits or more.
        """
        if ref is None:
            return self.catalog.compositions()
        matches = composition_of(self.catalog, ref)
        return self.catalog.compositions(self.affected_by_opt_out(ref)) if matches is None else [matches]

    def composition(self, digest: str) -> CompositionRecord | None:
        """Return the composition whose digest begins with `digest`, 6 digits or more; None if that is not a digest."""
        return composition_of(self.catalog, digest)

    def evaluations(self, composition: CompositionRecord) -> list[EvaluationRecord]:
        """Return the stored evaluations by scores of `composition`, the latest first."""
        return self.catalog.evaluations(composition.digest)

    def audits(self, composition: CompositionRecord) -> list[EvaluationRecord]:
        """Return the stored audits of extraction of `composition`, the latest first."""
        return self.catalog.audits(composition.digest)

    def relations(self, ref: str) -> tuple[registration.Relation, ...]:
        """Return the distance of the version `ref` to every other active version of its shape, the nearest first."""
        return registration.relations_of_version(self._workspace, ref)

    # -- maintenance -------------------------------------------------------------------------------------------------

    def verify(self) -> maintenance.Verification:
        """Re-hash everything that is registered, follow the log, and return the problems found."""
        return maintenance.verify(self._workspace)

    def gc(self, *, dry_run: bool = False) -> maintenance.Garbage:
        """Delete arrays that no version needs, and what interrupted commands left; return what that is.

        With `dry_run` only look for it.
        """
        return maintenance.collect_garbage(self._workspace, dry_run=dry_run)


def _states(everything: bool) -> Sequence[State]:
    return ALL_STATES if everything else ("active",)
