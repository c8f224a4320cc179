"""Proves: an adapter merges into the bits that PEFT's own merge has; one that would not is refused with the reason."""

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from registry.checkpoint import Checkpoint
from registry.checkpoint.adapter import Adapter, DenseWeights, is_adapter, merge_adapter
from registry.errors import CheckpointError, OutputError
from registry.progress import Advance, silent
from registry.runtime.loading import quiet_transformers
from store.arrays import ArraySource, Block
from tests.conftest import files_of
from tests.models import make_model, save_checkpoint

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
Q = "base_model.model.model.layers.0.self_attn.q_proj"
UP = "base_model.model.model.layers.1.mlp.up_proj"
Change = Callable[[Path], object]


@contextmanager
def quiet() -> Iterator[None]:
    with quiet_transformers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT tells of embeddings that it saves, and of its own deprecations
        yield


def load(folder: Path, dtype: torch.dtype, rows: int | None = None) -> Any:
    """Return the model in `folder`, its vocabulary enlarged to `rows`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    if rows is not None:
        model.resize_token_embeddings(rows, mean_resizing=False)
    return model


def train(
    base: Path, out: Path, *, dtype: torch.dtype = torch.float32, rows: int | None = None, **options: Any
) -> Path:
    """Write an adapter of `base` whose every trained weight is random."""
    draw = torch.Generator().manual_seed(1)
    with quiet():
        model = get_peft_model(load(base, dtype, rows), LoraConfig(**{"r": 4, "lora_alpha": 6} | options))
        for name, weight in model.named_parameters():
            if weight.requires_grad:
                noise = torch.empty(weight.shape).normal_(0.0, 0.3, generator=draw)
                weight.data = noise.abs() + 0.1 if "magnitude" in name else noise.to(weight.dtype)
        model.save_pretrained(str(out))
    return out


def merged_by_peft(base: Path, adapter: Path, out: Path, dtype: torch.dtype, rows: int | None = None) -> Path:
    """Write what PEFT makes of an adapter and its base."""
    with quiet():
        PeftModel.from_pretrained(load(base, dtype, rows), adapter).merge_and_unload().save_pretrained(out)
    return out


def merged_here(base: Path, adapter: Path, out: Path) -> Path:
    merge_adapter(Adapter(adapter), Checkpoint(base, remote_code=True), out, silent)
    return out


def bits(folder: Path) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    """Return dtype, shape and bytes of every tensor of a model folder."""
    tensors = load_file(folder / "model.safetensors")
    return {
        name: (tensor.dtype, tuple(tensor.shape), tensor.contiguous().view(torch.uint8).numpy().tobytes())
        for name, tensor in tensors.items()
    }


def config(**changes: Any) -> Change:
    """Return a change of adapter_config.json; `...` deletes a key."""

    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        document = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in document.items() if value is not ...}))

    return change


def weights(edit: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    """Return a change of the adapter's tensors."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / "adapter_model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})

    return change


def added(**tensors: torch.Tensor) -> Change:
    """Return a change that adds tensors; `__` stands for a dot."""
    return weights(lambda t: t.update({name.replace("__", "."): tensor for name, tensor in tensors.items()}))


def nothing(folder: Path) -> None:
    pass


PATTERNS = {
    "target_modules": LINEAR,
    "rank_pattern": {"q_proj": 2, "model.layers.1.mlp.up_proj": 6, r"^model\.layers\.\d+\.self_attn\.(v|k)_proj": 3},
    "alpha_pattern": {r"layers.\d.mlp.*": 11, "o_proj": 0.5},
}
CASES: dict[str, tuple[str, dict[str, Any], Change]] = {
    "LoRA": ("llama", {"target_modules": LINEAR}, nothing),
    "LoRA qwen2": ("qwen2", {"target_modules": LINEAR, "lora_alpha": 5.5}, nothing),
    "rsLoRA": ("llama", {"target_modules": LINEAR, "use_rslora": True}, nothing),
    "DoRA": ("llama", {"target_modules": LINEAR, "use_dora": True}, nothing),
    "DoRA with rsLoRA": ("qwen2", {"target_modules": LINEAR, "use_dora": True, "use_rslora": True}, nothing),
    "DoRA of old": (
        "llama",
        {"target_modules": LINEAR, "use_dora": True},
        weights(lambda t: [t.update({f"{n}.weight": t.pop(n)}) for n in list(t) if n.endswith("magnitude_vector")]),
    ),
    "patterns": ("llama", PATTERNS, nothing),
    "patterns rsLoRA": ("qwen2", PATTERNS | {"use_rslora": True}, nothing),
    "embeddings": ("llama", {"target_modules": ["embed_tokens", "lm_head", "q_proj"]}, nothing),
    "embeddings DoRA": ("qwen2", {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True}, nothing),
    "modules to save": (
        "llama",
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head", "input_layernorm"]},
        nothing,
    ),
    "module of modules to save": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["mlp"]}, nothing),
    "biases of LoRA": ("qwen2", {"target_modules": ["q_proj"], "bias": "lora_only"}, nothing),
    "all biases": ("qwen2", {"target_modules": ["q_proj", "up_proj"], "bias": "all"}, nothing),
    "head of another name": ("gpt_neox", {"target_modules": ["query_key_value", "lm_head", "embed_in"]}, nothing),
    "fan_in_fan_out of linear layers": ("llama", {"target_modules": LINEAR}, config(fan_in_fan_out=True)),
    "orthogonal start": ("llama", {"target_modules": LINEAR, "init_lora_weights": "orthogonal"}, nothing),
    "EVA": ("qwen2", PATTERNS, config(init_lora_weights="eva")),
    "gaussian start": ("llama", {"target_modules": LINEAR, "init_lora_weights": "gaussian"}, nothing),
    "bfloat16 adapter": (
        "llama",
        {"target_modules": LINEAR, "use_dora": True},
        weights(lambda t: t.update({name: tensor.bfloat16() for name, tensor in t.items()})),
    ),
}


@pytest.mark.check(after=5)
@pytest.mark.trust(after=11)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", sorted(CASES))
def test_merge_has_the_bits_of_peft(case: str, dtype: torch.dtype, tmp_path: Path, tokenizer: Any) -> None:
    family, options, change = CASES[case]
    base = save_checkpoint(make_model(family, 100), tmp_path / "base", tokenizer, dtype=dtype)
    adapter = train(base, tmp_path / "adapter", dtype=dtype, **options)
    change(adapter)
    ours, theirs = merged_here(base, adapter, tmp_path / "ours"), tmp_path / "theirs"
    assert bits(ours) == bits(merged_by_peft(base, adapter, theirs, dtype))
    assert bits(ours) != bits(base)
    assert (ours / "config.json").read_bytes() == (base / "config.json").read_bytes()
    Checkpoint(ours, remote_code=True)


def test_pissa_that_was_converted_is_merged(tmp_path: Path, tokenizer: Any) -> None:
    base = save_checkpoint(make_model("llama", 100), tmp_path / "base", tokenizer)
    with quiet():
        model = get_peft_model(
            load(base, torch.float32), LoraConfig(r=4, target_modules=LINEAR, init_lora_weights="pissa")
        )
        settings: Any = model.peft_config["default"]
        settings.init_lora_weights = True  # as PEFT's documentation tells
        model.save_pretrained(str(tmp_path / "start"))
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.data += 0.1 * torch.empty(weight.shape).normal_(generator=torch.Generator().manual_seed(1))
        model.save_pretrained(
            str(tmp_path / "adapter"), path_initial_model_for_weight_conversion=str(tmp_path / "start")
        )
        trained = model.merge_and_unload().state_dict()
    ours = merged_here(base, tmp_path / "adapter", tmp_path / "ours")
    assert bits(ours) == bits(merged_by_peft(base, tmp_path / "adapter", tmp_path / "theirs", torch.float32))
    for name, tensor in load_file(ours / "model.safetensors").items():
        assert torch.allclose(tensor, trained[name], atol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_added_tokens_enlarge_the_vocabulary(tied: bool, tmp_path: Path, tokenizer: Any) -> None:
    model = make_model("llama", 100, tie_word_embeddings=tied)
    base = save_checkpoint(model, tmp_path / "base", tokenizer, dtype=torch.bfloat16)
    saved = {} if tied else {"modules_to_save": ["embed_tokens", "lm_head"]}
    adapter = train(base, tmp_path / "adapter", dtype=torch.bfloat16, rows=326, target_modules=LINEAR, **saved)
    ours = merged_here(base, adapter, tmp_path / "ours")
    assert bits(ours) == bits(merged_by_peft(base, adapter, tmp_path / "theirs", torch.bfloat16, rows=326))
    old, new = (json.loads((folder / "config.json").read_text()) for folder in (base, ours))
    assert new == old | {"vocab_size": 326}
    assert Checkpoint(ours).shapes["model.embed_tokens.weight"] == (326, 32)


def test_whole_modules_of_a_tied_base_stay_tied(tmp_path: Path, tokenizer: Any) -> None:
    base = save_checkpoint(make_model("llama", 100, tie_word_embeddings=True), tmp_path / "base", tokenizer)
    options: dict[str, Any] = {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
    adapter = train(base, tmp_path / "adapter", target_modules=LINEAR, **options)
    ours = merged_here(base, adapter, tmp_path / "ours")
    assert bits(ours) == bits(merged_by_peft(base, adapter, tmp_path / "theirs", torch.float32))
    assert "lm_head.weight" not in bits(ours)


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["embed_tokens"]},
        {"target_modules": ["lm_head"]},
        {"target_modules": ["embed_tokens"], "ensure_weight_tying": True},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    ],
)
def test_tied_tensors_changed_apart_are_refused(options: dict[str, Any], tmp_path: Path, tokenizer: Any) -> None:
    base = save_checkpoint(make_model("llama", 100, tie_word_embeddings=True), tmp_path / "base", tokenizer)
    adapter = train(base, tmp_path / "adapter", **options)
    with pytest.raises(CheckpointError, match="the base's output head is its embedding") as caught:
        merged_here(base, adapter, tmp_path / "ours")
    assert caught.value.hint is not None
    assert "untie the base" in caught.value.hint
    assert not (tmp_path / "ours").exists()


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [f"{Q}.lora_A.weight", f"{UP}.lora_B.weight", f"{UP}.lora_magnitude_vector"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(
    name: str, value: float, adapter: Path, base: Checkpoint, tmp_path: Path
) -> None:
    weights(lambda t: t[name].view(-1).__setitem__(3, value))(adapter)
    with pytest.raises(CheckpointError, match=rf"^me: tensor {name} has NaN or infinite weights"):
        merge_adapter(Adapter(adapter, "me"), base, tmp_path / "out", silent)
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_weights_that_become_infinite_are_refused_by_name(adapter: Path, base: Checkpoint, tmp_path: Path) -> None:
    weights(lambda t: [t[f"{UP}.lora_{part}.weight"].fill_(1e30) for part in "AB"])(adapter)
    with pytest.raises(CheckpointError, match=r"merging makes weights of model.layers.1.mlp.up_proj.weight NaN or inf"):
        merge_adapter(Adapter(adapter), base, tmp_path / "out", silent)
    assert not (tmp_path / "out").exists()


def test_hint_names_the_base_that_the_adapter_names(adapter: Path, base: Checkpoint) -> None:
    config(r=8, base_model_name_or_path="org/base", revision="v1")(adapter)
    opened = Adapter(adapter)
    assert (opened.base_name, opened.revision, opened.label) == ("org/base", "v1", str(adapter))
    with pytest.raises(CheckpointError) as caught:
        opened.check(base)
    assert caught.value.hint == "give the base model that the adapter was trained on, org/base"
    config(base_model_name_or_path="", revision=None)(adapter)
    assert (Adapter(adapter).base_name, Adapter(adapter).revision) == (None, None)


# -- folders ---------------------------------------------------------------------------------------------------------


def test_adapter_is_told_from_a_whole_model(made: tuple[Path, Path], adapter: Path, tmp_path: Path) -> None:
    assert is_adapter(adapter)
    shutil.copy(made[0] / "config.json", adapter)  # some trainers leave the base's beside the adapter
    assert is_adapter(adapter)
    for name in ("model.safetensors", "model.safetensors.index.json", "pytorch_model-00001-of-00002.bin"):
        whole = shutil.copytree(adapter, tmp_path / name)
        (whole / name).touch()
        assert not is_adapter(whole)
    assert not is_adapter(made[0])
    assert not is_adapter(tmp_path / "absent")


def test_small_files_are_the_bases_unless_the_adapter_has_them(
    made: tuple[Path, Path], adapter: Path, base: Checkpoint, tmp_path: Path
) -> None:
    plain = merged_here(made[0], adapter, tmp_path / "plain")
    small = {name: data for name, data in files_of(made[0]).items() if not name.endswith(".safetensors")}
    assert {name: (plain / name).read_bytes() for name in small} == small
    (adapter / "config.json").write_text("{}")
    (adapter / "generation_config.json").write_text('{"eos_token_id": 7}')
    (adapter / "chat_template.jinja").write_text("{{ messages }}")
    own = merged_here(made[0], adapter, tmp_path / "own")
    changed = {"generation_config.json": b'{"eos_token_id": 7}', "chat_template.jinja": b"{{ messages }}"}
    assert files_of(own) == files_of(plain) | changed


def test_tokenizer_of_the_adapter_is_taken_whole(made: tuple[Path, Path], adapter: Path, tmp_path: Path) -> None:
    base = shutil.copytree(made[0], tmp_path / "base")
    (base / "special_tokens_map.json").write_text('{"eos_token": "<old>"}')
    (adapter / "tokenizer.json").write_text("{}")
    merged = merged_here(base, adapter, tmp_path / "merged")
    assert (merged / "tokenizer.json").read_text() == "{}"
    assert not (merged / "special_tokens_map.json").exists()
    assert not (merged / "tokenizer_config.json").exists()


def test_calibration_text_and_statistics_come_along(adapter: Path, made: tuple[Path, Path], tmp_path: Path) -> None:
    for name in ("calibration.jsonl.gz", "statistics.safetensors"):
        (adapter / name).write_bytes(name.encode())
    merged = merged_here(made[0], adapter, tmp_path / "merged")
    assert (merged / "calibration.jsonl.gz").read_bytes() == b"calibration.jsonl.gz"
    assert (merged / "statistics.safetensors").read_bytes() == b"statistics.safetensors"
    assert not (merged / "adapter_config.json").exists()


def test_folder_that_is_not_empty_is_left_alone(adapter: Path, base: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(OutputError, match="is not empty"):
        merge_adapter(Adapter(adapter), base, tmp_path / "out", silent)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_tensors_are_read_one_at_a_time_and_reported(adapter: Path, base: Checkpoint, tmp_path: Path) -> None:
    events: list[str | int] = []

    class Traced:
        registered_as = base.registered_as
        shapes = base.shapes
        files = staticmethod(base.files)

        def source(self, name: str) -> ArraySource:
            source = base.source(name)

            def blocks() -> Iterator[Block]:
                events.append(name)
                yield from source.blocks()

            return ArraySource(source.dtype, source.shape, blocks)

    @contextmanager
    def traced(label: str, total: int, unit: str) -> Iterator[Advance]:
        assert (label, unit) == ("merging", "B")
        yield events.append
        assert sum(event for event in events if isinstance(event, int)) == total

    weights_ = Traced()
    assert isinstance(weights_, DenseWeights)
    merge_adapter(Adapter(adapter), weights_, tmp_path / "out", traced)
    assert sorted(name for name in events[::2] if isinstance(name, str)) == sorted(base.shapes)
    assert all(isinstance(event, int) for event in events[1::2])


def test_headers_are_checked_without_torch(made: tuple[Path, Path]) -> None:
    code = """
import sys
from pathlib import Path
from registry.checkpoint import Checkpoint
from registry.checkpoint.adapter import Adapter, is_adapter
base, adapter = map(Path, sys.argv[1:])
assert is_adapter(adapter)
Adapter(adapter).check(Checkpoint(base))
assert not {"torch", "transformers", "peft"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code, *made], check=True, timeout=600)
