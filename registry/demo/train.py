"""Start of the demo's training: a byte-level BPE tokenizer, and a tiny Llama with random weights."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from registry.runtime.loading import quiet_transformers

VOCABULARY = 768


def train_tokenizer(texts: Iterable[str]) -> Any:
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


def save(model: Any, tokenizer: Any, folder: Path) -> Path:
    """Write a checkpoint folder and return it."""
    with quiet_transformers():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
