"""Proves: whatever is wrong with a folder is told with what was expected and found, before anything is registered."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from registry import Registry
from registry.checkpoint import Checkpoint, hash_checkpoint, tokenizer_digest
from registry.errors import CheckpointError, RegError, UnsupportedFamilyError
from registry.families import FAMILIES
from registry.progress import silent
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint

Change = Callable[[Path], object]


def config(**changes: Any) -> Change:
    """Return a change of config.json; None deletes a key."""

    def change(folder: Path) -> None:
        path = folder / "config.json"
        document = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))

    return change


def weights(edit: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    """Return a change of the tensors."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def written(name: str, data: bytes) -> Change:
    """Return a change that writes a file."""
    return lambda folder: (folder / name).write_bytes(data)


def removed(name: str) -> Change:
    """Return a change that deletes a file."""
    return lambda folder: (folder / name).rename(folder / "elsewhere")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def indexed(weight_map: object) -> Change:
    """Return a change to a shard index."""

    def change(folder: Path) -> None:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return change


GATE = "model.layers.1.mlp.gate_proj.weight"


def set_value(name: str, value: float) -> Change:
    return weights(lambda t: t[name].view(-1).__setitem__(5, value))


BYTES = torch.zeros(64, 32, dtype=torch.uint8)

BAD: dict[str, tuple[Change, str]] = {
    "no config": (removed("config.json"), "is not a checkpoint: it has no config.json"),
    "config no JSON": (written("config.json", b"{"), "is not JSON"),
    "config a list": (written("config.json", b"[]"), "is not a JSON object"),
    "config too deep": (written("config.json", b"[" * 100_000), "is not JSON"),
    "config too large": (written("config.json", b" " * (16 * 2**20 + 1)), "has more than 16,777,216 bytes"),
    "no model type": (config(model_type=None), "model type 'None' cannot be composed"),
    "sizes contradict": (config(num_attention_heads=5), "config.json"),
    "size no integer": (config(intermediate_size=-3), "intermediate_size is -3, not a positive integer"),
    "no weights": (removed("model.safetensors"), "has no weights: neither model.safetensors nor"),
    "pickle weights": (pickled, "has its weights in pickle files, which run code when they are opened"),
    "no safetensors": (written("model.safetensors", b"nonsense"), "is not a safetensors file"),
    "cut safetensors": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-9]),
        "is not a safetensors file",
    ),
    "missing tensor": (weights(lambda t: t.pop(GATE)), f"{GATE} is missing from its safetensors files"),
    "missing tensors": (
        weights(lambda t: [t.pop(name) for name in list(t) if "layers.1" in name]),
        "and 6 more are missing from its safetensors files",
    ),
    "extra tensor": (
        weights(lambda t: t.update({"model.layers.0.lora_A.weight": torch.zeros(1)})),
        "model.layers.0.lora_A.weight is unknown to the llama family",
    ),
    "other shape": (
        weights(lambda t: t.update({GATE: torch.zeros(64, 31)})),
        rf"tensor {GATE} has shape \[64, 31\], config.json asks for \[64, 32\]",
    ),
    "other dtype": (
        weights(lambda t: t.update({GATE: torch.zeros(64, 32, dtype=torch.int8)})),
        f"tensor {GATE} has dtype I8, supported are bfloat16, float16, float32",
    ),
    "NaN weight": (set_value(GATE, float("nan")), rf"tensor {GATE} has NaN or infinite weights \(rows 0 to 63\)"),
    "infinite weight": (set_value("lm_head.weight", float("inf")), "lm_head.weight has NaN or infinite weights"),
    "index no map": (indexed([1]), "lists no weights"),
    "index outside": (
        indexed({"a": "../model.safetensors"}),
        r"names files outside the folder: '../model.safetensors'",
    ),
    "index absent": (
        lambda f: (removed("model.safetensors")(f), indexed({"a": "x.safetensors"})(f)),
        "x.safetensors is missing, though model.safetensors.index.json",
    ),
    "index of others": (
        indexed({"a": "x.safetensors"}),
        "has two sets of weights: model.safetensors, which",
    ),
    "tokenizer no JSON": (written("tokenizer.json", b"\xff"), "tokenizer.json is not JSON"),
    "adapter": (
        written("adapter_config.json", b"{}"),
        r"is a whole checkpoint with an adapter \(adapter_config.json\) beside it",
    ),
    "quantized": (
        lambda f: (config(quantization_config={"bits": 4})(f), weights(lambda t: t.update({GATE: BYTES}))(f)),
        r"asks for quantized weights \(quantization_config\)",
    ),
    "attention bias": (
        config(attention_bias=True),
        "model.layers.0.self_attn.q_proj.bias, model.layers.0.self_attn.k_proj.bias, .* and 5 more are missing",
    ),
    "mixture": (config(model_type="mixtral"), "it is a mixture of experts already"),
    "unknown family": (
        config(model_type="nonesuch"),
        "model type 'nonesuch' cannot be composed: no native host that carries it",
    ),
}


@pytest.mark.check(after=25)
@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_folder_is_refused_with_the_reason_and_nothing_is_written(
    bare: Path, registry: Registry, case: str
) -> None:
    change, message = BAD[case]
    change(bare)
    with pytest.raises(CheckpointError, match=message) as caught:
        registry.add_expert("math", bare)
    assert caught.value.hint
    assert registry.versions(everything=True) == []
    assert list(registry.arrays.digests()) == []
    assert registry.log() == []


def test_unsupported_family_lists_the_supported_ones(bare: Path) -> None:
    config(model_type="gpt2")(bare)
    with pytest.raises(UnsupportedFamilyError, match="not in the table of families") as caught:
        Checkpoint(bare, remote_code=True)
    assert caught.value.hint == f"supported are: {', '.join(sorted(FAMILIES))}"


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "gemma2": ("gemma2", {"head_dim": 8}, "two norms of its own"),
    "gemma3": ("gemma3_text", {"head_dim": 8}, "two norms of its own"),
    "gpt_neox": ("gpt_neox", {}, "not gated and has biases"),
    "stablelm": ("stablelm", {}, "norms have biases"),
    "llama MLP bias": ("llama", {"mlp_bias": True}, r"its MLPs have biases \(mlp_bias\)"),
    "granite MLP bias": ("granite", {"mlp_bias": True}, r"its MLPs have biases \(mlp_bias\)"),
    "smollm3 MLP bias": ("smollm3", {"mlp_bias": True}, r"its MLPs have biases \(mlp_bias\)"),
    "cohere norms": ("cohere", {"use_qk_norm": True}, "normalises queries and keys"),
    "gemma both ways": (
        "gemma",
        {"head_dim": 8, "use_bidirectional_attention": True},
        "its attention is bidirectional",
    ),
    "olmo3 ropes": (
        "olmo3",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
            },
            "num_hidden_layers": 4,
        },
        "different ropes",
    ),
}


@pytest.mark.check(after=4)
@pytest.mark.parametrize("case", sorted(REFUSED))
def test_model_without_a_native_host_is_refused_unless_its_code_may_travel(
    case: str, tmp_path: Path, tokenizer: Any, registry: Registry
) -> None:
    family, changes, reason = REFUSED[case]
    folder = save_checkpoint(make_model(family, 101, **changes), tmp_path / "dense", tokenizer)
    with pytest.raises(
        UnsupportedFamilyError, match=f"this {family} cannot be composed natively: .*{reason}"
    ) as caught:
        registry.add_expert("code", folder)
    assert "--remote-code" in str(caught.value.hint)
    registry.add_base("base", folder, remote_code=True)
    with pytest.raises(UnsupportedFamilyError, match=f"cannot be composed natively: .*{reason}"):
        registry.add_base("base", folder)


def test_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", Path(__file__)):
        with pytest.raises(CheckpointError, match="is not a folder"):
            Checkpoint(path)


def test_sharded_and_single_files_have_the_same_digests(zoo: Zoo, tmp_path: Path, tokenizer: Any) -> None:
    single = hash_checkpoint(Checkpoint(zoo.experts["code"]), silent)
    sharded = tmp_path / "sharded"
    save_checkpoint(make_model("llama", 101), sharded, tokenizer, max_shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert hash_checkpoint(Checkpoint(sharded), silent).tensors == single.tensors


def test_rope_buffers_and_a_repeated_tied_head_are_no_weights(tmp_path: Path, tokenizer: Any) -> None:
    folder = save_checkpoint(make_model("llama", 101, tie_word_embeddings=True), tmp_path / "tied", tokenizer)
    before = hash_checkpoint(Checkpoint(folder), silent)
    assert "lm_head.weight" not in before.tensors
    weights(
        lambda t: t.update(
            {
                "lm_head.weight": t["model.embed_tokens.weight"].clone(),
                "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
            }
        )
    )(folder)
    assert hash_checkpoint(Checkpoint(folder), silent).tensors == before.tensors


def test_parameters_are_counted(zoo: Zoo) -> None:
    model = make_model("llama", 101)
    assert Checkpoint(zoo.experts["code"]).parameters == sum(weight.numel() for weight in model.parameters())


def test_tokenizer_is_known_by_its_content_not_its_last_use() -> None:
    plain = {"model": {"vocab": {"a": 0}}, "padding": None, "truncation": None}
    padded = plain | {"padding": {"length": 7}}
    other = plain | {"model": {"vocab": {"b": 0}}}
    digests = [
        tokenizer_digest({"tokenizer.json": json.dumps(d, indent=i).encode()}) for i, d in enumerate((plain, padded))
    ]
    assert digests[0] == digests[1]
    assert tokenizer_digest({"tokenizer.json": json.dumps(other).encode()}) != digests[0]
    assert tokenizer_digest({"tokenizer_config.json": b"{}"}) is None
    assert tokenizer_digest({"tokenizer.model": b"a"}) != tokenizer_digest({"tokenizer.model": b"b"})


def test_file_that_vanishes_while_it_is_read_is_told(bare: Path) -> None:
    checkpoint = Checkpoint(bare)
    shutil.move(bare / "model.safetensors", bare / "elsewhere")
    with pytest.raises(RegError, match=r"model\.safetensors"):
        list(checkpoint.source(GATE).blocks())
