"""The registration pass against a bare forward pass of the same model: python -m benchmarks.registration_pass

Both sides read the same batches of the same text in the dtype that `--dtype auto` chooses, bfloat16 or float32. The
bare pass is what `transformers` does, logits included; in float32 its weights are, too. Ours takes the exact statistics
of all sites, and finishes them; its weights stay in bfloat16. Models are random weights of real shapes.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.alternating import SHORT, Comparison, alternate, run
from registry.calibration import Calibration
from registry.checkpoint import Checkpoint
from registry.io.dtypes import AUTO
from registry.progress import silent
from registry.runtime.upcast import compute_dtype, load_for_pass
from registry.statistics.forward_pass import take_statistics
from registry.statistics.settings import PassSettings
from registry.statistics.site_sums import Batches

TARGET = 1.15


@dataclass(frozen=True)
class Shape:
    """A model, the tokens that it reads, and how often."""

    name: str
    model_type: str
    tokens: int
    rounds: int
    config: Mapping[str, Any]


SHAPES = (
    Shape(
        "135M parameters, as SmolLM2",
        "llama",
        4096,
        5,
        {
            "vocab_size": 49_152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
        },
    ),
    Shape(
        "494M parameters, as Qwen2.5",
        "qwen2",
        4096,
        3,
        {
            "vocab_size": 151_936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
    Shape(
        "1.2B parameters, as Llama 3.2",
        "llama",
        4096,
        1,
        {
            "vocab_size": 128_256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "tie_word_embeddings": True,
        },
    ),
)


def make_checkpoint(shape: Shape, folder: Path) -> Path:
    """Write random weights of a shape in bfloat16."""
    config = AutoConfig.for_model(shape.model_type, max_position_embeddings=4096, **shape.config)
    config.dtype = torch.bfloat16
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 2.0)  # channels of different scales
    model.save_pretrained(folder)
    return folder


def measure(scratch: Path) -> list[Comparison]:
    """Return a comparison for each shape."""
    found = []
    settings = PassSettings(device="cpu")
    for shape in SHAPES[:1] if SHORT in os.environ else SHAPES:
        folder = make_checkpoint(shape, scratch / shape.model_type)
        checkpoint = Checkpoint(folder)
        dtype = compute_dtype(AUTO, checkpoint.dtype, "cpu")
        model = load_for_pass(folder, AUTO, "cpu")
        plain = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        windows = shape.tokens // settings.seq_len
        ids = torch.randint(0, shape.config["vocab_size"], (windows, settings.seq_len), dtype=torch.int32)
        calibration = Calibration(ids, torch.full((windows,), settings.seq_len, dtype=torch.int32), "random")

        def ours(
            checkpoint: Checkpoint = checkpoint, model: Any = model, calibration: Calibration = calibration
        ) -> object:
            return take_statistics(checkpoint, "", model, calibration, settings, progress=silent)

        def bare(model: Any = plain, calibration: Calibration = calibration) -> None:
            with torch.no_grad():
                for _, tokens, _ in Batches(calibration, settings.batch_size).after(0):
                    model(input_ids=tokens, use_cache=False)

        claim = f"registration pass against a bare forward pass, {shape.name}"
        found.append(
            alternate(claim, ours, bare, shape.rounds, target=TARGET, note=f"{dtype}, {shape.tokens:,} tokens")
        )
        del model, plain, ours, bare
    return found


if __name__ == "__main__":
    run(measure)
