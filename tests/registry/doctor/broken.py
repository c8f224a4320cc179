"""Model folders broken in one way each."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from registry.runtime.loading import load_model, load_tokenizer
from tests.trained_models import rounds

Tensors = dict[str, torch.Tensor]
Break = Callable[[Path], None]

ATTENTION = "model.layers.1.self_attn.q_proj.weight"
ROUTER = "model.layers.1.block_sparse_moe.gate.weight"
EXPERT = "model.layers.1.block_sparse_moe.experts.1"
_SINGLE = "model.safetensors"


def tensors(change: Callable[[Tensors], object]) -> Break:
    """Return a function that changes the tensors of a folder."""

    def breaking(folder: Path) -> None:
        found = load_file(folder / _SINGLE)
        change(found)
        save_file({name: tensor.contiguous() for name, tensor in found.items()}, folder / _SINGLE, {"format": "pt"})

    return breaking


def settings(file: str = "config.json", **values: Any) -> Break:
    """Return a function that changes keys of a JSON file of a folder."""

    def breaking(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | values))

    return breaking


def fill(name: str, value: float) -> Break:
    """Return a function that sets some weights of a tensor."""
    return tensors(lambda found: found[name][:2].fill_(value))


def shards(folder: Path) -> list[Path]:
    """Split the weights of a folder into three files with an index, and return the files."""
    found = load_file(folder / _SINGLE)
    (folder / _SINGLE).unlink()
    names = sorted(found)
    where: dict[str, str] = {}
    for number in range(3):
        file = f"model-{number + 1:05d}-of-00003.safetensors"
        save_file({name: found[name] for name in names[number::3]}, folder / file, {"format": "pt"})
        where |= dict.fromkeys(names[number::3], file)
    (folder / f"{_SINGLE}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return sorted(folder.glob("model-*.safetensors"))


def missing_shard(folder: Path) -> None:
    shards(folder)[1].unlink()


def truncated_shard(folder: Path) -> None:
    path = shards(folder)[2]
    path.write_bytes(path.read_bytes()[:-100])


def pickles(folder: Path) -> None:
    (folder / _SINGLE).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weights": 1}))


def config_cut(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama",')


def chat_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }")


def small_embedding(folder: Path) -> None:
    def cut(found: Tensors) -> None:
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            found[name] = found[name][:300].clone()

    tensors(cut)(folder)
    settings(vocab_size=300)(folder)


def shuffled_attention(found: Tensors) -> None:
    draw = torch.Generator().manual_seed(0)
    for name, weight in found.items():
        if "self_attn" in name or "down_proj" in name:
            order = torch.randperm(weight.numel(), generator=draw)
            weight.copy_(4 * weight.flatten()[order].view_as(weight))


def swapped_experts(found: Tensors) -> None:
    for name in [name for name in found if ".experts.0." in name]:
        other = name.replace(".experts.0.", ".experts.1.")
        found[name], found[other] = found[other], found[name]


def loop(folder: Path) -> None:
    """Make a model blind to the text: it gives every token its share of all code, so that it always writes the same."""
    name = "model.embed_tokens.weight"
    tensors(lambda found: found[name].copy_(found[name][5:6].clone()))(folder)
    model: Any = load_model(folder, "float32", "cpu")
    tokens = load_tokenizer(folder)(" ".join(rounds("code", 40, seed=2)))["input_ids"]
    scores = torch.bincount(torch.tensor(tokens), minlength=len(model.lm_head.weight)).add(0.01).log()
    with torch.no_grad():
        hidden = model.model(input_ids=torch.tensor([[1]])).last_hidden_state[0, 0]
    row = hidden / hidden.square().sum()
    tensors(lambda found: found["lm_head.weight"].copy_(scores[:, None] * row))(folder)


def collapsed_routers(found: Tensors) -> None:
    """Give all experts of a layer the same router row, so that the first one wins every token."""
    for name in found:
        if name.endswith("gate.weight"):
            found[name] = found[name][:1].expand_as(found[name])


BROKEN: dict[str, tuple[str, Break, str]] = {
    "config.json is cut off": ("dense", config_cut, "files"),
    "a shard is missing": ("dense", missing_shard, "files"),
    "a shard is truncated": ("dense", truncated_shard, "files"),
    "weights are pickles": ("dense", pickles, "files"),
    "a tensor has whole numbers": (
        "dense",
        tensors(lambda found: found.update({ATTENTION: found[ATTENTION].to(torch.int8)})),
        "dtypes",
    ),
    "the vocabulary is larger than the embedding": ("dense", settings(vocab_size=400), "vocabulary"),
    "the tokenizer is larger than the embedding": ("dense", small_embedding, "vocabulary"),
    "the end token does not exist": ("dense", settings(eos_token_id=9999), "special-tokens"),
    "the generation's end token does not exist": (
        "dense",
        settings("generation_config.json", eos_token_id=[0, 320]),
        "special-tokens",
    ),
    "the chat template is cut off": ("dense", chat_template, "chat-template"),
    "heads do not fit": ("dense", settings(num_key_value_heads=3), "architecture"),
    "a billion layers": ("dense", settings(num_hidden_layers=10**9), "architecture"),
    "the head is missing": ("dense", tensors(lambda found: found.pop("lm_head.weight")), "tied"),
    "the head differs from what it is tied to": ("dense", settings(tie_word_embeddings=True), "head"),
    "a key is missing": ("dense", tensors(lambda found: found.pop(ATTENTION)), "keys"),
    "a key is unknown": ("dense", tensors(lambda found: found.update({"model.extra": torch.ones(3)})), "keys"),
    "a shape is wrong": (
        "dense",
        tensors(lambda found: found.update({ATTENTION: found[ATTENTION][:8].clone()})),
        "keys",
    ),
    "an expert's tensor is missing": ("moe", tensors(lambda found: found.pop(f"{EXPERT}.w2.weight")), "keys"),
    "attention is infinite": ("dense", fill(ATTENTION, float("inf")), "values"),
    "a router is NaN": ("moe", fill(ROUTER, float("nan")), "values"),
    "an expert is zero": (
        "moe",
        tensors(lambda found: [found[f"{EXPERT}.w{part}.weight"].zero_() for part in (1, 2, 3)]),
        "values",
    ),
    "attention is shuffled": ("dense", tensors(shuffled_attention), "perplexity"),
    "routers send all tokens to one expert": ("ridge", tensors(collapsed_routers), "routing"),
    "one token over and over": ("dense", loop, "generation"),
    "experts are swapped": ("moe", tensors(swapped_experts), "integrity"),
}
"""What is wrong → the folder that is broken, how, and the check that finds it."""
