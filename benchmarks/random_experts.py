"""A registry of random experts of a real shape, for benchmarks of composing."""

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, PreTrainedTokenizerFast

from registry import PassSettings, Registry
from registry.families import FAMILIES

CONFIG = LlamaConfig(
    vocab_size=128_256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    max_position_embeddings=4096,
    tie_word_embeddings=True,
    dtype="bfloat16",
    bos_token_id=0,
    eos_token_id=0,
    architectures=["LlamaForCausalLM"],
)

HOMES = "REG_BENCH_HOMES"
"""Environment variable: a folder in which registries stay for the next benchmark that asks for the same."""


def make_checkpoint(folder: Path, seed: int) -> Path:
    """Write a random expert, layer by layer."""
    folder.mkdir(parents=True)
    draw = torch.Generator().manual_seed(seed)
    family = FAMILIES["llama"]
    architecture = family.architecture(CONFIG.to_dict())
    shapes = family.trunk_shapes(architecture) | family.mlp_shapes(architecture)
    parts: dict[str, list[str]] = {}
    for name in shapes:
        parts.setdefault(".".join(name.split(".")[:3]) if ".layers." in name else "", []).append(name)
    files = dict[str, str]()
    for number, names in enumerate(parts.values(), start=1):
        tensors = {}
        for name in names:
            tensor = torch.empty(shapes[name], dtype=torch.bfloat16)
            tensors[name] = tensor.fill_(1.0) if "norm" in name else tensor.normal_(0, 0.02, generator=draw)
        file = f"model-{number:05}-of-{len(parts):05}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        files |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    CONFIG.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """Write a small tokenizer."""
    model = ByteLevelBPETokenizer()
    model.train_from_iterator(["to be or not to be"], vocab_size=300, special_tokens=["<eos>"], show_progress=False)
    PreTrainedTokenizerFast(tokenizer_object=model._tokenizer, bos_token="<eos>").save_pretrained(folder)


def text_of(number: int) -> str:
    """Return the text of an expert: half of it is a letter of its own."""
    return f"to be or not to be that is the question {chr(96 + number) * 40} " * 400


def fill(scratch: Path, experts: int, **shape: int) -> tuple[Path, list[str]]:
    """Register a base model and experts with the statistics of a few tokens; return the home and the experts' names.

    Args:
        scratch: where.
        experts: how many.
        shape: keys of a Llama's config.json, in place of those of Llama-3.2-1B.
    """
    for key, value in shape.items():
        setattr(CONFIG, key, value)
    names = [f"expert{number}" for number in range(experts)]
    home = scratch / "home"
    if HOMES in os.environ:
        home = Path(os.environ[HOMES], "-".join(map(str, (experts, *shape.values()))))
        if home.exists():
            return home, names
    text = scratch / "text.txt"
    with Registry(home) as registry:
        for seed, name in enumerate(("base", *names)):
            folder = make_checkpoint(scratch / "checkpoint", seed)
            if name == "base":
                registry.add_base(name, folder)
            else:
                text.write_text(text_of(seed), encoding="utf-8")
                settings = PassSettings(tokens=256, seq_len=128, batch_size=2)
                registry.add_expert(name, folder, data=[text], settings=settings, allow_unrelated=True)
            shutil.rmtree(folder)
    return home, names
