"""Tiny models that were trained for a second, so that they predict their domains' text far better than chance.

Their text goes round a circle of words, with a jump now and then: what comes next is nearly always known.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from tests.models import SIZES, WORDS, save_checkpoint, train_tokenizer, write_jsonl

STEPS, OWN_STEPS = 160, 50
_WINDOWS, _LENGTH = 8, 32


def rounds(domain: str, count: int, seed: int = 0) -> list[str]:
    """Return documents that go round a domain's words, with a jump every ten words or so."""
    draw, words, texts = random.Random(f"{domain} {seed}"), WORDS[domain].split(), []
    for _ in range(count):
        place, text = draw.randrange(len(words)), []
        for _ in range(40):
            text.append(words[place])
            place = draw.randrange(len(words)) if draw.random() < 0.1 else (place + 1) % len(words)
        texts.append(" ".join(text))
    return texts


def train(model: Any, tokenizer: Any, texts: Sequence[str], steps: int, seed: int) -> Any:
    """Train a model on texts, one after another in a random order, and return it."""
    stream = torch.tensor([number for text in texts for number in [0, *tokenizer(text)["input_ids"]]])
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(steps):
        starts = torch.randint(0, len(stream) - _LENGTH, (_WINDOWS,), generator=draw)
        ids = torch.stack([stream[start : start + _LENGTH] for start in starts])
        loss = F.cross_entropy(model(input_ids=ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def trained_base(domains: Sequence[str], family: str = "llama", **changes: Any) -> Any:
    """Return a model that was trained on the text of all domains."""
    config = CONFIG_MAPPING[family](**(SIZES | changes))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
    texts = [text for domain in domains for text in rounds(domain, 60)]
    random.Random(0).shuffle(texts)
    return train(model, train_tokenizer(), texts, STEPS, 0)


def trained_experts(folder: Path, domains: Sequence[str]) -> tuple[dict[str, Path], dict[str, Path]]:
    """Write an expert of each domain, of one base, and its test text; return the folders and the files."""
    tokenizer, base = train_tokenizer(), trained_base(domains)
    weights = {name: weight.clone() for name, weight in base.state_dict().items()}
    folders, files = {}, {}
    for number, domain in enumerate(domains, start=1):
        base.load_state_dict(weights)
        expert = train(base, tokenizer, rounds(domain, 60, seed=1), OWN_STEPS, number)
        folders[domain] = save_checkpoint(expert, folder / domain, tokenizer)
        files[domain] = write_jsonl(folder / f"{domain}.jsonl", rounds(domain, 40, seed=2))
    return folders, files
