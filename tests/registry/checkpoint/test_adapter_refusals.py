"""Proves: an adapter that a plain merge cannot do justice to is refused with the reason, from its headers alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from registry.checkpoint import Checkpoint
from registry.checkpoint.adapter import Adapter
from registry.errors import CheckpointError
from tests.registry.checkpoint.test_adapter import UP, Change, Q, added, config, weights


def removed(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


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


BAD: dict[str, tuple[Change, str]] = {
    "no config": (removed("adapter_config.json"), "is not an adapter: it has no adapter_config.json"),
    "config no JSON": (lambda f: (f / "adapter_config.json").write_text("{"), "adapter_config.json is not JSON"),
    "config a list": (lambda f: (f / "adapter_config.json").write_text("[]"), "is not a JSON object"),
    "no weights": (removed("adapter_model.safetensors"), "has no weights: no adapter_model.safetensors"),
    "pickle": (pickled, "has its weights in a pickle file, which runs code when opened"),
    "no safetensors": (
        lambda f: (f / "adapter_model.safetensors").write_bytes(b"nonsense"),
        "adapter_model.safetensors is not a safetensors file",
    ),
    "other method": (config(peft_type="LOHA"), "is a PEFT adapter of type LOHA, only LORA can be merged"),
    "no method": (config(peft_type=...), "is a PEFT adapter of type None"),
    "aLoRA": variant("alora_invocation_tokens", [1, 2]),
    "QALoRA": variant("use_qalora", True),
    "Arrow": variant("arrow_config", {"top_k": 3}),
    "KaSA": variant("kasa_config", {"beta": 1e-4}),
    "VeLoRA": variant("velora_config", {"num_groups": 64}),
    "MonteCLoRA": variant("monteclora_config", {"num_samples": 8}),
    "BD-LoRA": variant("use_bdlora", {"nblocks": 2}),
    "parameters": variant("target_parameters", ["mlp.experts.down_proj"]),
    "Megatron": variant("megatron_config", {"a": 1}),
    "replication": variant("layer_replication", [[0, 2], [1, 2]]),
    "trained tokens": variant("trainable_token_indices", [1, 2]),
    "biases of B": variant("lora_bias", True),
    "future": variant("use_something_new", True),
    "PiSSA": start("pissa"),
    "fast PiSSA": start("pissa_niter_16"),
    "OLoRA": start("olora"),
    "CorDA": start("corda"),
    "LoRA-GA": start("lora_ga"),
    "LoftQ": start("loftq"),
    "MiCA": start("mica"),
    "no rank": wrong("None", "a positive integer", r=...),
    "rank zero": wrong(0, "a positive integer", r=0),
    "rank no integer": wrong(4.0, "a positive integer", r=4.0),
    "rank a boolean": wrong(True, "a positive integer", r=True),
    "no alpha": wrong("None", "a finite number", lora_alpha=...),
    "alpha NaN": (config(lora_alpha=float("nan")), "is not JSON: NaN is not a number of JSON"),
    "alpha infinite": (config(lora_alpha=float("inf")), "is not JSON: Infinity is not a number of JSON"),
    "alpha too large": wrong("1e[+]300", "a finite number", lora_alpha=1e300),
    "alpha text": wrong("'6'", "a finite number", lora_alpha="6"),
    "rank pattern no object": wrong(r"\['q_proj'\]", "an object", rank_pattern=["q_proj"]),
    "rank pattern zero": wrong(0, "a positive integer", rank_pattern={"q_proj": 0}),
    "alpha pattern NaN": (config(alpha_pattern={"q_proj": float("nan")}), "is not JSON: NaN is not a number of JSON"),
    "pattern damaged": wrong(r"'\('", "a pattern of module names", rank_pattern={"(": 4}),
    "pattern for ever": wrong(
        r"'\(a\+\)\+b'", "a pattern of module names: it repeats too much", alpha_pattern={"(a+)+b": 4}
    ),
    "rsLoRA no boolean": wrong("'false'", "a boolean", use_rslora="false"),
    "base no name": wrong(r"\[1\]", "a name", base_model_name_or_path=[1]),
    "revision no name": wrong("7", "a name", revision=7),
    "modules no list": wrong("'lm_head'", "a list", modules_to_save="lm_head"),
    "no tensors": (weights(lambda t: t.clear()), "adapter_model.safetensors has no tensors"),
    "A without B": (weights(lambda t: t.pop(f"{Q}.lora_B.weight")), "there are A, magnitude, .* asks for A, B, magn"),
    "magnitude missing": (weights(lambda t: t.pop(f"{Q}.lora_magnitude_vector")), "there are A, B, .* for A, B, magn"),
    "magnitude of LoRA": (config(use_dora=False), "there are A, B, magnitude, adapter_config.json asks for A, B$"),
    "no prefix": (added(model__norm__weight=torch.ones(32)), "model.norm.weight does not begin with base_model.model."),
    "other dtype": (
        weights(lambda t: t.update({f"{Q}.lora_A.weight": torch.ones(4, 32, dtype=torch.float64)})),
        f"tensor {Q}.lora_A.weight has dtype F64, supported are bfloat16, float16, float32",
    ),
    "twice": (
        weights(lambda t: t.update({f"{Q}{infix}.weight": torch.ones(32, 32) for infix in ("", ".base_layer")})),
        f"{Q}.*weight and {Q}.*weight are for the same",
    ),
    "twice by two names": (
        added(**{f"base_model__model__{n}__weight": torch.ones(320, 32) for n in ("lm_head", "embed_out")}),
        r"embed_out.weight and base_model.model.lm_head.weight are for the same",
    ),
    # against the base
    "rank of another": (
        config(r=8),
        r"lora_A.weight has shape \[4, .*\], adapter_config.json and the base ask for \[8,",
    ),
    "rank pattern of another": (config(rank_pattern={"q_proj": 2}), r"has shape \[4, 32\], .* ask for \[2, 32\]"),
    "A of another": (
        weights(lambda t: t.update({f"{UP}.lora_A.weight": torch.ones(4, 33)})),
        rf"tensor {UP}.lora_A.weight has shape \[4, 33\], .* the base ask for \[4, 32\]",
    ),
    "B of another": (
        weights(lambda t: t.update({f"{UP}.lora_B.weight": torch.ones(65, 4)})),
        rf"tensor {UP}.lora_B.weight has shape \[65, 4\], .* the base ask for \[64, 4\]",
    ),
    "magnitude of another": (
        weights(lambda t: t.update({f"{UP}.lora_magnitude_vector": torch.ones(1, 64)})),
        rf"tensor {UP}.lora_magnitude_vector has shape \[1, 64\], .* the base ask for \[64\]",
    ),
    "layer of another": (
        weights(
            lambda t: t.update({n.replace("rs.1.", "rs.2."): w.clone() for n, w in list(t.items()) if "rs.1." in n})
        ),
        r"model.layers.2.\S+, \S+, \S+ and 18 more are for no tensor of the base",
    ),
    "unknown part": (
        added(**{f"{Q}.lora_diag".replace(".", "__"): torch.ones(4)}),
        f"{Q}.lora_diag is for no tensor of the base",
    ),
    "no matrix": (
        weights(
            lambda t: t.update(
                {f"base_model.model.model.norm.lora_{n}": t[f"{Q}.lora_{n}"].clone() for n in ("A.weight", "B.weight")}
                | {"base_model.model.model.norm.lora_magnitude_vector": torch.ones(32)}
            )
        ),
        r"model.norm.lora_A.weight is for model.norm.weight, which is not a matrix but has shape \[32\]",
    ),
    "whole of another": (
        added(base_model__model__model__norm__weight=torch.ones(33)),
        r"tensor base_model.model.model.norm.weight has shape \[33\], .* ask for \[32\]",
    ),
    "fewer tokens": (
        added(base_model__model__lm_head__weight=torch.ones(319, 32)),
        "lm_head.weight has 319 rows, the base's table 320, and 320 tokens need one",
    ),
    "tokens of one alone": (
        added(base_model__model__lm_head__weight=torch.ones(326, 32)),
        "merged, model.embed_tokens.weight has 320 rows and lm_head.weight has 326 rows",
    ),
    "module not saved": (
        config(modules_to_save=["norm", "lm_head"]),
        "model.norm.weight is in modules_to_save but not in adapter_model.safetensors",
    ),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_adapter_is_refused_with_the_reason_before_a_weight_is_read(
    case: str, adapter: Path, base: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, message = BAD[case]
    change(adapter)
    monkeypatch.setattr("registry.checkpoint.adapter.weight_source", None)
    with pytest.raises(CheckpointError, match=message) as caught:
        Adapter(adapter, "hf://me/adapter").check(base)
    assert caught.value.hint
