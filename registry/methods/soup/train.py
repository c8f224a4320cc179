"""Training of a soup from a base model, and its registration: the shared weights as a base model, and the experts."""

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from registry.calibration import Corpus
from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.checkpoint.annotations import Annotations
from registry.checkpoint.model_files import EXPERT_TRAINING
from registry.checkpoint.trained_files import pack_document
from registry.errors import CheckpointError, InvalidInputError
from registry.io.display import few
from registry.io.limits import JSON_BYTES
from registry.io.safetensors_file import Stream
from registry.io.torch_blocks import to_block, torch_dtype
from registry.io.work_dirs import temporary
from registry.methods.soup.document_clusters import check_clustering, cluster_documents
from registry.methods.soup.model import Soup
from registry.methods.soup.settings import SoupTraining
from registry.methods.soup.text import centroids, read_soup_windows
from registry.methods.soup.versions import SOUP_FILE, SOUP_ROUTER, pack_router
from registry.names.reference import copy_name
from registry.names.resolve import check_name_is_free
from registry.registration import Registration
from registry.runtime.loading import load_model, load_tokenizer
from registry.training.from_base import (
    TrainedFromBase,
    check_joint,
    joint_training,
    opened_base,
    register_trained,
    streams_like,
)
from registry.training.loop import training_document
from registry.training.training_windows import shortened
from registry.training.weight_trainer import WeightTrainer, device_and_dtype
from registry.workspace import PathLike, Workspace
from store.arrays import Block


@dataclass(frozen=True)
class TrainedSoup(TrainedFromBase):
    """The result of a training; held-out losses are of each domain's windows with all weight on the domain.

    The shared weights S are a base model, S + E_1 to S + E_n experts.
    """

    shared: Registration
    experts: tuple[Registration, ...]


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
    _check(workspace, name, files, settings)
    check_joint(workspace, name, settings.experts, "soup", "a soup", annotations)
    workspace.catalog.check_alias(name, annotations.alias if annotations else None)
    if os.fspath(base).partition("@")[0] in workspace.catalog.names():
        workspace.resolve(os.fspath(base), kind="base")
    progress = workspace.progress
    with ExitStack() as stack:
        checkpoint, holds = stack.enter_context(opened_base(workspace, base))
        _check_size(checkpoint, count)
        settings = replace(settings, seq_len=shortened(settings.seq_len, checkpoint.folder, progress))
        device, dtype = device_and_dtype(settings)
        with _corpora(workspace, files, checkpoint, settings, device, holds) as corpora:
            windows = read_soup_windows(corpora, checkpoint, load_tokenizer(checkpoint.folder), settings, progress)
            names = list(corpora)
        hashed = hash_checkpoint(checkpoint, progress)
        soup = _begin(checkpoint, device, count, settings)
        inputs = settings.inputs(count, device, dtype)
        inputs |= {"data": windows.all.digest, "domains": names, "base": hashed.weights}
        trainer = WeightTrainer(
            soup, list(soup.parameters()), windows, settings, dtype == "bfloat16", decays=soup.decays
        )
        what = f"shared weights, {settings.experts} expert{'s' if settings.experts > 1 else ''} and a router"
        losses = stack.enter_context(joint_training(workspace, "soup", name, trainer, inputs, holds, what))
        document = training_document(inputs, losses)
        router = soup.router(centroids(soup.model, checkpoint, windows, settings.batch_size))
        text = replace(windows.all, label=f"windows of the domains {few(names)}")
        own = {"domains": names, "experts": settings.experts, "support": settings.support_of(count)}
        parts = {
            SOUP_FILE: pack_document(own | {"rank": settings.rank, "data": windows.all.digest}),
            SOUP_ROUTER: pack_router(router),
            EXPERT_TRAINING: json.dumps(document, indent=2).encode(),
        }
        shared = register_trained(workspace, name, annotations, hashed, _streams(soup, checkpoint, None), parts)
        experts = []
        for number in range(settings.experts):
            expert, streams = copy_name(name, number + 1, settings.experts), _streams(soup, checkpoint, number)
            part = {SOUP_FILE: pack_document({"soup": shared.version.digest, "number": number + 1})}
            experts.append(register_trained(workspace, expert, annotations, hashed, streams, part, text))
    return TrainedSoup(document, losses, windows.predicted, shared, tuple(experts))


def _check(workspace: Workspace, name: str, files: Mapping[str, Sequence[Path]], settings: SoupTraining) -> None:
    """Check what a training is given (errors as `train_soup`)."""
    check_name_is_free(workspace.catalog, name, "base")
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


def _streams(soup: Soup, checkpoint: Checkpoint, expert: int | None) -> list[Stream]:
    """Return the tensors of the shared weights S, or with the number of an expert of S + E_j."""

    def blocks(name: str) -> list[Block]:
        return [to_block(soup.tensor(name, expert).to(torch_dtype(checkpoint.dtype_of(name))))]

    return streams_like(checkpoint, soup.names, blocks)
