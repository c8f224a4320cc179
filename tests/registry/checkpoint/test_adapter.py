"""Proves: an adapter merges into the bits that PEFT's own merge has; one that would not is refused with the reason.

It is read by PEFT's names, whatever a training program left in them.
"""

import json
import re
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
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from registry.checkpoint import Checkpoint
from registry.checkpoint.adapter import Adapter, Merged, copy_carried, is_adapter
from registry.errors import CheckpointError
from registry.progress import Advance, silent
from registry.runtime.loading import quiet_transformers
from store.arrays import ArraySource, Block
from tests.conftest import files_of
from tests.models import make_model, save_checkpoint
from tests.registry.checkpoint.changes import ADAPTER, renamed
from tests.registry.checkpoint.changes import adapter_config as config
from tests.registry.checkpoint.changes import adapter_weights as weights

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
Q = "base_model.model.model.layers.0.self_attn.q_proj"
UP = "base_model.model.model.layers.1.mlp.up_proj"


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
    Merged(Adapter.of_folder(adapter), Checkpoint(base, remote_code=True)).write(out, silent)
    copy_carried(adapter, out)
    return out


def bits(folder: Path) -> dict[str, tuple[torch.dtype, tuple[int, ...], bytes]]:
    """Return dtype, shape and bytes of every tensor of a model folder."""
    tensors = load_file(folder / "model.safetensors")
    return {
        name: (tensor.dtype, tuple(tensor.shape), tensor.contiguous().view(torch.uint8).numpy().tobytes())
        for name, tensor in tensors.items()
    }


DORA = {"target_modules": LINEAR, "use_dora": True}
PATTERNS = {
    "target_modules": LINEAR,
    "rank_pattern": {"q_proj": 2, "model.layers.1.mlp.up_proj": 6, r"^model\.layers\.\d+\.self_attn\.(v|k)_proj": 3},
    "alpha_pattern": {r"layers.\d.mlp.*": 11, "o_proj": 0.5},
}
SAVED = {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head", "input_layernorm"]}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("llama", {"target_modules": LINEAR, "init_lora_weights": "gaussian"}),
    "DoRA": ("llama", DORA),
    "DoRA with rsLoRA": ("qwen2", DORA | {"use_rslora": True, "init_lora_weights": "orthogonal"}),
    "DoRA of old": ("llama", DORA),
    "patterns rsLoRA": ("qwen2", PATTERNS | {"use_rslora": True}),
    "embeddings": ("llama", {"target_modules": ["embed_tokens", "lm_head", "q_proj"]}),
    "embeddings DoRA": ("qwen2", {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True}),
    "modules to save": ("llama", SAVED),
    "module of modules to save": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["mlp"]}),
    "biases of LoRA": ("qwen2", {"target_modules": ["q_proj"], "bias": "lora_only"}),
    "all biases": ("qwen2", {"target_modules": ["q_proj", "up_proj"], "bias": "all"}),
    "head of another name": ("gpt_neox", {"target_modules": ["query_key_value", "lm_head", "embed_in"]}),
    "fan_in_fan_out of linear layers": ("llama", {"target_modules": LINEAR}),
    "EVA": ("qwen2", PATTERNS),
    "bfloat16 adapter": ("llama", DORA),
}
CHANGES = {
    "DoRA of old": weights(
        lambda t: [t.update({f"{n}.weight": t.pop(n)}) for n in list(t) if n.endswith("magnitude_vector")]
    ),
    "fan_in_fan_out of linear layers": config(fan_in_fan_out=True),
    "EVA": config(init_lora_weights="eva"),
    "bfloat16 adapter": weights(lambda t: t.update({name: tensor.bfloat16() for name, tensor in t.items()})),
}
"""What is changed of an adapter that PEFT wrote."""


@pytest.mark.check(after=5)
@pytest.mark.trust(after=11)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
def test_merge_has_the_bits_of_peft(case: str, dtype: torch.dtype, tmp_path: Path, tokenizer: Any) -> None:
    family, options = CASES[case]
    base = save_checkpoint(make_model(family, 100), tmp_path / "base", tokenizer, dtype=dtype)
    adapter = train(base, tmp_path / "adapter", dtype=dtype, **options)
    if case in CHANGES:
        CHANGES[case](adapter)
    ours = merged_here(base, adapter, tmp_path / "ours")
    assert bits(ours) == bits(merged_by_peft(base, adapter, tmp_path / "theirs", dtype))
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


@pytest.mark.parametrize(
    ("tied", "options"),
    [
        (False, {"rows": 326, "modules_to_save": ["embed_tokens", "lm_head"]}),
        (True, {"rows": 326}),
        (True, {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    ],
    ids=["tokens added", "tokens added to a tied base", "tied base"],
)
def test_tables_of_tokens_are_saved_whole(tied: bool, options: dict[str, Any], tmp_path: Path, tokenizer: Any) -> None:
    """They may be larger than the base's, and a head that is tied stays so."""
    model, rows = make_model("llama", 100, tie_word_embeddings=tied), options.get("rows")
    base = save_checkpoint(model, tmp_path / "base", tokenizer, dtype=torch.bfloat16)
    adapter = train(base, tmp_path / "adapter", dtype=torch.bfloat16, target_modules=LINEAR, **options)
    ours = merged_here(base, adapter, tmp_path / "ours")
    assert bits(ours) == bits(merged_by_peft(base, adapter, tmp_path / "theirs", torch.bfloat16, rows))
    assert ("lm_head.weight" in bits(ours)) is not tied
    old, new = (json.loads((folder / "config.json").read_text()) for folder in (base, ours))
    assert new == old | {"vocab_size": rows or 320}
    assert Checkpoint(ours).shapes["model.embed_tokens.weight"] == (rows or 320, 32)


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


NAMES: dict[str, Callable[[str], str]] = {
    "adapter's name": lambda name: name.replace(".weight", ".my-run.weight"),
    "compiled": lambda name: f"_orig_mod.{name}",
    "distributed": lambda name: f"module.{name.replace('.weight', '.default.weight')}",
}


@pytest.mark.parametrize("case", NAMES)
def test_names_are_those_that_peft_gives(case: str, made: tuple[Path, Path], adapter: Path, tmp_path: Path) -> None:
    renamed(NAMES[case], ADAPTER)(adapter)
    named = Adapter.of_folder(adapter)
    Merged(named, Checkpoint(made[0])).write(tmp_path / "found", silent)
    assert files_of(tmp_path / "found") == files_of(merged_here(*made, tmp_path / "expected"))
    (note,) = named.notes
    assert re.match(r"(28|42) of 42 tensors have names of another form: ", note)
    assert Adapter.of_folder(made[1]).notes == []


def test_modules_that_no_tensor_changes_are_named(adapter: Path, base: Checkpoint) -> None:
    config(target_modules=["q_proj", "up_proj", "lm_head", "conv1"])(adapter)
    opened = Adapter.of_folder(adapter)
    opened.check(base)
    assert opened.notes == ["lm_head, conv1 are in target_modules, and no tensor changes one: they stay the base's"]


def test_modules_saved_by_name_are_the_ones_trained(adapter: Path, base: Checkpoint, tmp_path: Path) -> None:
    norm, trained = "base_model.model.model.norm", torch.arange(1.0, 33.0)
    copies = {f"{norm}.modules_to_save.default.weight": trained, f"{norm}.original_module.weight": torch.ones(32)}
    weights(lambda t: t.update(copies))(adapter)
    config(modules_to_save=["norm"])(adapter)
    opened = Adapter.of_folder(adapter)
    Merged(opened, base).write(tmp_path / "found", silent)
    assert torch.equal(load_file(tmp_path / "found" / "model.safetensors")["model.norm.weight"], trained)
    assert f"{norm}.original_module.weight is not used" in "\n".join(opened.notes)


@pytest.mark.parametrize("head", [True, False], ids=["both tables", "the embedding"])
def test_rows_that_no_token_has_stay_the_bases(tmp_path: Path, tokenizer: Any, head: bool) -> None:
    """The base's tables are padded, and the adapter's have the tokens alone."""
    base = save_checkpoint(make_model("llama", 100, vocab_size=384), tmp_path / "base", tokenizer)
    folder = train(base, tmp_path / "adapter", target_modules=["q_proj"])
    table = torch.arange(330 * 32.0).reshape(330, 32)
    tables = {"model.embed_tokens.weight": table} | ({"lm_head.weight": -table} if head else {})
    weights(lambda t: t.update({f"base_model.model.{name}": table for name, table in tables.items()}))(folder)
    adapter = Adapter.of_folder(folder)
    Merged(adapter, Checkpoint(base)).write(tmp_path / "found", silent)
    before, found = (load_file(place / "model.safetensors") for place in (base, tmp_path / "found"))
    for name, table in tables.items():
        assert torch.equal(found[name], torch.cat([table, before[name][330:]]))
    assert "330 rows, the base's table 384: the last 54, which no token has, stay the base's" in adapter.notes[0]
    assert (tmp_path / "found" / "config.json").read_bytes() == (base / "config.json").read_bytes()


@pytest.mark.parametrize(
    ("names", "value", "message"),
    [
        ([f"{Q}.lora_A.weight"], float("nan"), f"^me: tensor {Q}.lora_A.weight has NaN or infinite weights"),
        ([f"{UP}.lora_magnitude_vector"], float("inf"), f"^me: tensor {UP}.lora_magnitude_vector has NaN or infinite"),
        (
            [f"{UP}.lora_A.weight", f"{UP}.lora_B.weight"],
            1e30,
            "^me: merging makes weights of model.layers.1.mlp.up_proj.weight NaN or inf",
        ),
    ],
    ids=["NaN", "infinite", "infinite when merged"],
)
def test_weights_that_are_not_finite_are_refused_by_name(
    names: list[str], value: float, message: str, adapter: Path, base: Checkpoint, tmp_path: Path
) -> None:
    weights(lambda t: [t[name].fill_(value) for name in names])(adapter)
    with pytest.raises(CheckpointError, match=message):
        Merged(Adapter.of_folder(adapter, "me"), base).write(tmp_path / "out", silent)
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_hint_names_the_base_that_the_adapter_names(adapter: Path, base: Checkpoint) -> None:
    config(r=8, base_model_name_or_path="org/base", revision="v1")(adapter)
    opened = Adapter.of_folder(adapter)
    assert (opened.settings.base_name, opened.settings.revision, opened.label) == ("org/base", "v1", str(adapter))
    with pytest.raises(CheckpointError) as caught:
        opened.check(base)
    assert caught.value.hint == "give the base model that the adapter was trained on, org/base"
    config(base_model_name_or_path="", revision=None)(adapter)
    assert (Adapter.of_folder(adapter).settings.base_name, Adapter.of_folder(adapter).settings.revision) == (None, None)


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
    made: tuple[Path, Path], adapter: Path, tmp_path: Path
) -> None:
    plain = files_of(merged_here(made[0], adapter, tmp_path / "plain"))
    small = {name: data for name, data in files_of(made[0]).items() if not name.endswith(".safetensors")}
    assert {name: plain[name] for name in small} == small
    own = {
        "generation_config.json": b'{"eos_token_id": 7}',
        "chat_template.jinja": b"{{ messages }}",
        "calibration.jsonl.gz": b"calibration",
        "statistics.safetensors": b"statistics",
    }
    for name, data in {"config.json": b"{}", **own}.items():
        (adapter / name).write_bytes(data)
    assert files_of(merged_here(made[0], adapter, tmp_path / "own")) == plain | own


def test_tokenizer_of_the_adapter_is_taken_whole(made: tuple[Path, Path], adapter: Path, tmp_path: Path) -> None:
    base = shutil.copytree(made[0], tmp_path / "base")
    (base / "special_tokens_map.json").write_text('{"eos_token": "<old>"}')
    (adapter / "tokenizer.json").write_text("{}")
    merged = merged_here(base, adapter, tmp_path / "merged")
    assert (merged / "tokenizer.json").read_text() == "{}"
    assert not (merged / "special_tokens_map.json").exists()
    assert not (merged / "tokenizer_config.json").exists()


def test_tensors_are_read_one_at_a_time_and_reported(adapter: Path, base: Checkpoint, tmp_path: Path) -> None:
    events: list[str | int] = []

    class Traced(Checkpoint):
        def source(self, name: str) -> ArraySource:
            source = super().source(name)

            def blocks() -> Iterator[Block]:
                events.append(name)
                yield from source.blocks()

            return ArraySource(source.dtype, source.shape, blocks)

    @contextmanager
    def traced(label: str, total: int, unit: str) -> Iterator[Advance]:
        assert (label, unit) == ("merging", "B")
        yield events.append
        assert sum(event for event in events if isinstance(event, int)) == total

    Merged(Adapter.of_folder(adapter), Traced(base.folder)).write(tmp_path / "out", traced)
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
Adapter.of_folder(adapter).check(Checkpoint(base))
assert not {"torch", "transformers", "peft"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code, *made], check=True, timeout=600)
