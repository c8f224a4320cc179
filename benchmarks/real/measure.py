"""What a model gives: losses of windows, answers to the letter, and its pace beside the base model; with intervals."""

import math
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.adapters import DECODED, PROMPT, measured, speed
from benchmarks.many_members import losses
from benchmarks.real.instructions import followed, sampled
from benchmarks.real.llama import InLlama
from benchmarks.real.place import Place, conversations, windows_of
from benchmarks.real.programs import passed, question
from benchmarks.real.rows import ROWS, one, plain
from benchmarks.real.skills import FACTS

RESAMPLES = 2000
ROUNDS = 3  # in which a model and the base model take turns
GENERAL = "general"
"""A corpus of no expert's, in whose score the base model has 100."""
LONGEST = {"facts": 24, "SVAMP": 96, "MBPP": 192, "IFEval": 256}
"""Most tokens of an answer."""
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@torch.inference_mode()
def answers(place: Place, model: Any, prompts: Sequence[Sequence[dict[str, str]]], longest: int) -> list[str]:
    """Return the greedy answers to conversations, each of at most so many tokens."""
    tokenizer, found = place.tokenizer, list[str]()
    for start in range(0, len(prompts), 50):
        texts = [
            tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
            for messages in prompts[start : start + 50]
        ]
        x = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        stop = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.eos_token_id}
        ids = model.generate(**x, max_new_tokens=longest, do_sample=False, **stop)
        found += tokenizer.batch_decode(ids[:, x["input_ids"].shape[1] :], skip_special_tokens=True)
    return [text.strip() for text in found]


def exact_match(place: Place, model: Any, tasks: Sequence[str], last: str = "") -> dict[str, list[int]]:
    """Return [answers to the letter, questions] by skill, and by A → B of B's question after one of A; for B `last`."""
    found = {}
    for name, rows in conversations(place, tasks).items():
        if last not in ("", name.split(" → ")[-1]):
            continue
        right = [messages[-1]["content"] for messages in rows]
        longest = max(len(place.tokenizer(answer)["input_ids"]) for answer in right) + 3
        told = answers(place, model, [messages[:-1] for messages in rows], longest)
        found[name] = [sum(a == b for a, b in zip(told, right, strict=True)), len(rows)]
    return found


def abilities(place: Place, model: Any) -> dict[str, list[int]]:
    """Return [right answers, questions] by benchmark of what the base model could do before, of those that are here.

    Facts: the answer has a right word. SVAMP: its last number is the right one. MBPP: its code passes all tests.
    IFEval: it follows all instructions.
    """

    def told(name: str, questions: Sequence[str]) -> list[str]:
        return answers(place, model, [[{"role": "user", "content": one}] for one in questions], LONGEST[name])

    words = (right.lower().split("|") for right in FACTS.values())
    has = [
        any(word in text.lower() for word in own) for text, own in zip(told("facts", list(FACTS)), words, strict=True)
    ]
    found = {"facts": [sum(has), len(FACTS)]}
    if place.size.questions and (path := place.questions / "svamp_test.jsonl").exists():
        rows = sampled(path, place.size.questions)
        texts = told("SVAMP", [f"{row['Body'].rstrip('.')}. {row['Question']}" for row in rows])
        last = ([0.0, *(float(number.replace(",", "")) for number in _NUMBER.findall(text))][-1] for text in texts)
        right = [number == float(row["Answer"]) for number, row in zip(last, rows, strict=True)]
        found["SVAMP"] = [sum(right), len(rows)]
    if place.size.questions and (path := place.questions / "mbpp.jsonl").exists():
        rows = sampled(path, place.size.questions)
        found["MBPP"] = [passed(rows, told("MBPP", [question(row) for row in rows])), len(rows)]
    if place.size.questions and (path := place.questions / "ifeval_input_data.jsonl").exists():
        rows = sampled(path, place.size.questions)
        found["IFEval"] = [followed(place.work, rows, told("IFEval", [row["prompt"] for row in rows])), len(rows)]
    return found


def pace(place: Place, row: str, names: Sequence[str]) -> dict[str, float]:
    """Return the seconds of a prompt and of a token by a row, relative to the base model's, in turn with it."""
    with scratch_of(place) as scratch:
        model = ROWS[row](place, names, scratch).eval()
    if isinstance(model, InLlama):
        return {}
    base, text = plain(place).eval(), windows_of(place, place.domains[0]).flatten()
    ids = text.repeat(-(-(PROMPT + DECODED) // len(text)))[None, : PROMPT + DECODED]
    runs = {"base": lambda ids: speed(base, ids), "model": lambda ids: speed(model, ids)}
    found = measured(runs, ids, ROUNDS)["model"]
    return {key: found[key][1] for key in ("prefill_ratio", "decode_ratio")}


@torch.inference_mode()
def work(place: Place, model: Any) -> float:
    """Return the multiplications of a window of each domain, relative to the base model's."""
    counts, base = list[int](), plain(place).eval()
    for each in (base, model):
        with FlopCounterMode(display=False, custom_mapping={torch.ops.aten._grouped_mm: grouped_flop}) as counted:
            for domain in place.domains:
                each(input_ids=windows_of(place, domain)[:1], use_cache=False)
        counts.append(counted.get_total_flops())
    return counts[1] / counts[0]


def grouped_flop(a_shape: torch.Size, b_shape: torch.Size, *args: Any, **kwargs: Any) -> int:
    """Return the operations of a grouped product of (n, k) and (groups, k, m), which torch does not count."""
    return 2 * math.prod(a_shape) * b_shape[-1]


@contextmanager
def scratch_of(place: Place) -> Iterator[Path]:
    """Yield a folder that is not there yet, and delete it."""
    folder = place.work / "out"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(place: Place, row: str, names: Sequence[str]) -> dict[str, Any]:
    """Return what a row gives for members, as JSON: losses of domains' windows, answers, and bytes."""
    started = time.perf_counter()
    with scratch_of(place) as scratch:
        model = ROWS[row](place, names, scratch).eval()
        size = sum(path.stat().st_size for path in scratch.glob("*") if path.suffix in (".safetensors", ".gguf"))
        found: dict[str, Any] = {
            "domains": {name: losses(model, windows_of(place, name)).tolist() for name in (*place.domains, GENERAL)},
            "MB": round(size / 1e6),
        }
        if not isinstance(model, InLlama):
            loaded = sum(one.nbytes for one in (*model.parameters(), *model.buffers()))
            found |= {"work": round(work(place, model), 3), "loaded": round(loaded / 1e6)}
        if tasks := [task for task in place.tasks if task in names]:
            found |= {"skills": exact_match(place, model, tasks), "abilities": abilities(place, model)}
    return found | {"seconds": round(time.perf_counter() - started)}


def own(place: Place) -> dict[str, Any]:
    """Return what each domain's or skill's own expert gives on it, by PEFT, and the base model on everything else."""
    base = plain(place).eval()
    found: dict[str, Any] = {"domains": {GENERAL: losses(base, windows_of(place, GENERAL)).tolist()}, "skills": {}}
    for name in place.domains:
        found["domains"][name] = losses(one(place, name).eval(), windows_of(place, name)).tolist()
    for name in place.tasks:
        found["skills"] |= exact_match(place, one(place, name).eval(), place.tasks, name)
    return found | {"abilities": abilities(place, base) if place.tasks else {}}


def scores(best: dict[str, list[float]], found: dict[str, list[float]]) -> dict[str, float]:
    """Return the score of each domain: 100 for the model of `best`."""
    return {
        name: 100 * math.exp(sum(best[name]) / len(best[name]) - sum(found[name]) / len(found[name])) for name in best
    }


def interval(best: dict[str, list[float]], found: dict[str, list[float]], less: Any = None) -> tuple[float, float]:
    """Return the 95 % interval of the mean score, or with `less` of by how much it is above that model's.

    Windows are drawn again, each for all models at once.
    """
    draw, means = torch.Generator().manual_seed(0), []
    tensors = [{name: torch.tensor(own) for name, own in every.items()} for every in (best, found, less or {})]
    for _ in range(RESAMPLES):
        mean = 0.0
        for name, right in tensors[0].items():
            picks = torch.randint(0, len(right), (len(right),), generator=draw)
            own = [(right[picks] - every[name][picks]).mean().exp() for every in tensors[1:] if every]
            mean += 100 * float(own[0] - sum(own[1:]))
        means.append(mean / len(best))
    low, high = torch.tensor(means).quantile(torch.tensor([0.025, 0.975])).tolist()
    return low, high


def wilson(right: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share, in percent (Wilson 1927)."""
    z, share = 1.96, right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return 100 * max(0.0, middle - half), 100 * min(1.0, middle + half)  # none right: 0, but for rounding
