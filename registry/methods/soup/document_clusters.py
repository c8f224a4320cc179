"""Domains of a soup that nobody named: k-means of the documents' embeddings.

A document is embedded by the base model as `--like` embeds it: its mean MLP input in the last layer. (Ablin et al.
2025, §3, take an encoder, and cluster twice.) k-means (Lloyd 1982; beginnings by k-means++, Arthur & Vassilvitskii
2007) is fitted to `FITTED` documents at most, at equal distances, and every document joins the nearest of the K
centres. Clusters are numbered by size, and of equal size by their first document.

Embeddings are in a file, and each cluster's documents are copied to a file of their own, so that memory does not grow
with the text.

Shapes: N documents, H hidden size, K clusters.
"""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from registry.calibration import Corpus
from registry.calibration.corpus import Document
from registry.checkpoint import Checkpoint
from registry.composition.document_means import document_means
from registry.errors import CalibrationError, StorageError
from registry.io.display import counted
from registry.names.reference import copy_name
from registry.progress import Progress

FITTED = 32_768
"""Most documents that k-means is fitted to; the others join the nearest centre."""

BEGINNINGS = 4
"""Times that k-means begins; the result of least inertia is taken."""

_NONE = -1
_BLOCK = 4096


class ClusterCorpus(Corpus):
    """The documents of one cluster, which each iteration reads from a file of their own."""

    def __init__(self, path: Path, label: str) -> None:
        self.paths, self._label = (path,), label

    @property
    def label(self) -> str:
        """The cluster's name, and the files that it is of."""
        return self._label

    def __iter__(self) -> Iterator[Document]:
        with self.paths[0].open(encoding="utf-8") as file:
            for line in file:
                text, messages, tools = json.loads(line)
                yield Document(text, messages and tuple(messages), tools)


def check_clustering() -> None:
    """Raise StorageError if scikit-learn, which clusters documents, is not installed."""
    if importlib.util.find_spec("sklearn") is None:
        raise StorageError("clusters of documents need scikit-learn", "run: pip install 'expert-registry[train]'")


def cluster_documents(
    corpus: Corpus, count: int, seed: int, embedder: tuple[Checkpoint, Any, Any], scratch: Path, progress: Progress
) -> dict[str, Corpus]:
    """Return the name of each of K = `count` ≥ 2 clusters, which sort by number, and its documents.

    Equal documents, model and seed give equal clusters on one kind of machine. `embedder` is the base model's
    checkpoint, the model and its tokenizer; the empty folder `scratch` must outlive the result.

    (CalibrationError: there are fewer documents than clusters, or too few that differ.)
    """
    checkpoint, model, tokenizer = embedder
    documents = sum(1 for _ in corpus)
    _check_enough(corpus, documents, count)
    size = checkpoint.architecture.hidden_size
    embedded = np.memmap(scratch / "embeddings", np.float32, "w+", shape=(documents, size))
    known = np.zeros(documents, dtype=bool)
    for number, mean in document_means(checkpoint, model, corpus, tokenizer, progress):
        embedded[number], known[number] = mean[-1].float().numpy(), True
    _check_enough(corpus, int(known.sum()), count)
    numbers = _numbers(embedded, known, count, seed)
    found = len(np.unique(numbers[known]))
    if found < count:
        raise CalibrationError(
            f"the documents of {corpus.label} fall into {counted(found, 'cluster')}, not {count}: too few differ",
            f"give --clusters {found}, or other text" if found > 1 else "give other text with --domains",
        )
    names = [copy_name("cluster", number, count) for number in range(1, count + 1)]
    paths = [scratch / f"{name}.jsonl" for name in names]
    for document, number in zip(corpus, numbers, strict=True):
        if number != _NONE:
            with paths[number].open("a", encoding="utf-8") as file:
                file.write(json.dumps([document.text, document.messages, document.tools]) + "\n")
    return {name: ClusterCorpus(path, f"{name} of {corpus.label}") for name, path in zip(names, paths, strict=True)}


def _check_enough(corpus: Corpus, documents: int, count: int) -> None:
    if documents < count:
        raise CalibrationError(
            f"{corpus.label}: {counted(documents, 'document')} cannot make {count} clusters",
            f"give --clusters {documents} or less, or more text" if documents > 1 else "give more text with --domains",
        )


def _numbers(
    embedded: npt.NDArray[np.float32], known: npt.NDArray[np.bool_], count: int, seed: int
) -> npt.NDArray[np.int64]:
    """Return the number of each document's cluster, from 0, the largest first; `_NONE` of one without a token."""
    places = np.flatnonzero(known)
    labels = np.full(len(known), _NONE, dtype=np.int64)
    fitted = places if len(places) <= FITTED else places[(np.arange(FITTED) * len(places)) // FITTED]
    centres = torch.from_numpy(kmeans_centres(embedded[fitted], count, seed))
    for start in range(0, len(places), _BLOCK):
        some = places[start : start + _BLOCK]
        labels[some] = torch.cdist(torch.from_numpy(embedded[some]).double(), centres).argmin(dim=1).numpy()
    used, firsts = np.unique(labels[places], return_index=True)
    first = dict(zip(used.tolist(), firsts.tolist(), strict=True))
    sizes = np.bincount(labels[places], minlength=count)
    order = sorted(range(count), key=lambda label: (-int(sizes[label]), first.get(label, len(labels))))
    ranks = np.empty(count, dtype=np.int64)
    ranks[order] = np.arange(count)
    return np.where(known, ranks[labels], _NONE)


def kmeans_centres(points: npt.NDArray[np.float32], count: int, seed: int) -> npt.NDArray[np.float64]:
    """Return the centres of k-means, (K, H), on one thread, so that they do not depend on the number of threads."""
    import warnings

    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # too few points that differ: the caller counts clusters
        fitted = KMeans(count, n_init=BEGINNINGS, random_state=seed % 2**32, algorithm="lloyd").fit(points)
    return np.asarray(fitted.cluster_centers_, dtype=np.float64)
