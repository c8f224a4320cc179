"""Proves: an adapter that a plain merge cannot do justice to is refused with the reason, from its headers alone."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.checkpoint import Checkpoint
from registry.checkpoint.adapter import Adapter
from registry.errors import CheckpointError
from tests.registry.checkpoint.changes import Change, removed, written
from tests.registry.checkpoint.changes import adapter_config as config
from tests.registry.checkpoint.changes import adapter_weights as weights
from tests.registry.checkpoint.test_adapter import UP, Q

MODEL = "base_model.model."


def added(tensors: dict[str, torch.Tensor]) -> Change:
    """Return a change that adds tensors, or replaces them."""
    return weights(lambda t: t.update(tensors))


def pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def variant(name: str, value: object) -> tuple[Change, str]:
    """Return a setting that another merge goes with, and how it is refused."""
    return config(**{name: value}), f"adapter_config.json sets {name}; only LoRA, rsLoRA and DoRA can be merged exactly"


def start(name: object) -> tuple[Change, str]:
    return config(init_lora_weights=name), f"init_lora_weights is {name!r}; only with true, false, none, gaussian"


def wrong(value: object, what: str, **changes: Any) -> tuple[Change, str]:
    (key,) = changes
    return config(**changes), f"adapter_config.json: {key} is {value}, not {what}"


def shaped(name: str, shape: list[int], expected: list[int]) -> tuple[Change, str]:
    message = f"tensor {name} has shape {shape}, adapter_config.json and the base ask for {expected}"
    return added({name: torch.ones(shape)}), re.escape(message)


BAD: dict[str, tuple[Change, str]] = {
    "no config": (removed("adapter_config.json"), "is not an adapter: it has no adapter_config.json"),
    "config no JSON": (written("adapter_config.json", b"{"), "adapter_config.json is not JSON"),
    "no weights": (removed("adapter_model.safetensors"), "has no weights: no adapter_model.safetensors"),
    "pickle": (pickled, "has its weights in a pickle file, which runs code when opened"),
    "no safetensors": (
        written("adapter_model.safetensors", b"nonsense"),
        "adapter_model.safetensors is not a safetensors file",
    ),
    "other method": (config(peft_type="LOHA"), "is a PEFT adapter of type LOHA, only LORA can be merged"),
    "aLoRA": variant("alora_invocation_tokens", [1, 2]),
    "parameters": variant("target_parameters", ["mlp.experts.down_proj"]),
    "trained tokens": variant("trainable_token_indices", [1, 2]),
    "future": variant("use_something_new", True),
    "PiSSA": start("pissa"),
    "no rank": wrong("None", "a positive integer", r=...),
    "rank a boolean": wrong(True, "a positive integer", r=True),
    "no alpha": wrong("None", "a finite number", lora_alpha=...),
    "alpha infinite": (config(lora_alpha=float("inf")), "is not JSON: Infinity is not a number of JSON"),
    "alpha too large": wrong("1e[+]300", "a finite number", lora_alpha=1e300),
    "alpha text": wrong("'6'", "a finite number", lora_alpha="6"),
    "rank pattern no object": wrong(r"\['q_proj'\]", "an object", rank_pattern=["q_proj"]),
    "rank pattern zero": wrong(0, "a positive integer", rank_pattern={"q_proj": 0}),
    "pattern damaged": wrong(r"'\('", "a pattern of module names", rank_pattern={"(": 4}),
    "pattern for ever": wrong(
        r"'\(a\+\)\+b'", "a pattern of module names: it repeats too much", alpha_pattern={"(a+)+b": 4}
    ),
    "rsLoRA no boolean": wrong("'false'", "a boolean", use_rslora="false"),
    "base no name": wrong(r"\[1\]", "a name", base_model_name_or_path=[1]),
    "modules no list": wrong("'lm_head'", "a list", modules_to_save="lm_head"),
    "no tensors": (weights(lambda t: t.clear()), "adapter_model.safetensors has no tensors"),
    "A without B": (weights(lambda t: t.pop(f"{Q}.lora_B.weight")), "there are A, magnitude, .* asks for A, B, magn"),
    "magnitude missing": (weights(lambda t: t.pop(f"{Q}.lora_magnitude_vector")), "there are A, B, .* for A, B, magn"),
    "magnitude of LoRA": (config(use_dora=False), "there are A, B, magnitude, adapter_config.json asks for A, B$"),
    "no prefix": (added({"model.norm.weight": torch.ones(32)}), f"model.norm.weight does not begin with {MODEL}"),
    "other dtype": (
        added({f"{Q}.lora_A.weight": torch.ones(4, 32, dtype=torch.float64)}),
        f"tensor {Q}.lora_A.weight has dtype F64, supported are bfloat16, float16, float32",
    ),
    "twice": (
        added({f"{Q}{infix}.weight": torch.ones(32, 32) for infix in ("", ".base_layer")}),
        f"{Q}.*weight and {Q}.*weight are for the same",
    ),
    "twice by two names": (
        added({f"{MODEL}{name}.weight": torch.ones(320, 32) for name in ("lm_head", "embed_out")}),
        r"embed_out.weight and base_model.model.lm_head.weight are for the same",
    ),
    "two adapters": (
        added({f"{Q}.lora_A.{run}.weight": torch.ones(4, 32) for run in ("a", "b")}),
        "has several adapters: a, b",
    ),
    "one name twice": (added({f"{Q}.lora_A.default.weight": torch.ones(4, 32)}), "several tensors are .*lora_A.weight"),
    "empty": (
        added({f"{Q}.lora_{part}.weight": torch.zeros(0) for part in "AB"}),
        "lora_A.weight, .*lora_B.weight are empty: it was saved under DeepSpeed ZeRO-3",
    ),
    "fewer rows than tokens": (
        added({f"{MODEL}{name}.weight": torch.ones(300, 32) for name in ("model.embed_tokens", "lm_head")}),
        "embed_tokens.weight has 300 rows, the base's table 320, and 320 tokens need one",
    ),
    "tokens of one alone": (
        added({f"{MODEL}lm_head.weight": torch.ones(326, 32)}),
        "merged, model.embed_tokens.weight has 320 rows and lm_head.weight has 326 rows",
    ),
    "module not saved": (
        config(modules_to_save=["norm", "lm_head"]),
        "model.norm.weight is in modules_to_save but not in adapter_model.safetensors",
    ),
}
OF_ANOTHER_BASE: dict[str, tuple[Change, str]] = {
    "rank": (config(r=8), r"lora_A.weight has shape \[4, .*\], adapter_config.json and the base ask for \[8,"),
    "rank pattern": (config(rank_pattern={"q_proj": 2}), r"has shape \[4, 32\], .* ask for \[2, 32\]"),
    "B": shaped(f"{UP}.lora_B.weight", [65, 4], [64, 4]),
    "magnitude": shaped(f"{UP}.lora_magnitude_vector", [1, 64], [64]),
    "whole": shaped(f"{MODEL}model.norm.weight", [33], [32]),
    "layer": (
        weights(
            lambda t: t.update({n.replace("rs.1.", "rs.2."): w.clone() for n, w in list(t.items()) if "rs.1." in n})
        ),
        r"model.layers.2.\S+, \S+, \S+ and 18 more are for no tensor of the base",
    ),
    "unknown part": (added({f"{Q}.lora_diag": torch.ones(4)}), f"{Q}.lora_diag is for no tensor of the base"),
    "no matrix": (
        added(
            {f"{MODEL}model.norm.lora_{part}.weight": torch.ones(4, 4) for part in "AB"}
            | {f"{MODEL}model.norm.lora_magnitude_vector": torch.ones(32)}
        ),
        r"model.norm.lora_A.weight is for model.norm.weight, which is not a matrix but has shape \[32\]",
    ),
}


@pytest.mark.parametrize("case", [*BAD, *OF_ANOTHER_BASE])
def test_bad_adapter_is_refused_with_the_reason_before_a_weight_is_read(
    case: str, adapter: Path, base: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, message = (BAD | OF_ANOTHER_BASE)[case]
    change(adapter)
    monkeypatch.setattr("registry.checkpoint.model_files.stored_rows", None)
    with pytest.raises(CheckpointError, match=message) as caught:
        Adapter.of_folder(adapter, "hf://me/adapter").check(base)
    assert caught.value.hint
    assert ("base model that the adapter was trained on" in caught.value.hint) is (case in OF_ANOTHER_BASE)
