"""Train an expert of a base model on text, all weights: those of `quality.py` that are far from it.

    python benchmarks/far_experts.py BASE OUT TEXT [TEXT …] [--steps 200] [--batch 16] [--rate 3e-4] [--autocast]
    python benchmarks/far_experts.py ../shared/experts/base far/chinese far/corpora/chinese/train.jsonl.gz

TEXT are .jsonl.gz files of rows {"text": …}, which `far_text.py` makes. The result is saved in bfloat16 with the base
model's tokenizer files. 200 steps of a model of 6.8M parameters take about ten minutes on one core.
"""

import argparse
import gzip
import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def stream_of(tokenizer: Any, files: list[Path], seed: int) -> torch.Tensor:
    """Return all documents, shuffled, each led by the start token, as one row of tokens."""
    texts = []
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"] for line in lines]
    random.Random(seed).shuffle(texts)
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    ids: list[int] = []
    for row in tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]:
        ids += [start, *row]
    return torch.tensor(ids)


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("text", type=Path, nargs="+")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--autocast", action="store_true", help="compute products in bfloat16: faster where a CPU can")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    tokenizer = AutoTokenizer.from_pretrained(arguments.base)
    model = AutoModelForCausalLM.from_pretrained(arguments.base, dtype=torch.float32).train()
    stream = stream_of(tokenizer, arguments.text, arguments.seed)
    print(f"{len(stream):,} tokens", flush=True)
    draw = torch.Generator().manual_seed(arguments.seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=arguments.rate, betas=(0.9, 0.95), weight_decay=0.1)
    warm = max(1, arguments.steps // 20)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimiser,
        [
            torch.optim.lr_scheduler.LinearLR(optimiser, 1 / warm, 1.0, warm),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, arguments.steps - warm, arguments.rate / 10),
        ],
        [warm],
    )
    began = time.monotonic()
    for step in range(arguments.steps):
        starts = torch.randint(len(stream) - arguments.seq_len, (arguments.batch,), generator=draw)
        batch = torch.stack([stream[start : start + arguments.seq_len] for start in starts])
        with torch.autocast(model.device.type, torch.bfloat16, enabled=arguments.autocast):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()
        if step % 20 == 0 or step == arguments.steps - 1:
            print(f"step {step}, loss {float(loss.detach()):.3f}, {time.monotonic() - began:.0f} s", flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(arguments.out)
    for path in arguments.base.iterdir():
        if path.name.startswith("tokenizer") or path.name == "special_tokens_map.json":
            shutil.copyfile(path, arguments.out / path.name)


if __name__ == "__main__":
    main()
