"""Training of a soup from a base model, and its registration: the shared weights as a base model, and the experts."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from registry.calibration import Calibration, Corpus
from registry.checkpoint import Checkpoint, HashedCheckpoint, hash_checkpoint
from registry.checkpoint.annotations import Annotations
from registry.checkpoint.model_files import EXPERT_TRAINING, OWN_FILES, SOUP_FILE, SOUP_ROUTER
from registry.checkpoint.trained_files import pack_router, pack_soup
from registry.errors import CheckpointError, InvalidInputError
from registry.io.display import few
from registry.io.dtypes import AUTO
from registry.io.limits import JSON_BYTES
from registry.io.model_folder import fresh_folder, write_files, write_weights
from registry.io.safetensors_file import Stream
from registry.io.torch_blocks import to_block, torch_dtype
from registry.io.work_dirs import resumable, temporary
from registry.methods.soup.document_clusters import check_clustering, cluster_documents
from registry.methods.soup.model import Soup
from registry.methods.soup.settings import SoupTraining
from registry.methods.soup.text import centroids, read_soup_windows
from registry.methods.soup.trainer import SoupTrainer
from registry.names.reference import copy_name
from registry.names.resolve import check_name_is_free
from registry.registration import Registration
from registry.runtime.loading import device_name, load_model, load_tokenizer
from registry.runtime.upcast import is_fast
from registry.training.announcement import announce
from registry.training.expert.train_expert import opened_base
from registry.training.trained_together import (
    check_base,
    check_libraries,
    check_names,
    check_one_process,
    register_trained,
    write_counts,
)
from registry.training.training_windows import shortened
from registry.training.weight_trainer import Losses, curve
from registry.workspace import PathLike, Workspace
from store.arrays import Block
from store.catalog.records import Kind
from store.digest import json_digest
from store.lock import exclusive


@dataclass(frozen=True)
class TrainedSoup:
    """The result of a training.

    Attributes:
        document: the content of the `expert_training.json` of the shared weights.
        losses: the losses; those on held-out windows are of each domain's with all weight on the domain.
        tokens: the number of held-out tokens that `losses.before` and `losses.after` are averaged over.
        shared: the registration of the shared weights S, a base model.
        experts: the registrations of S + E_1 to S + E_n, experts.
    """

    document: dict[str, Any]
    losses: Losses
    tokens: int
    shared: Registration
    experts: tuple[Registration, ...]


@dataclass(frozen=True)
class _Result:
    """A trained soup that is about to be registered."""

    name: str
    soup: Soup
    hashed: HashedCheckpoint
    text: Calibration
    annotations: Annotations


def train_soup(
    workspace: Workspace,
    name: str,
    base: PathLike,
    domains: Mapping[str, Sequence[PathLike]],
    settings: SoupTraining,
    *,
    annotations: Annotations | None = None,
) -> TrainedSoup:
    """Train a soup from a base model, and register it (arguments and errors as `Registry.train_soup`).

    An interrupted training continues when it is started again, and gives the same bytes. On one machine with one number
    of threads, equal inputs give equal bytes.
    """
    files = {key: [Path(file) for file in domains[key]] for key in sorted(domains)}
    count = settings.clusters or len(files)
    check_one_process("a soup")
    _check(workspace, name, files, settings)
    check_base(workspace, base)
    progress, home = workspace.progress, workspace.home
    with ExitStack() as stack:
        checkpoint, holds = stack.enter_context(opened_base(workspace, base))
        _check_size(checkpoint, count)
        settings = replace(settings, seq_len=shortened(settings.seq_len, checkpoint.folder, progress))
        device = device_name(settings.device)
        with _corpora(workspace, files, checkpoint, settings, device, holds) as corpora:
            windows = read_soup_windows(corpora, checkpoint, load_tokenizer(checkpoint.folder), settings, progress)
            names = list(corpora)
        dtype = ("bfloat16" if is_fast("bfloat16", device) else "float32") if settings.dtype == AUTO else settings.dtype
        hashed = hash_checkpoint(checkpoint, progress)
        inputs = settings.document(count, device, dtype) | {
            "data": windows.all.digest,
            "domains": names,
            "base": hashed.weights,
        }
        soup = _begin(checkpoint, device, count, settings)
        weights = settings.weights
        announce(
            progress,
            f"shared weights, {settings.experts} expert{'s' if settings.experts > 1 else ''} and a router",
            sum(part.numel() for part in soup.parameters()),
            steps=weights.steps,
            tokens=weights.steps * weights.batch_size * weights.accumulate * weights.seq_len,
            device=device,
        )
        stack.enter_context(exclusive(home.output_lock(home.path / f"soup {name}"), f"training {name}"))
        state_path = stack.enter_context(resumable(home.partial, json_digest(["train-soup", name, inputs]), holds))
        scratch = stack.enter_context(temporary(home.merged, holds, prefix="trainer-"))
        trainer = SoupTrainer(soup, list(soup.parameters()), windows, weights, dtype == "bfloat16")
        losses = trainer.train(state_path, scratch, progress)
        document = {"format": 1, "training": inputs} | curve(losses)
        router = soup.router(centroids(soup.model, checkpoint, windows, settings.batch_size))
        result = _Result(
            name,
            soup,
            hashed,
            replace(windows.all, label=f"windows of the domains {few(names)}"),
            annotations or Annotations(),
        )
        own = {"domains": names, "experts": settings.experts, "support": settings.support_of(count)}
        shared = _register(
            workspace,
            result,
            None,
            {
                SOUP_FILE: pack_soup(own | {"rank": settings.rank, "data": windows.all.digest}),
                SOUP_ROUTER: pack_router(router),
                EXPERT_TRAINING: json.dumps(document, indent=2).encode(),
            },
        )
        experts = tuple(
            _register(
                workspace, result, number, {SOUP_FILE: pack_soup({"soup": shared.version.digest, "number": number + 1})}
            )
            for number in range(settings.experts)
        )
    held_out = int((windows.all.lengths[windows.held_out] - 1).sum())
    return TrainedSoup(document, losses, held_out, shared, experts)


def _check(workspace: Workspace, name: str, files: Mapping[str, Sequence[Path]], settings: SoupTraining) -> None:
    """Check what a training is given (errors as `train_soup`)."""
    workspace.check_owner()
    check_name_is_free(workspace.catalog, name, "base")
    check_names(workspace, name, settings.experts, "soup")
    if empty := [domain for domain, own in files.items() if not own]:
        raise InvalidInputError(f"domain {empty[0]} has no file", f"give --domains {empty[0]}=FILE")
    if settings.clusters is not None:
        if not files:
            raise InvalidInputError("there is no text to cluster", "give it: --domains FILE")
        check_clustering()
    elif len(files) < 2:
        raise InvalidInputError(
            f"a soup is trained on two domains or more, and {'one was' if files else 'none were'} named",
            "give --domains FILE for each domain, or --clusters K; to train on one: reg train-expert NAME --base B "
            "--data FILE",
        )
    if wrong := [domain for domain in files if not domain.isprintable() or "," in domain or "=" in domain]:
        raise InvalidInputError(
            f"{wrong[0]!r} is not a domain's name: it must be printable, without comma or equals sign",
            "name it: --domains NAME=FILE",
        )
    settings.support_of(settings.clusters or len(files))
    check_libraries()


@contextmanager
def _corpora(
    workspace: Workspace,
    files: Mapping[str, Sequence[Path]],
    checkpoint: Checkpoint,
    settings: SoupTraining,
    device: str,
    holds: Collection[str],
) -> Iterator[dict[str, Corpus]]:
    """Yield the documents of each domain: of its files, or of a cluster of all documents."""
    tokenizer = load_tokenizer(checkpoint.folder)
    if settings.clusters is None:
        yield {name: Corpus(own, tokenizer) for name, own in files.items()}
        return
    whole = Corpus([file for own in files.values() for file in own], tokenizer)
    with temporary(workspace.home.merged, holds, prefix="clusters-") as scratch:
        embedder = checkpoint, load_model(checkpoint.folder, "float32", device), tokenizer
        clusters = cluster_documents(whole, settings.clusters, settings.seed, embedder, scratch, workspace.progress)
        del embedder  # the model trains in another copy
        yield clusters


def _check_size(checkpoint: Checkpoint, domains: int) -> None:
    most = JSON_BYTES // 2 // (4 * checkpoint.architecture.hidden_size)
    if domains > most:
        raise InvalidInputError(
            f"there are {domains:,} domains, and the centroids of {most:,} can be stored for this base model",
            f"give --clusters {most:,} or less, or join files: --domains NAME=FILE with one name for several",
        )


def _begin(checkpoint: Checkpoint, device: str, domains: int, settings: SoupTraining) -> Soup:
    model = load_model(checkpoint.folder, "float32", device)
    names = (*checkpoint.trunk, *checkpoint.mlp)
    if missing := sorted(set(names) - {name for name, _ in model.named_parameters()}):
        raise CheckpointError(
            f"{checkpoint.label}: transformers loads {missing[0]} under another name, so it cannot be trained here",
            "choose another base model",
        )
    return Soup(model, names, domains, settings.experts, settings.hidden, settings.rank, settings.seed)


def _register(workspace: Workspace, result: _Result, expert: int | None, own: Mapping[str, bytes]) -> Registration:
    """Register the shared weights, or with the number of an expert S + E_j; its folder is deleted afterwards."""
    name: str = result.name
    kind: Kind = "base" if expert is None else "expert"
    if expert is not None:
        name = copy_name(name, expert + 1, len(result.soup.output.bias))
    return register_trained(
        workspace, name, kind, result.annotations, lambda folder: _write(folder, result, expert, own)
    )


def _write(folder: Path, result: _Result, expert: int | None, own: Mapping[str, bytes]) -> None:
    checkpoint = result.hashed.checkpoint
    streams = [
        Stream(
            name,
            checkpoint.dtype_of(name),
            checkpoint.shapes[name],
            partial(_blocks, result.soup, number, expert, checkpoint.dtype_of(name)),
        )
        for number, name in enumerate(result.soup.names)
    ]
    with fresh_folder(folder, replace=None, nbytes=sum(stream.nbytes for stream in streams)) as written:
        write_weights(written, streams, lambda _: None)
        files = {name: data for name, data in result.hashed.files.items() if name not in OWN_FILES}
        write_files(written, files | dict(own))
        if expert is not None:
            write_counts(written, result.hashed.checkpoint, result.text)


def _blocks(soup: Soup, number: int, expert: int | None, dtype: str) -> list[Block]:
    return [to_block(soup.tensor(number, expert).to(torch_dtype(dtype)))]
