"""Training of a tiny Llama: a byte-level BPE tokenizer, a base model, and experts that continue from it."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from registry.progress import Progress
from registry.runtime.loading import quiet_transformers

VOCABULARY = 768
SEQ_LEN = 128
BATCH = 8


def read_texts(path: Path) -> list[str]:
    """Return the documents of a `.jsonl.gz` file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def train_tokenizer(texts: Sequence[str]) -> Any:
    """Return a byte-level BPE tokenizer of `VOCABULARY` tokens; token 0 begins and ends a text."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    model = ByteLevelBPETokenizer()
    model.train_from_iterator(texts, vocab_size=VOCABULARY, special_tokens=["<eos>"], show_progress=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=model._tokenizer, bos_token="<eos>", eos_token="<eos>", pad_token="<eos>"
    )


def new_model() -> Any:
    """Return an untrained Llama of half a million weights (seed 0)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def encode(tokenizer: Any, texts: Sequence[str]) -> torch.Tensor:
    """Return all texts as one stream of tokens, each preceded by token 0; int64 of shape (T,)."""
    tokens: list[int] = []
    for ids in tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]:
        tokens += [0, *ids]
    return torch.tensor(tokens)


def train(model: Any, stream: torch.Tensor, *, steps: int, rate: float, label: str, progress: Progress) -> None:
    """Train `model` in place on random windows of `stream` (AdamW, cosine to zero, seed 0)."""
    draw = torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    model.train()
    with progress(f"training {label}", steps, "step") as advance:
        for _ in range(steps):
            starts = torch.randint(len(stream) - SEQ_LEN, (BATCH,), generator=draw)
            batch = torch.stack([stream[start : start + SEQ_LEN] for start in starts])
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()
            schedule.step()
            advance(1)
    model.eval()


def save(model: Any, tokenizer: Any, folder: Path) -> Path:
    """Write a checkpoint folder and return it."""
    with quiet_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
