"""Proves: documents find the expert whose text they are like, and the shares are weights for a dense composition."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.errors import CalibrationError, IncompatibleError, NotFoundError
from tests.conftest import SETTINGS, Zoo
from tests.models import make_model, save_checkpoint, sentences, write_jsonl
from tests.registry.composition.composed import add_model

DOMAINS = ("code", "law", "math")


def documents(domain: str, count: int) -> list[str]:
    """Return documents that no expert has seen, long enough to tell what they are about."""
    texts = sentences(domain, 5 * count, seed=1)
    return [" ".join(texts[number::count]) for number in range(count)]


def registered(root: Path, tokenizer: Any, family: str) -> Registry:
    """Return a registry of a base and three experts that are near to it, as fine-tuned ones are."""
    registry = Registry(root / "home")
    registry.add_base("base", save_checkpoint(make_model(family, 100), root / "base", tokenizer), remote_code=True)
    for seed, name in enumerate(DOMAINS, start=101):
        data = [write_jsonl(root / f"{name}.jsonl", sentences(name, 60))]
        add_model(registry, root / name, make_model(family, seed, distance=0.01), data=data, settings=SETTINGS)
    return registry


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Iterator[Registry]:
    with registered(tmp_path_factory.mktemp("near"), tokenizer, "llama") as registry:
        yield registry


@pytest.mark.check
def test_documents_find_the_expert_of_their_domain_and_the_shares_are_theirs(near: Registry, tmp_path: Path) -> None:
    for name in DOMAINS:
        shares = near.likeness(DOMAINS, [write_jsonl(tmp_path / f"{name}.jsonl", documents(name, 6))])
        assert shares.get(name, 0.0) > 0.8, shares
    assert list(near.home.work.iterdir()) == []
    mixed = [write_jsonl(tmp_path / f"{name}.jsonl", documents(name, n)) for name, n in (("law", 3), ("math", 1))]
    (tmp_path / "empty.jsonl").write_text('{"text": ""}\n')
    shares = near.likeness(DOMAINS[::-1], [*mixed, tmp_path / "empty.jsonl"])
    assert shares == {"law": 0.75, "math": 0.25}
    plan = near.plan(sorted(shares), Recipe(to="dense", weights=shares))
    assert plan.document["recipe"]["weights"] == shares


@pytest.mark.check
def test_family_that_no_native_host_carries_is_no_obstacle(tmp_path: Path, tokenizer: Any) -> None:
    """Only a dense model will be made of it."""
    with registered(tmp_path, tokenizer, "gpt_neox") as registry:
        data = write_jsonl(tmp_path / "law.jsonl", documents("law", 4))
        shares = registry.likeness(DOMAINS, [data])
        assert max(shares, key=shares.__getitem__) == "law"


def test_what_cannot_be_compared_is_refused(near: Registry, registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    empty = write_jsonl(tmp_path / "empty.jsonl", ["", ""])
    with pytest.raises(CalibrationError, match="holds no text") as caught:
        near.likeness(DOMAINS, [empty])
    assert caught.value.hint
    with pytest.raises(NotFoundError):
        near.likeness(["nobody"], [empty])
    registry.add_expert("code", zoo.experts["code"])
    with pytest.raises(IncompatibleError, match="and none is registered"):
        registry.likeness(["code"], [zoo.test["code"]])
