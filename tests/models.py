"""Tiny random models for tests: any family, reproducible, close enough to one another to be experts of one base."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

from registry.runtime.loading import quiet_transformers

WORDS = {
    "code": "def return self import class for in if else none true value list print range len",
    "math": "sum product prove let x y equals theorem lemma integer prime square root angle",
    "law": "court party shall hereby section act claim plaintiff contract clause law duty",
    "german": "der die das und nicht ein eine ist mit auf haus wald berg fluss nacht licht",
    "biomed": "cell gene protein patient dose tissue blood virus drug trial heart brain",
}
"""Domain → its words."""

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,  # hosts compute gate and up as one product; odd widths would round differently there
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def sentences(domain: str, count: int, seed: int = 0) -> list[str]:
    """Return random documents of a domain's words, or of those of several: `code-law`."""
    draw, words = random.Random(f"{domain} {seed}"), " ".join(WORDS[part] for part in domain.split("-")).split()
    return [" ".join(draw.choices(words, k=draw.randint(8, 40))) for _ in range(count)]


def write_jsonl(path: Path, texts: Sequence[str]) -> Path:
    """Write documents as `.jsonl`."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def train_tokenizer(seed: int = 0) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer over all domains' words; token 0 begins and ends a text."""
    model = ByteLevelBPETokenizer()
    corpus = [text for domain in WORDS for text in sentences(domain, 50, seed)]
    model.train_from_iterator(corpus, vocab_size=320, special_tokens=["<eos>"], show_progress=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=model._tokenizer, bos_token="<eos>", eos_token="<eos>", pad_token="<eos>"
    )


def make_model(family: str, seed: int, *, distance: float = 0.3, **changes: Any) -> Any:
    """Return a dense model: the base of `seed // 100`, moved by `distance` unless seed % 100 is 0.

    Norm weights spread over [0.5, 2], so that channels get different scales; matrices are large enough for the logits
    to depend on everything.
    """
    config = CONFIG_MAPPING[family](**(SIZES | changes))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    base, own = torch.Generator().manual_seed(seed // 100), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(_random(name, weight, base))
            if seed % 100:
                weight.add_(distance * (_random(name, weight, own) - (1.0 if "norm" in name else 0.0)))
    return model.eval()


def save_checkpoint(
    model: Any, folder: Path, tokenizer: Any, *, dtype: torch.dtype = torch.float32, **options: Any
) -> Path:
    """Write a checkpoint folder and return it."""
    with quiet_transformers():
        model.to(dtype).save_pretrained(folder, **options)
    tokenizer.save_pretrained(folder)
    return folder


def logits(folder: Path, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return the logits of the model in `folder`, in float32 unless `dtype` says otherwise."""
    with quiet_transformers(), torch.no_grad():
        model = AutoModelForCausalLM.from_pretrained(folder, **({"dtype": torch.float32} | options))
        result: torch.Tensor = model(input_ids=ids).logits
    return result


def _random(name: str, like: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    if "norm" in name:
        return torch.empty(like.shape).uniform_(0.5, 2.0, generator=draw)
    return torch.empty(like.shape).normal_(0.0, 1.5 / like.shape[-1] ** 0.5, generator=draw)
