"""Proves: whatever is wrong with a folder is told with what was expected and found, before anything is registered.

A folder's digests do not depend on its files, nor on the process that takes them.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import Registry
from registry.checkpoint import Checkpoint, hash_checkpoint, tokenizer_digest
from registry.errors import CheckpointError, RegError, UnsupportedFamilyError
from registry.families import FAMILIES
from registry.progress import silent
from tests.conftest import Zoo
from tests.models import make_model, save_checkpoint
from tests.registry.checkpoint.changes import Change, config, removed, weights, written


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")


def adapter_alone(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")


def indexed(weight_map: object) -> Change:
    """Return a change to a shard index."""
    return written("model.safetensors.index.json", json.dumps({"weight_map": weight_map}).encode())


GATE = "model.layers.1.mlp.gate_proj.weight"


def set_value(name: str, value: float) -> Change:
    return weights(lambda t: t[name].view(-1).__setitem__(5, value))


BYTES = torch.zeros(64, 32, dtype=torch.uint8)

BAD: dict[str, tuple[Change, str]] = {
    "no folder": (shutil.rmtree, "is not a folder"),
    "no config": (removed("config.json"), "is not a checkpoint: it has no config.json"),
    "no adapter config": (adapter_alone, "is not a checkpoint: it has no adapter_config.json"),
    "config no JSON": (written("config.json", b"{"), "is not JSON"),
    "no model type": (config(model_type=...), "model type 'None' cannot be registered"),
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
    "mixture": (
        config(model_type="mixtral"),
        "not in the table of families, so that an expert of them is an adapter of a",
    ),
}


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
    config(model_type="gemma3")(bare)
    with pytest.raises(UnsupportedFamilyError, match="it reads images as well") as caught:
        Checkpoint(bare, remote_code=True)
    assert str(caught.value.hint).startswith(f"supported are: {', '.join(sorted(FAMILIES))}; and, as base models of")


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


def test_sharded_and_single_files_have_the_same_digests(zoo: Zoo, tmp_path: Path, tokenizer: Any) -> None:
    single, model = Checkpoint(zoo.experts["code"]), make_model("llama", 101)
    sharded = save_checkpoint(model, tmp_path / "sharded", tokenizer, max_shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert hash_checkpoint(Checkpoint(sharded), silent).tensors == hash_checkpoint(single, silent).tensors
    assert single.parameters == sum(weight.numel() for weight in model.parameters())


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


FORKED = """
import os, sys
from pathlib import Path
import torch
from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.progress import silent

torch.ones(1000, 1000) @ torch.ones(1000, 1000)
torch.set_num_threads(2)
failed = 0
for _ in range(20):
    child = os.fork()
    if child == 0:
        try:
            hash_checkpoint(Checkpoint(Path(sys.argv[1])), silent)
            os._exit(0)
        except BaseException:
            os._exit(2)
    failed += os.waitpid(child, 0)[1] != 0
print(failed)
"""


@pytest.mark.check
def test_threads_of_a_forked_process_find_torchs_pool(tmp_path: Path, tokenizer: Any) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6}  # tensors are checked in parallel
    folder = save_checkpoint(make_model("llama", 1, **sizes), tmp_path / "large", tokenizer)
    done = subprocess.run([sys.executable, "-c", FORKED, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n", done.stderr
