"""Proves: GGUF files hold the weights, an importance matrix is the diagonals of the members' Grams, LoRA files are what
adapters change, llama.cpp's tokens are compared, and nothing is left behind where llama.cpp fails."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from registry import PassSettings, Recipe, Registry
from registry.errors import (
    CheckpointError,
    ConflictError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    OutputError,
)
from registry.families.sites import ATTENTION_INPUT, ATTENTION_OUTPUT, HEAD_INPUT, MLP_INPUT
from registry.gguf.export import _SAMPLE, _Export, _mend
from registry.gguf.llama_cpp import LlamaCpp
from registry.member import Member, load_member
from registry.progress import silent
from tests.conftest import SETTINGS, Zoo
from tests.llama_cpp import SOURCE, stand_in
from tests.models import make_model, save_checkpoint, train_tokenizer
from tests.registry.checkpoint.test_adapter import train

gguf = pytest.importorskip("gguf")

PAIR = ["code", "german"]
ALL = ("llama-quantize", "llama-tokenize")


@pytest.fixture
def moe(filled: Registry, tmp_path: Path) -> Path:
    filled.compose(PAIR, tmp_path / "moe")
    return tmp_path / "moe"


def tokens_of(folder: Path) -> list[int]:
    found: list[int] = AutoTokenizer.from_pretrained(folder)(_SAMPLE.read_text(), verbose=False)["input_ids"]
    return found


def with_tokens(llama: Path, tokens: list[int]) -> Path:
    (llama / "bin" / "tokens.json").write_text(json.dumps(tokens))
    return llama


def read(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    reader = gguf.GGUFReader(path)
    return {name: field.contents() for name, field in reader.fields.items()}, {t.name: t.data for t in reader.tensors}


def member(registry: Registry, name: str) -> Member:
    return load_member(registry._workspace, registry.resolve(name))


def test_an_importance_matrix_is_the_diagonals_of_the_grams(filled: Registry, moe: Path, tmp_path: Path) -> None:
    llama = with_tokens(stand_in(tmp_path / "llama.cpp", *ALL), tokens_of(moe))
    made = filled.export_gguf(moe, tmp_path / "moe.gguf", "q4_K_M", llama_cpp=llama)
    assert made.tokens == len(tokens_of(moe))
    assert (llama / "bin" / "kind.txt").read_text() == "q4_K_M"
    assert [(one.file, one.type) for one in made.files] == [(tmp_path / "moe.gguf", "q4_K_M")]
    keys, found = read(llama / "bin" / "imatrix.gguf")
    members = [member(filled, name) for name in PAIR]
    assert keys["general.type"] == "imatrix"
    told = ", ".join(f"{one.version.ref} {one.version.digest}" for one in members)
    assert keys["imatrix.datasets"] == [f"statistics of {told}"]
    config = json.loads((moe / "config.json").read_text())
    hidden, layers = members[0].architecture.hidden_size, members[0].architecture.num_hidden_layers
    assert config["context_layers"] == [0, layers + 1]  # which no statistics belong to
    names = {"output": (HEAD_INPUT, 0, False)}
    for layer in range(layers):
        names |= {
            f"blk.{layer + 1}.attn_q": (ATTENTION_INPUT, layer, False),
            f"blk.{layer + 1}.attn_output": (ATTENTION_OUTPUT, layer, False),
            f"blk.{layer + 1}.ffn_up_exps": (MLP_INPUT, layer, True),
        }
    assert {*found} == {f"{name}.weight.{part}" for name in names for part in ("in_sum2", "counts")}
    assert made.importance is not None
    assert (made.importance.weighed, made.importance.members) == (len(names), tuple(m.version.ref for m in members))
    for name, (site, layer, is_of_experts) in names.items():
        grams = [one.statistics(site, layer) for one in members]
        sums, counts = [gram.gram.diagonal() for gram in grams], [gram.count for gram in grams]
        if not is_of_experts:
            sums, counts = [sums[0] + sums[1]], [counts[0] + counts[1]]
        own, tokens = found[f"{name}.weight.in_sum2"], found[f"{name}.weight.counts"]
        assert tokens.ravel().tolist() == counts
        assert np.array_equal(own[:, : len(sums[0])], torch.stack(sums).float().numpy())
        if site != ATTENTION_OUTPUT:
            assert own.shape[1] == config["hidden_size"] > hidden
        assert np.array_equal(
            own[:, hidden:], torch.stack(sums).mean(1, keepdim=True).float().expand(-1, own.shape[1] - hidden).numpy()
        )


def test_few_bits_go_without_an_importance_matrix_where_it_is_not_wanted_or_nobody_is_known(
    filled: Registry, moe: Path, tmp_path: Path
) -> None:
    llama = with_tokens(stand_in(tmp_path / "llama.cpp", *ALL), tokens_of(moe))
    made = filled.export_gguf(moe, tmp_path / "a.gguf", "q4_K_M", llama_cpp=llama, importance=False)
    assert made.importance is None
    with Registry(tmp_path / "empty") as empty:
        assert empty.export_gguf(moe, tmp_path / "b.gguf", "q4_K_M", llama_cpp=llama).importance is None
    assert not (llama / "bin" / "imatrix.gguf").exists()
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_types_that_the_converter_writes_need_no_program(filled: Registry, moe: Path, tmp_path: Path) -> None:
    llama = stand_in(tmp_path / "llama.cpp")
    made = filled.export_gguf(moe, tmp_path / "own.gguf", llama_cpp=llama)
    assert [one.type for one in made.files] == ["f32"]
    assert made.tokens is None
    keys, _ = read(tmp_path / "own.gguf")
    assert (keys["converted.to"], keys["tokenizer.ggml.pre"]) == ("f32", "gpt-2")
    filled.export_gguf(moe, tmp_path / "q.gguf", "q8_0", llama_cpp=llama, pre_tokenizer="other")
    keys, _ = read(tmp_path / "q.gguf")
    assert (keys["converted.to"], keys["tokenizer.ggml.pre"]) == ("q8_0", "other")
    with pytest.raises(NotFoundError, match="q4_K_M needs llama-quantize"):
        filled.export_gguf(moe, tmp_path / "no.gguf", "q4_K_M", llama_cpp=llama)


@pytest.mark.check
def test_what_cannot_be_is_refused_and_leaves_nothing(
    filled: Registry, moe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama = with_tokens(stand_in(tmp_path / "llama.cpp", *ALL), [*tokens_of(moe)[:7], 1, 2])
    out = tmp_path / "out" / "moe.gguf"
    with pytest.raises(OutputError, match="is not a folder"):
        filled.export_gguf(moe, out, llama_cpp=llama)
    out.parent.mkdir()
    with pytest.raises(OutputError, match="holds no file but the composition's"):
        filled.export_gguf(moe, moe / "moe.gguf", llama_cpp=llama)
    with pytest.raises(InvalidInputError, match="'q5' is not one of"):
        filled.export_gguf(moe, out, "q5", llama_cpp=llama)
    with pytest.raises(NotFoundError, match=r"is not llama\.cpp's source"):
        filled.export_gguf(moe, out, llama_cpp=tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFoundError, match="not on PATH"):
        filled.export_gguf(moe, out)
    with pytest.raises(IncompatibleError, match="cuts text into other tokens than moe's tokenizer, at token 7, near"):
        filled.export_gguf(moe, out, llama_cpp=llama)
    (llama / "fails.txt").write_text("Traceback\nValueError: a matrix has no rows\n")
    with pytest.raises(CheckpointError, match="converting to f32: ValueError: a matrix has no rows"):
        filled.export_gguf(moe, out, llama_cpp=llama)
    for told, problem in (
        (b"ERROR:hf-to-gguf:Model SomeForCausalLM is not supported", "Model SomeForCausalLM is not supported"),
        (b"NotImplementedError: BPE pre-tokenizer was not recognized", "does not know the pre-tokenizer"),
    ):
        error = LlamaCpp(llama)._problem("converting to f32", told)
        assert isinstance(error, IncompatibleError)
        assert problem in error.message
    (llama / "fails.txt").unlink()
    assert not list(out.parent.iterdir())
    with_tokens(llama, tokens_of(moe))
    filled.export_gguf(moe, out, llama_cpp=llama)
    with pytest.raises(OutputError, match="exists"):
        filled.export_gguf(moe, out, llama_cpp=llama)
    filled.export_gguf(moe, out, llama_cpp=llama, replace=True)
    assert [path.name for path in out.parent.iterdir()] == ["moe.gguf"]
    with (moe / "config.json").open("a") as file:
        file.write(" ")
    with pytest.raises(CheckpointError, match="was changed since"):
        filled.export_gguf(moe, out, llama_cpp=llama, replace=True)


def test_what_was_opted_out_is_not_written_again(filled: Registry, moe: Path, tmp_path: Path) -> None:
    llama = with_tokens(stand_in(tmp_path / "llama.cpp", *ALL), tokens_of(moe))
    filled.opt_out("code")
    for kind in ("f32", "q4_K_M"):
        with pytest.raises(ConflictError, match="holds code@1, which was opted out"):
            filled.export_gguf(moe, tmp_path / "moe.gguf", kind, llama_cpp=llama)
    assert not (tmp_path / "moe.gguf").exists()


def test_code_in_a_folder_is_not_run(filled: Registry, moe: Path, tmp_path: Path) -> None:
    llama = stand_in(tmp_path / "llama.cpp")
    settings = json.loads((moe / "tokenizer_config.json").read_text()) | {
        "auto_map": {"AutoTokenizer": ["own.T", None]}
    }
    (moe / "tokenizer_config.json").write_text(json.dumps(settings))
    (moe / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass T: pass\n")
    with pytest.raises(IncompatibleError, match="moe brings code of its own"):
        _Export(filled._workspace, LlamaCpp.find(llama), "f32", "").model(moe, tmp_path / "a.gguf", [], [])
    loads = (
        "from transformers import AutoTokenizer\nAutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)\n"
    )
    (llama / "convert_hf_to_gguf.py").write_text(f"import sys\n{loads}")
    with pytest.raises(CheckpointError, match="converting to f32"):
        LlamaCpp.find(llama).convert(moe, tmp_path / "a.gguf", "f32", "", 1, silent)
    assert not (tmp_path / "ran").exists()


def test_heads_that_llama_cpp_derives_from_the_stream_need_one_that_is_not_wider(
    registry: Registry, zoo: Zoo, tmp_path: Path
) -> None:
    llama = stand_in(tmp_path / "llama.cpp")
    for number, name in enumerate(PAIR, start=901):
        folder = save_checkpoint(make_model("qwen2", number), tmp_path / name, train_tokenizer())
        registry.add_expert(name, folder, data=[zoo.train[name]], settings=SETTINGS)
    registry.compose(PAIR, tmp_path / "moe")
    with pytest.raises(IncompatibleError, match="derives the size of qwen2_moe's heads"):
        registry.export_gguf(tmp_path / "moe", tmp_path / "moe.gguf", llama_cpp=llama)


def test_what_the_size_of_a_vocabulary_says_of_other_models_is_set_right(tmp_path: Path) -> None:
    tokenizer, file = train_tokenizer(), tmp_path / "vocabulary.gguf"
    tokenizer.add_tokens([f"word{number}" for number in range(32_016 - len(tokenizer))])
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", 0)])
    tokenizer.save_pretrained(tmp_path)
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_add_bos_token(False)
    writer.add_eot_token_id(32_010)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _mend(file, tmp_path)
    keys, _ = read(file)
    assert keys["tokenizer.ggml.add_bos_token"] is True
    assert keys["tokenizer.ggml.eot_token_id"] == tokenizer.eos_token_id == 0


# -- llama.cpp's own converters --------------------------------------------------------------------------------------


@pytest.fixture
def source() -> Path:
    if not (SOURCE / "installed").is_file():
        pytest.skip(f"no source of llama.cpp in {SOURCE.name}: make {SOURCE.name}/installed")
    return SOURCE


def rotated(weight: torch.Tensor, heads: int) -> np.ndarray[Any, Any]:
    """Return rows of queries or keys in llama.cpp's order: the two of a rotary pair stand beside one another."""
    rows = weight.reshape(heads, 2, -1, weight.shape[-1]).transpose(1, 2)
    return rows.reshape(weight.shape).numpy()


@pytest.mark.check
def test_a_converted_mixture_holds_every_weight(source: Path, registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    for number, name in enumerate(PAIR, start=901):
        model = make_model("llama", number, rope_parameters=scaling)
        folder = save_checkpoint(model, tmp_path / name, train_tokenizer())
        registry.add_expert(name, folder, data=[zoo.train[name]], settings=PassSettings(tokens=64, seq_len=16))
    registry.compose(PAIR, tmp_path / "moe")
    registry.export_gguf(tmp_path / "moe", tmp_path / "moe.gguf", llama_cpp=source)
    keys, found = read(tmp_path / "moe.gguf")
    weights = load_file(tmp_path / "moe" / "model.safetensors")
    config = json.loads((tmp_path / "moe" / "config.json").read_text())
    assert keys["tokenizer.ggml.pre"] == "gpt-2"
    assert keys["llama.expert_count"] == 2
    assert np.array_equal(found["token_embd.weight"], weights["model.embed_tokens.weight"].numpy())
    assert np.array_equal(found["output.weight"], weights["lm_head.weight"].numpy())
    heads = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    for layer in range(config["num_hidden_layers"]):
        own = {name.partition(f"layers.{layer}.")[2]: tensor for name, tensor in weights.items()}
        for part, ours in (("v", "v_proj"), ("output", "o_proj")):
            expected = own[f"self_attn.{ours}.weight"].numpy()
            assert np.array_equal(found[f"blk.{layer}.attn_{part}.weight"], expected)
        for part, count in heads.items():
            expected = rotated(own[f"self_attn.{part}_proj.weight"], count)
            assert np.array_equal(found[f"blk.{layer}.attn_{part}.weight"], expected)
        assert np.array_equal(found[f"blk.{layer}.ffn_gate_inp.weight"], own["block_sparse_moe.gate.weight"].numpy())
        for part, ours in (("gate", "w1"), ("down", "w2"), ("up", "w3")):
            experts = [own[f"block_sparse_moe.experts.{expert}.{ours}.weight"] for expert in range(2)]
            assert np.array_equal(found[f"blk.{layer}.ffn_{part}_exps.weight"], torch.stack(experts).numpy())
    frequencies = 10_000.0 ** -(np.arange(0, config["head_dim"], 2) / config["head_dim"])
    lengths = 2 * np.pi / frequencies
    smooth = (16 / lengths - 1.0) / (4.0 - 1.0)
    factors = np.where(lengths < 4, 1.0, np.where(lengths > 16, 8.0, 1 / ((1 - smooth) / 8.0 + smooth)))
    assert np.allclose(found["rope_freqs.weight"], factors, rtol=1e-6)  # which is computed in float32


@pytest.mark.check
def test_a_lora_file_is_what_an_adapter_changes(source: Path, registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    registry.add_base("base", zoo.base)
    patterns: Any = {"rank_pattern": {"up_proj": 3}, "alpha_pattern": {"up_proj": 12}}
    modules = ["q_proj", "up_proj", "down_proj"]
    folder = train(zoo.base, tmp_path / "code", target_modules=modules, r=2, lora_alpha=3, **patterns)
    registry.add_expert("code", folder, base="base", data=[zoo.train["code"]], settings=SETTINGS)
    registry.compose(["code"], tmp_path / "adapters", Recipe(to="adapters"))
    made = registry.export_gguf(tmp_path / "adapters", tmp_path / "gguf", llama_cpp=source)
    assert [one.file.name for one in made.files] == ["base.gguf", "code-lora.gguf"]
    assert {path.name for path in (tmp_path / "gguf").iterdir()} == {one.file.name for one in made.files}
    _, base = read(tmp_path / "gguf" / "base.gguf")
    before = load_file(zoo.base / "model.safetensors")
    assert np.array_equal(base["token_embd.weight"], before["model.embed_tokens.weight"].numpy())
    keys, found = read(tmp_path / "gguf" / "code-lora.gguf")
    trained = load_file(tmp_path / "code" / "adapter_model.safetensors")
    for theirs, ours, scaling in (
        ("ffn_up", "mlp.up_proj", 4.0),
        ("ffn_down", "mlp.down_proj", 1.5),
        ("attn_q", "self_attn.q_proj", 1.5),
    ):
        a, b = (found[f"blk.1.{theirs}.weight.lora_{part}"] for part in "ab")
        assert keys["adapter.lora.alpha"] == len(a) == 3  # llama.cpp scales by alpha over this matrix's rank
        down, up = (trained[f"base_model.model.model.layers.1.{ours}.lora_{part}.weight"] for part in "AB")
        expected = (up * scaling).numpy() if theirs != "attn_q" else rotated(up * scaling, 4)
        assert np.array_equal(a[: len(down)], down.numpy())
        assert np.array_equal(b[:, : len(down)], expected)
        assert not a[len(down) :].any()
        assert not b[:, len(down) :].any()


@pytest.mark.check
def test_adapters_that_llama_cpp_lacks_are_refused(source: Path, registry: Registry, zoo: Zoo, tmp_path: Path) -> None:
    registry.add_base("base", zoo.base)
    folder = train(zoo.base, tmp_path / "code", target_modules=["up_proj"], use_dora=True)
    registry.add_expert("code", folder, base="base", data=[zoo.train["code"]], settings=SETTINGS)
    registry.compose(["code"], tmp_path / "adapters", Recipe(to="adapters"))
    with pytest.raises(IncompatibleError, match="code is a DoRA adapter"):
        registry.export_gguf(tmp_path / "adapters", tmp_path / "gguf", llama_cpp=source)
    with pytest.raises(OutputError, match="contain one another"):
        registry.export_gguf(tmp_path / "adapters", tmp_path / "adapters" / "gguf", llama_cpp=source)
    tied = save_checkpoint(make_model("llama", 900, tie_word_embeddings=True), tmp_path / "tied", train_tokenizer())
    registry.add_base("tied", tied)
    whole = save_checkpoint(make_model("llama", 901, tie_word_embeddings=True), tmp_path / "whole", train_tokenizer())
    registry.add_expert("whole", whole, data=[zoo.train["code"]], settings=SETTINGS)
    registry.compose(["whole"], tmp_path / "of tied", Recipe(to="adapters", rank=2), base="tied")
    with pytest.raises(IncompatibleError, match="which is the head of tied@1 too"):
        registry.export_gguf(tmp_path / "of tied", tmp_path / "gguf", llama_cpp=source)
    assert not (tmp_path / "gguf").exists()
