"""Proves: experts with tokens of their own compose as the union of vocabularies, and contradictions are named."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from registry import Recipe, Registry
from registry.checkpoint.tokenizer import tokenizer_conflict, tokenizer_digest
from registry.errors import CheckpointError, IncompatibleError
from tests.conftest import SETTINGS, Zoo, files_of
from tests.models import make_model, save_checkpoint, train_tokenizer
from tests.registry.composition.composed import FEW, json_of, tensors_of
from tests.registry.hosts.test_hosts import load
from tests.remarks import Remarks

ROWS = ("model.embed_tokens.weight", "lm_head.weight")


def grown(folder: Path, seed: int, *tokens: str, rows: int = 0) -> Path:
    """Write an expert whose tokenizer knows some more tokens, and whose matrices have as many more rows, or `rows`."""
    tokenizer = train_tokenizer()
    tokenizer.add_tokens(list(tokens))
    model, draw = make_model("llama", seed), torch.Generator().manual_seed(seed)
    model.resize_token_embeddings(320 + (rows or len(tokens)), mean_resizing=False)
    with torch.no_grad():
        for matrix in (model.get_input_embeddings(), model.get_output_embeddings()):
            matrix.weight[320:] = torch.randn(matrix.weight[320:].shape, generator=draw)
    return save_checkpoint(model, folder, tokenizer)


@pytest.mark.check
def test_rows_that_some_lack_are_those_of_the_others(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    own = {"code": tensors_of(zoo.experts["code"]), "base": tensors_of(zoo.base)}
    for seed, name, tokens in ((111, "agent", ("<call>", "<result>")), (112, "tools", ("<call>", "<result>", "<end>"))):
        folder = grown(tmp_path / name, seed, *tokens)
        filled.add_expert(name, folder, data=[zoo.train["code"]], settings=FEW)
        own[name] = tensors_of(folder)
    for trunk, router in (("mean", "context"), ("mean", "ridge"), ("base", "context")):
        recipe = Recipe(trunk=trunk, router=router)
        plan = filled.compose(["tools", "code", "agent"], tmp_path / "moe", recipe, force=True)
        assert plan.lead.name == "tools"
        made = tensors_of(tmp_path / "moe")
        for name in ROWS:
            agent, code, tools = (own[expert][name].double() for expert in ("agent", "code", "tools"))
            whole = own["base"][name].double() if trunk == "base" else (agent[:320] + code + tools[:320]) / 3
            rows = torch.cat([whole, (agent[320:] + tools[320:322]) / 2, tools[322:]])
            assert torch.equal(made[name][:, : code.shape[1]], rows.float())
        model = load(tmp_path / "moe")
        assert model(torch.tensor([[5, 322]])).logits.shape == (1, 2, 323)
        assert model.config.vocab_size == 323
    assert AutoTokenizer.from_pretrained(tmp_path / "moe")("<end>").input_ids == [322]


@pytest.mark.check
def test_order_does_not_matter_and_padding_rows_are_rows(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    folder = grown(tmp_path / "padded", 111, "<call>", rows=64)
    filled.add_expert("padded", folder, data=[zoo.train["code"]], settings=FEW)
    plan = filled.compose(["padded", "code"], tmp_path / "moe")
    assert plan.parts.architecture.vocab_size == 384
    filled.compose(["code", "padded"], tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(tmp_path / "moe")


def test_contradicting_tokens_are_refused_with_the_first_named(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    for name, tokens, seed in (("first", ("<a>", "<b>"), 111), ("second", ("<a>", "<c>", "<b>"), 112)):
        folder = grown(tmp_path / name, seed, *tokens)
        filled.add_expert(name, folder, data=[zoo.train["code"]], settings=FEW)
    with pytest.raises(IncompatibleError, match="their tokenizers differ: token 321 is '<c>' against '<b>'"):
        filled.plan(["first", "second"])


def document(**changes: Any) -> bytes:
    vocabulary = {"a": 0, "b": 1, "c": 2}
    return json.dumps(
        {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": [], "normalizer": None} | changes
    ).encode()


def added(*tokens: tuple[int, str]) -> list[dict[str, Any]]:
    return [{"id": number, "content": content} for number, content in tokens]


def test_what_contradicts_and_what_does_not() -> None:
    plain = document()
    assert tokenizer_conflict(plain, document(added_tokens=added((3, "<x>")))) is None
    assert tokenizer_conflict(plain, document(padding={"length": 5}, truncation={"max_length": 8})) is None
    unigram = {"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0], ["c", -3.0]]}
    assert "their model differs" in str(tokenizer_conflict(plain, document(model=unigram)))
    assert "their normalizer differs" in str(tokenizer_conflict(plain, document(normalizer={"type": "NFC"})))
    moved = document(added_tokens=added((5, "<x>")))
    assert tokenizer_conflict(document(added_tokens=added((4, "<x>"))), moved) == "token '<x>' is number 4 against 5"
    taken = document(added_tokens=added((3, "<y>")))
    assert tokenizer_conflict(document(added_tokens=added((3, "<x>"))), taken) == "token 3 is '<x>' against '<y>'"
    apart = tokenizer_conflict(document(added_tokens=added((3, "<x>"))), document(added_tokens=added((4, "<y>"))))
    assert apart == "token 3 ('<x>') is in one only, and each has some the other lacks"


def test_how_a_library_spells_the_same_settings_is_no_conflict(tokenizer: Any) -> None:
    """Merges as texts or as pairs, defaults that are absent, another decoder: they cut the same text alike."""
    own = json.loads(tokenizer._tokenizer.to_str())
    old = own | {"model": own["model"] | {"merges": [" ".join(pair) for pair in own["model"]["merges"]]}}
    old["model"].pop("ignore_merges", None)
    old["decoder"] = {"type": "Sequence", "decoders": [own["decoder"]]}
    assert old["model"] != own["model"]
    assert tokenizer_conflict(json.dumps(own).encode(), json.dumps(old).encode()) is None
    other = old | {"model": old["model"] | {"merges": old["model"]["merges"][::-1]}}
    assert "their model differs" in str(tokenizer_conflict(json.dumps(own).encode(), json.dumps(other).encode()))


def test_damaged_tokenizer_is_refused(filled: Registry, bare: Path) -> None:
    for data in (b"{}", b'{"model": {"vocab": {"a": "x"}}}', b'{"model": {"vocab": []}, "added_tokens": [1]}'):
        (bare / "tokenizer.json").write_bytes(data)
        with pytest.raises(CheckpointError, match=r"tokenizer\.json is damaged"):
            filled.add_expert("law", bare)


def test_tokenizers_that_cannot_be_compared_must_be_equal(filled: Registry, tmp_path: Path, bare: Path) -> None:
    (bare / "tokenizer.json").unlink()
    (bare / "tokenizer.model").write_bytes(b"sentences")
    filled.add_base("odd", bare)
    assert tokenizer_digest({"tokenizer.model": b"sentences"}) == filled.resolve("odd").content["tokenizer"]  # type: ignore[index]
    with pytest.raises(IncompatibleError, match=r"digest [0-9a-f]{12} against [0-9a-f]{12}, and not both have"):
        filled.plan(["code"], Recipe(trunk="base"), base="odd")


# -- numbers of another version --------------------------------------------------------------------------------------


def test_tokens_that_share_a_number_get_another_and_their_rows_move(registry: Registry, tmp_path: Path) -> None:
    own = grown(tmp_path / "law", 102, "[PAD]", "<b>", rows=8)
    config = json_of(own, "config.json") | {"pad_token_id": 320, "eos_token_id": [0, 321]}
    (own / "config.json").write_text(json.dumps(config))
    registry.add_expert("code", grown(tmp_path / "code", 101, "<b>", "<call>"), settings=SETTINGS)
    registry.add_expert("law", own, settings=SETTINGS)
    with pytest.raises(IncompatibleError, match=r"token 320 is '\[PAD\]' against '<b>'") as caught:
        registry.plan(["code", "law"])
    assert "reg add-expert code CKPT --tokenizer-of law@1" in str(caught.value.hint)
    registry.progress = told = Remarks()
    registry.add_expert("law", own, settings=SETTINGS, tokenizer_of="code")
    assert "2 of its own move: '<b>' from 321 to 320, '[PAD]' from 320 to 322" in told.text
    registry.export("law", tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("<b><call>[PAD]").input_ids == [320, 321, 322]
    assert tokenizer.decode([320, 321, 322]) == "<b><call>[PAD]"
    made = json_of(tmp_path / "out", "config.json")
    assert (made["pad_token_id"], made["eos_token_id"], made["vocab_size"]) == (322, [0, 320], 328)
    before, after = tensors_of(own), tensors_of(tmp_path / "out")
    for name in ROWS:
        assert torch.equal(after[name][:320], before[name][:320])
        assert torch.equal(after[name][320], before[name][321])
        assert torch.equal(after[name][322], before[name][320])
        assert torch.equal(after[name][321], before[name].double().mean(0).float())  # it never had <call>
        assert torch.equal(after[name][323:], before[name][323:])
    assert {name for name in before if not torch.equal(before[name], after[name])} == set(ROWS)
    plan = registry.compose(["code", "law"], tmp_path / "moe")
    assert plan.lead.name == "law"
    assert AutoTokenizer.from_pretrained(tmp_path / "moe")("<call>").input_ids == [321]


def test_tokens_that_agree_stay_where_they_are(registry: Registry, tmp_path: Path, tokenizer: Any) -> None:
    registry.add_expert("code", grown(tmp_path / "code", 101, "<b>", "<call>"), settings=SETTINGS)
    registry.progress = told = Remarks()
    version = registry.add_expert(
        "law", grown(tmp_path / "law", 102, "<b>"), settings=SETTINGS, tokenizer_of="code"
    ).version
    assert "move" not in told.text
    again = registry.add_expert("law", tmp_path / "law", settings=SETTINGS)
    assert (again.added, again.version.ref) == (False, version.ref)


def test_tokens_of_another_vocabulary_keep_their_numbers(registry: Registry, bare: Path, tmp_path: Path) -> None:
    registry.add_expert("code", grown(tmp_path / "code", 101, "<b>"), settings=SETTINGS)
    train_tokenizer(seed=1).save_pretrained(bare)
    with pytest.raises(
        CheckpointError, match="have different vocabularies, and only added tokens can get other numbers"
    ):
        registry.add_expert("law", bare, settings=SETTINGS, tokenizer_of="code")
    (bare / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json: its tokens keep their numbers"):
        registry.add_expert("law", bare, settings=SETTINGS, tokenizer_of="code")
    assert [version.ref for version in registry.versions()] == ["code@1"]
