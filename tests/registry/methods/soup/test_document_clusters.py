"""Proves: clusters are those of k-means on the documents' embeddings; a soup is trained on them as on named domains."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from registry import Registry
from registry.calibration import Corpus
from registry.calibration.windows import encode
from registry.checkpoint import Checkpoint
from registry.errors import CalibrationError, InvalidInputError, RegError, StorageError
from registry.methods.soup import document_clusters
from registry.methods.soup.document_clusters import cluster_documents, kmeans_centres
from registry.progress import silent
from registry.runtime.loading import load_model, load_tokenizer
from tests.conftest import Zoo, files_of
from tests.models import sentences, write_jsonl
from tests.registry.methods.soup.conftest import settings_with, text_of


def embedder_of(zoo: Zoo) -> tuple[Checkpoint, Any, Any]:
    return Checkpoint(zoo.base), load_model(zoo.base, "float32", "cpu"), load_tokenizer(zoo.base)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A file of documents of three domains, one after the other by turns, of which there are 12, 8 and 4."""
    by_domain = [sentences(name, count) for name, count in (("code", 12), ("law", 8), ("math", 4))]
    longest = max(map(len, by_domain))
    turns = [lines[number] for number in range(longest) for lines in by_domain if number < len(lines)]
    return write_jsonl(tmp_path / "mixed.jsonl", turns)


def cluster(zoo: Zoo, files: Sequence[Path], count: int, scratch: Path, seed: int = 0) -> dict[str, list[str]]:
    scratch.mkdir()
    corpus = Corpus(files, load_tokenizer(zoo.base))
    found = cluster_documents(corpus, count, seed, embedder_of(zoo), scratch, silent)
    return {name: [document.text for document in documents] for name, documents in found.items()}


@pytest.mark.check
@torch.no_grad()
def test_clusters_are_a_fixed_point_of_lloyds_iteration(zoo: Zoo, mixed: Path, tmp_path: Path) -> None:
    found = cluster(zoo, [mixed], 3, tmp_path / "scratch")
    assert list(found) == ["cluster-1", "cluster-2", "cluster-3"]
    assert [len(texts) for texts in found.values()] == sorted(map(len, found.values()), reverse=True)
    checkpoint, model, tokenizer = embedder_of(zoo)
    corpus, seen = Corpus([mixed], tokenizer), list[torch.Tensor]()
    (*_, last) = checkpoint.family.mlps(model)
    last.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0][0]))
    embedded: dict[str, torch.Tensor] = {}
    for document in corpus:  # ours, for algorithm 3's encoder: the mean MLP input of the last layer
        model(input_ids=torch.tensor([encode(document, tokenizer)]))
        embedded[document.text] = seen.pop().double().mean(0)
    assert sorted(text for texts in found.values() for text in texts) == sorted(document.text for document in corpus)
    centres = {name: torch.stack([embedded[text] for text in texts]).mean(0) for name, texts in found.items()}
    for name, texts in found.items():  # Lloyd 1982: each point is nearest to the mean of its own cluster
        for text in texts:
            distances = {other: float((embedded[text] - centre).square().sum()) for other, centre in centres.items()}
            assert min(distances, key=distances.__getitem__) == name


@pytest.mark.check
def test_clusters_depend_on_documents_model_and_seed_alone(
    zoo: Zoo, mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cluster(zoo, [mixed], 3, tmp_path / "a")
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(mixed.read_bytes()))
    assert cluster(zoo, [tmp_path / "packed.jsonl.gz"], 3, tmp_path / "b") == first
    monkeypatch.setattr(document_clusters, "_BLOCK", 5)
    assert cluster(zoo, [mixed], 3, tmp_path / "c") == first
    monkeypatch.setattr(document_clusters, "FITTED", 6)  # the others join the nearest centre
    fewer = cluster(zoo, [mixed], 2, tmp_path / "d")
    assert sum(map(len, fewer.values())) == 24


def test_chats_stay_chats(zoo: Zoo, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(zoo.base)
    tokenizer.chat_template = "{% for message in messages %}<{{ message.content }}>{% endfor %}"
    rows: list[dict[str, Any]] = [{"messages": [{"role": "user", "content": text}]} for text in sentences("code", 3)]
    rows += [{"text": text} for text in sentences("law", 3)]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "scratch").mkdir()
    corpus = Corpus([tmp_path / "chats.jsonl"], tokenizer)
    checkpoint, model, _ = embedder_of(zoo)
    found = cluster_documents(corpus, 2, 0, (checkpoint, model, tokenizer), tmp_path / "scratch", silent)
    documents = [document for part in found.values() for document in part]
    assert sorted(documents, key=repr) == sorted(corpus, key=repr)
    assert sum(document.is_chat for document in documents) == 3


def test_centres_are_the_means_of_what_is_nearest() -> None:
    points = np.array([[0, 0], [0, 2], [10, 0], [10, 4]], dtype=np.float32)
    centres = kmeans_centres(points, 2, 0)
    assert sorted(centres.tolist()) == [[0.0, 1.0], [10.0, 2.0]]
    assert np.array_equal(centres, kmeans_centres(points, 2, 0))


@pytest.mark.check
def test_a_soup_of_clusters_is_that_of_the_same_domains(zoo: Zoo, mixed: Path, tmp_path: Path) -> None:
    settings = settings_with(support=2, tokens=3 * 2 * 32)
    with Registry(tmp_path / "clusters") as registry:
        trained = registry.train_soup("soup", zoo.base, {"all": [mixed]}, replace(settings, clusters=2))
        assert trained.document["training"]["clusters"] == 2
        content = registry.resolve("soup").content
        assert content is not None
        assert content["soup"]["domains"] == ["cluster-1", "cluster-2"]
        assert not files_of(registry.home.merged)
        found = registry.instantiate("soup", tmp_path / "out", like=[mixed]).domain_weights
        assert found.keys() == {"cluster-1", "cluster-2"}
        assert sum(found.values()) == pytest.approx(1.0)
        links = {link.name: link.digest for link in registry.arrays_of(registry.resolve("soup"))}
    parts = cluster(zoo, [mixed], 2, tmp_path / "scratch")
    domains = {name: [write_jsonl(tmp_path / f"{name}.jsonl", texts)] for name, texts in parts.items()}
    with Registry(tmp_path / "domains") as registry:
        plain = registry.train_soup("soup", zoo.base, domains, settings)
        assert "clusters" not in plain.document["training"]
        expected = {link.name: link.digest for link in registry.arrays_of(registry.resolve("soup"))}
    weights = [name for name in expected if name.endswith(".weight")]
    assert weights
    assert {name: links[name] for name in weights} == {name: expected[name] for name in weights}


def test_too_little_text_is_refused(registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    cases: list[tuple[list[str], dict[str, Any], type[RegError], str, str]] = [
        (["a b"] * 5, {"clusters": 1}, InvalidInputError, "clusters is 1, the least is 2", "--clusters 2 or more"),
        (["one", "b"], {"clusters": 3}, CalibrationError, "2 documents cannot make 3 clusters", "--clusters 2 or less"),
        (["a b c"] * 5, {"clusters": 2}, CalibrationError, "fall into 1 cluster, not 2: too few differ", "other text"),
        (["a"] * 3, {"clusters": 2, "support": 3}, InvalidInputError, "support is 3, and there are 2", "--support 2"),
        ([], {"clusters": 2}, CalibrationError, "0 documents cannot make 2 clusters", "more text"),
    ]
    for lines, changes, kind, message, hint in cases:
        path = write_jsonl(tmp_path / "text.jsonl", lines)
        with pytest.raises(kind, match=message) as caught:
            registry.train_soup("soup", zoo.base, {"text": [path]}, settings_with(**{"support": None} | changes))
        assert hint in str(caught.value.hint)
    assert registry.versions() == []
    assert not files_of(registry.home.merged)


def test_a_cluster_without_a_window_and_a_missing_library_are_named(
    registry: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = Corpus([write_jsonl(tmp_path / "text.jsonl", ["a"])], load_tokenizer(zoo.base))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("registry.calibration.windows.start_token", lambda _: None)
        module = import_module("registry.methods.soup.train")
        patch.setattr(module, "cluster_documents", lambda *_: {"cluster-1": empty, "cluster-2": empty})
        with pytest.raises(CalibrationError, match=r"domain cluster-1: .*there is no token to predict") as caught:
            registry.train_soup("soup", zoo.base, text_of(zoo), settings_with(clusters=2, seq_len=2, tokens=8))
    assert caught.value.hint == "give fewer --clusters, or more text with --domains"
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(StorageError, match="scikit-learn") as missing:
        registry.train_soup("soup", zoo.base, text_of(zoo), settings_with(clusters=2))
    assert missing.value.hint == "run: pip install 'expert-registry[train]'"
