"""Proves: out of mixed public text, each expert gets the documents of its own domain, in any order of experts."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from cli.main import main
from registry import PassSettings, Registry
from registry.calibration import Corpus
from registry.calibration.windows import encode
from registry.errors import CalibrationError, IncompatibleError, InvalidInputError, NotFoundError, OutputError, RegError
from registry.member import load_member
from registry.runtime.loading import load_model, load_tokenizer
from tests.conftest import files_of
from tests.models import WORDS, make_model, save_checkpoint, sentences, write_jsonl
from tests.remarks import Remarks

DOMAINS = ("code", "law", "math")
EACH = 6
LIMIT = 128  # tokens, which the model takes at most


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Iterator[Registry]:
    """A base model and three experts that are near to it, as fine-tuned ones are."""
    root = tmp_path_factory.mktemp("near")
    with Registry(root / "home") as registry:
        registry.add_base("base", save_checkpoint(make_model("llama", 100), root / "base", tokenizer))
        for seed, name in enumerate(DOMAINS, start=101):
            model = make_model("llama", seed, distance=0.01)
            data = write_jsonl(root / f"{name}.jsonl", sentences(name, 300))
            settings = PassSettings(tokens=4096, seq_len=32)
            registry.add_expert(name, save_checkpoint(model, root / name, tokenizer), data=[data], settings=settings)
        yield registry


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A file of documents of five domains in turn, with empty rows between, and document → domain."""
    domain_of: dict[str, str] = {}
    for name in WORDS:
        texts = sentences(name, 5 * EACH, seed=2)
        domain_of |= {" ".join(texts[number::EACH]): name for number in range(EACH)}
    in_turn = sorted(domain_of, key=lambda text: text[::-1])
    rows = [text for document in in_turn for text in (document, "")]
    return write_jsonl(tmp_path_factory.mktemp("public") / "public.jsonl", rows), domain_of


def documents(file: Path) -> list[str]:
    return [json.loads(line)["text"] for line in file.read_text().splitlines()]


@pytest.mark.check
def test_each_expert_gets_the_documents_of_its_domain(
    near: Registry, public: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    path, domain_of = public
    chosen = near.proxy(DOMAINS[::-1], [path], tmp_path / "proxy", documents=EACH, device="cpu")
    assert [one.name for one in chosen] == sorted(DOMAINS)
    for one in chosen:
        texts = documents(one.path)
        assert [domain_of[text] for text in texts].count(one.name) >= EACH - 1
        assert (one.documents, one.candidates, len(texts)) == (EACH, len(domain_of), EACH)
        assert one.best > one.least
        order = [text for text in documents(path) if text in texts]
        assert texts == order
    near.proxy(DOMAINS, [path], tmp_path / "again", documents=EACH, device="cpu")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "proxy")
    alone = near.proxy(["law"], [path], tmp_path / "alone", documents=1, device="cpu")
    assert documents(alone[0].path)[0] in documents(tmp_path / "proxy" / "law.jsonl")
    assert alone[0].best == alone[0].least == next(one.best for one in chosen if one.name == "law")
    own = near.proxy(DOMAINS, [path], tmp_path / "own", documents=EACH - 1, device="cpu")
    assert all(one.least > 0 for one in own)  # on the side of the expert
    every = near.proxy(DOMAINS, [path], tmp_path / "every", documents=len(domain_of), device="cpu")
    assert all(one.least < 0 for one in every)
    assert list(near.home.work.iterdir()) == []


def test_a_score_is_the_mean_over_layers_of_the_discriminant_with_a_documents_mean(
    near: Registry, public: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    path, _ = public
    folder = tmp_path / "base"
    near.export("base", folder)
    near.add_expert("public", folder, data=[path], allow_unrelated=True)  # statistics of as much public text
    law, other = (load_member(near._workspace, near.resolve(name)) for name in ("law", "public"))
    model, tokenizer = load_model(folder, "float32", "cpu"), load_tokenizer(folder)
    seen: list[torch.Tensor] = []
    for block in model.model.layers:
        block.mlp.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0][0].double().mean(dim=0)))
    scores = []
    for document in Corpus([path], tokenizer):
        if not (tokens := encode(document, tokenizer)[:LIMIT]):
            continue
        seen.clear()
        model(input_ids=torch.tensor([tokens]))
        products = []
        for layer, mean in enumerate(seen):  # FlexOlmo §3.3.3; w = (A_e + A_pub + 0.01 I)⁻¹ (s_e / n_e − s_pub / n_pub)
            own, theirs = (member.packed_statistics("mlp_input", layer).unpacked() for member in (law, other))
            damped = own.gram + theirs.gram + 0.01 * torch.eye(len(mean), dtype=torch.float64)
            w = torch.linalg.solve(damped, own.moment / own.count - theirs.moment / theirs.count)
            products.append(math.fsum(a * b for a, b in zip(w.tolist(), mean.tolist(), strict=True)))
        scores.append(math.fsum(products) / len(products))
    (chosen,) = near.proxy(["law"], [path], tmp_path / "proxy", base="base", documents=len(scores), device="cpu")
    # the Grams of both are sums in fixed point, and the documents' means those of float32 activations
    assert (chosen.best, chosen.least) == pytest.approx((max(scores), min(scores)), rel=1e-4)


def test_too_few_documents_are_all_taken(near: Registry, public: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    path, domain_of = public
    words = ["--home", str(near.home.path), "proxy", str(path), "--experts", "law,code", "--base", "base"]
    result = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "out"), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert f"has {len(domain_of)} documents: each expert gets all of them" in result.stderr
    assert f"{len(domain_of)} of {len(domain_of)}" in result.stdout
    assert f"next: reg --home {near.home.path} train-router FOLDER --data {tmp_path / 'out'}/" in result.stderr
    assert result.stdout.splitlines()[0].split("  ")[-1].strip() == "least score"
    assert "the larger,\nthe nearer to the expert, and below 0 nearer to the public text" in result.stdout
    assert documents(tmp_path / "out" / "law.jsonl") == [text for text in documents(path) if text]


def test_wrong_input_writes_nothing(
    near: Registry, public: tuple[Path, dict[str, str]], tmp_path: Path, tokenizer: Any
) -> None:
    path, out = public[0], tmp_path / "out"
    empty, folder = write_jsonl(tmp_path / "empty.jsonl", ["", ""]), tmp_path / "bare"
    save_checkpoint(make_model("llama", 104, distance=0.01), folder, tokenizer)
    counts = PassSettings(tokens=64, seq_len=32, sites="counts")
    near.add_expert("counted", folder, data=[path], settings=counts)
    cases: list[tuple[list[str], Path, type[RegError], str]] = [
        (["law"], empty, CalibrationError, "no text"),
        (["law"], tmp_path / "nosuch.jsonl", CalibrationError, "is not a file"),
        (["nobody"], path, NotFoundError, "nobody"),
        (["base"], path, InvalidInputError, "base@1 is a base model, which has no statistics of mlp_input"),
        (["counted", "law"], path, IncompatibleError, "which the comparison with public text needs"),
    ]
    for names, file, kind, message in cases:
        with pytest.raises(kind, match=message):
            near.proxy(names, [file], out)
    with pytest.raises(InvalidInputError, match="documents is 0"):
        near.proxy(DOMAINS, [path], out, documents=0)
    assert not out.exists()
    (out / "full").mkdir(parents=True)
    with pytest.raises(OutputError, match="out"):
        near.proxy(DOMAINS, [path], out)


def test_text_without_a_document_on_an_experts_side_is_remarked_on(near: Registry, tmp_path: Path) -> None:
    remarks = Remarks()
    files = {name: write_jsonl(tmp_path / f"{name}.jsonl", sentences(name, 3, seed=3)) for name in ("law", "math")}
    before, near.progress = near.progress, remarks
    try:
        chosen = near.proxy(["code", "law"], [files["law"], files["math"]], tmp_path / "out", documents=4, device="cpu")
    finally:
        near.progress = before
    scores = {one.name: one.best for one in chosen}
    assert scores["code"] < 0 < scores["law"]
    (found,) = [text for text in remarks.sentences if "below 0" in text]
    assert found.startswith("all documents chosen for code have scores below 0: ")
    assert found.endswith("has nothing on its side of the border; give public text with some of its kind")
