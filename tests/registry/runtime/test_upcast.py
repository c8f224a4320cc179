"""Proves: float32 over weights of bfloat16 or float16 gives the bits of the model loaded in float32."""

import platform
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from registry.checkpoint import Checkpoint
from registry.errors import InvalidInputError
from registry.families import FAMILIES
from registry.io.dtypes import AUTO
from registry.progress import silent
from registry.runtime import upcast as module
from registry.runtime.loading import load_model
from registry.runtime.upcast import load_for_pass, upcast
from registry.statistics.forward_pass import take_statistics
from registry.statistics.settings import PassSettings
from tests.models import make_model, save_checkpoint
from tests.registry.statistics.windows import windows
from tests.remarks import Remarks

WINDOWS = windows(4)


@pytest.mark.check(after=2)
@pytest.mark.trust(after=6)
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_statistics_and_logits_equal_those_in_float32(family: str, name: str, tmp_path: Path, tokenizer: Any) -> None:
    dtype, ids = getattr(torch, name), WINDOWS.ids.long()
    folder = save_checkpoint(make_model(family, 101, head_dim=8), tmp_path / "model", tokenizer, dtype=dtype)
    narrow, wide = load_for_pass(folder, "float32", "cpu"), load_model(folder, "float32", "cpu")
    assert {weight.dtype for weight in narrow.parameters()} == {dtype}
    with torch.no_grad():
        assert torch.equal(narrow(input_ids=ids).logits, wide(input_ids=ids).logits)
    checkpoint = Checkpoint(folder, remote_code=True)
    settings = PassSettings(batch_size=2, dtype="float32", device="cpu")
    one, other = (
        take_statistics(checkpoint, "", model, WINDOWS, settings, progress=silent) for model in (narrow, wide)
    )
    assert one == other
    assert {weight.dtype for weight in narrow.parameters()} == {dtype}


def test_a_model_is_cast_whole_where_memory_or_dtypes_ask_for_it(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_checkpoint(make_model("llama", 101), tmp_path / "model", tokenizer, dtype=torch.bfloat16)

    def dtype(**options: Any) -> torch.dtype:
        return load_for_pass(folder, "float32", "cpu", **options).dtype  # type: ignore[no-any-return]

    assert dtype() == torch.bfloat16
    assert dtype(prefer_whole=True) == torch.float32
    monkeypatch.setattr(module, "free_memory", lambda device: 100_000)
    assert dtype(prefer_whole=True) == torch.bfloat16
    model = make_model("llama", 101).bfloat16()
    model.model.norm.float()
    model.save_pretrained(folder)
    assert dtype() == torch.float32


def test_an_exception_leaves_the_weights_as_they_are() -> None:
    model = upcast(make_model("llama", 101).bfloat16())

    def stop(*_: Any) -> None:
        raise RuntimeError("stop")

    layer: nn.Module = model.model.layers[1].mlp.down_proj
    handle = layer.register_forward_pre_hook(stop)
    with pytest.raises(RuntimeError, match="stop"):
        model(input_ids=WINDOWS.ids.long())
    handle.remove()
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert model(input_ids=WINDOWS.ids.long()).logits.dtype == torch.float32


def test_auto_is_the_dtype_of_the_weights_where_it_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_fast", lambda dtype, device: device == "cuda" or dtype == "float32")
    assert module.compute_dtype(AUTO, "bfloat16", "cuda:0") == "bfloat16"
    assert module.compute_dtype(AUTO, "bfloat16", "cpu") == "float32"
    assert module.compute_dtype(AUTO, "float32", "cpu") == "float32"
    assert module.compute_dtype("float16", "float32", "cpu") == "float16"
    remarks = Remarks()
    for wanted, device in ((AUTO, "cuda"), ("float32", "cpu"), (AUTO, "cpu")):
        module.report_dtype(wanted, "bfloat16", device, remarks)
    assert remarks.sentences == ["computing in float32: this CPU is slow in bfloat16, the dtype of the weights"]


@pytest.mark.parametrize("bound", ["AVX2", "AVX512_CORE", "AVX512_CORE_VNNI"])
def test_a_bound_on_the_instructions_counts(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", bound)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    if bound == "AVX2":  # oneDNN itself answers; it read the bound when it was loaded
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    module.is_fast.cache_clear()
    assert not module.is_fast("bfloat16", "cpu")
    assert not module.is_fast("float16", "cpu")
    module.is_fast.cache_clear()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_memory_of_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="device 'cuda' cannot be used") as caught:
        module.free_memory("cuda")
    assert caught.value.hint == "name another --device"
