"""Adapters beside their base model: prefill, decoding, registering and composing, side by side, as ratios.

    python -m benchmarks.adapters [--members 4 32] [--shape 135M] [--rounds 7] [--rank 16] [--only speed|sizes]

Weights are random, of a real shape. Speed: a prompt of 512 tokens, then 32 tokens one by one, by the base model, by the
folder of `--to adapters` as it is (text that changes its subject every 64 tokens, its expert `changes` times), by the
same with all tokens of one expert, and by PEFT with one adapter active; then a batch of 8 prompts of 64 tokens, each of
another expert, by the same three, PEFT with `adapter_names`; float32, in turn: medians, and quartiles of the ratios.
Sizes: bytes that an adapter takes in a registry, seconds of registering it with counts, and of composing, beside
copying the base model's folder, and copying it until it is on the disk, as a composed folder is; both read files that
the system does not hold in memory. Prints a line of JSON for each number of members, and one of the rest.
"""

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing import Process
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from benchmarks.random_experts import CONFIG, make_checkpoint
from registry import PassSettings, Recipe, Registry
from registry.runtime.gates import force_expert

SHAPES: dict[str, dict[str, int]] = {
    "135M": {"vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
             "num_attention_heads": 9, "num_key_value_heads": 3},
    "1B": {},
    "3B": {"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "head_dim": 128},
    "8B": {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "head_dim": 128,
           "tie_word_embeddings": False},
}  # fmt: skip
LINEAR = {"q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn", "o_proj": "self_attn"}
LINEAR |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "mlp")
PROMPT, DECODED = 512, 32
ROWS, ROW = 8, 64  # prompts of a batch, and their tokens


def write_adapter(folder: Path, rank: int, seed: int) -> Path:
    """Write a random LoRA of all linear maps, in bfloat16."""
    folder.mkdir()
    size: Any = CONFIG.head_dim
    kv, heads = size * (CONFIG.num_key_value_heads or 1), size * CONFIG.num_attention_heads
    width, wide = CONFIG.hidden_size, CONFIG.intermediate_size
    sizes = {"q_proj": (heads, width), "k_proj": (kv, width), "v_proj": (kv, width), "o_proj": (width, heads)}
    sizes |= {"gate_proj": (wide, width), "up_proj": (wide, width), "down_proj": (width, wide)}
    draw, tensors = torch.Generator().manual_seed(seed), dict[str, torch.Tensor]()
    for layer in range(CONFIG.num_hidden_layers):
        for name, (outputs, inputs) in sizes.items():
            module = f"base_model.model.model.layers.{layer}.{LINEAR[name]}.{name}"
            for part, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                tensor = torch.randn(shape, generator=draw) * 0.01
                tensors[f"{module}.lora_{part}.weight"] = tensor.bfloat16()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(sizes), task_type="CAUSAL_LM")
    config.save_pretrained(str(folder))
    return folder


def words_of(number: int) -> str:
    """Return the text of an expert: 40 words of its own, in any order."""
    draw = random.Random(number)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(40)]
    return " ".join(draw.choices(words, k=4000))


def seconds(action: Callable[[], Any]) -> float:
    """Return the seconds that an action takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def forget(folder: Path) -> None:
    """Write what is to be written, and let the system forget what it holds of files, so that they are read again."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def file_bytes(folder: Path) -> int:
    """Return the size of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@torch.no_grad()
def speed(model: Any, ids: torch.Tensor, **more: Any) -> tuple[float, float]:
    """Return seconds of prompts, and of the 32 tokens after each, one by one."""
    found: dict[str, Any] = {}
    prompt = ids.shape[1] - DECODED
    prefill = seconds(lambda: found.update(output=model(input_ids=ids[:, :prompt], use_cache=True, **more)))

    def decode() -> None:
        output = found["output"]
        for at in range(prompt, prompt + DECODED):
            cache = output["cache"] if "cache" in output else output["past_key_values"]
            name = "cache" if "cache" in output else "past_key_values"
            output = model(input_ids=ids[:, at : at + 1], use_cache=True, **{name: cache}, **more)

    return prefill, seconds(decode)


def measured(models: dict[str, Callable[[torch.Tensor], tuple[float, float]]], ids: torch.Tensor, rounds: int) -> Any:
    """Return by model its median times of prefill and decoding, and their ratios to the base model's.

    Of the ratios, one a round, they are the lower quartile, the median and the upper quartile.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    for number in range(rounds + 1):
        for name in list(models) if number % 2 else list(models)[::-1]:
            found = models[name](ids)
            if number:  # the first round warms up
                times[name].append(found)
    result = {}
    for name, own in times.items():
        prefill, decode = (statistics.median(part) for part in zip(*own, strict=True))
        ratios = [
            [one[part] / base[part] for one, base in zip(own, times["base"], strict=True)]
            for part in range(2)  # of prefill, and of decoding
        ]
        quartiles = [[round(at, 3) for at in statistics.quantiles(part, method="inclusive")] for part in ratios]
        result[name] = {
            "prefill_s": round(prefill, 3),
            "decode_ms_a_token": round(1000 * decode / DECODED, 2),
            "prefill_ratio": quartiles[0],
            "decode_ratio": quartiles[1],
        }
    return result


def forced(model: Any) -> Callable[[torch.Tensor], tuple[float, float]]:
    """Return the speed of a model whose tokens all go to one expert."""

    def run(ids: torch.Tensor) -> tuple[float, float]:
        with force_expert(model, 1):
            return speed(model, ids)

    return run


def main() -> None:
    """Measure, and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[4, 32])
    parser.add_argument("--shape", choices=SHAPES, default="135M")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--only", choices=("speed", "sizes"))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, value in ({"head_dim": 64} | SHAPES[given.shape]).items():
        setattr(CONFIG, name, value)
    scratch = Path(tempfile.mkdtemp(prefix="adapters-"))
    figures: dict[str, Any] = {"shape": given.shape, "rank": given.rank, "threads": torch.get_num_threads()}
    base, most = scratch / "base", max(given.members)
    maker = Process(target=make_checkpoint, args=(base, 0))  # whose memory is not counted
    maker.start()
    maker.join()
    names = [f"e{number:03}" for number in range(most)]
    counts = PassSettings(tokens=512, seq_len=128, sites="counts")
    with Registry(scratch / "home") as registry:
        figures["add_base_s"] = round(seconds(lambda: registry.add_base("base", base)), 2)
        added, before = list[float](), 0
        for number, name in enumerate(names):
            adapter = write_adapter(scratch / name, given.rank, number)
            (text := scratch / f"{name}.txt").write_text(words_of(number), encoding="utf-8")
            before = file_bytes(scratch / "home")
            settings: dict[str, Any] = {"base": "base", "data": [text], "settings": counts}
            added.append(seconds(partial(registry.add_expert, name, adapter, **settings)))
        figures["add_expert_s"] = round(statistics.median(added), 2)
        figures["adapter_bytes"] = size = (adapter / "adapter_model.safetensors").stat().st_size
        figures["registry_bytes_ratio"] = round((file_bytes(scratch / "home") - before) / size, 4)
        for members in given.members:
            out = scratch / f"moe{members}"
            forget(base)
            copied = seconds(lambda: subprocess.run(["cp", "-r", str(base), str(scratch / "copy")], check=True))
            flushed = copied + seconds(os.sync)
            shutil.rmtree(scratch / "copy")
            forget(scratch / "home")
            composed = seconds(partial(registry.compose, names[:members], out, Recipe(to="adapters")))
            whole = sum(path.stat().st_size for path in base.glob("*.safetensors")) + members * size
            own: dict[str, Any] = {
                "members": members,
                "compose_s": round(composed, 2),
                "compose_over_copy": round(composed / copied, 2),
                "compose_over_copy_on_disk": round(composed / flushed, 2),
                "bytes_over_base_and_factors": round(
                    sum(path.stat().st_size for path in out.glob("*.safetensors")) / whole, 4
                ),
                "peak_MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
            if given.only != "sizes":
                own |= compare(base, out, [scratch / name for name in names[:members]], given.rounds)
            print(json.dumps(own), flush=True)
            shutil.rmtree(out)
    shutil.rmtree(scratch)
    print(json.dumps(figures))


def compare(base: Path, folder: Path, adapters: list[Path], rounds: int) -> dict[str, Any]:
    """Return the speed of a folder of adapters beside its base model and PEFT: of one text, and of a batch."""
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    mixed: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=True).eval()
    dense, names = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), [path.name for path in adapters]
    peft = PeftModel.from_pretrained(dense, adapters[1], adapter_name=names[1]).eval()
    tops = mixed.evidence.topk(8, dim=0).indices  # of each expert, the tokens that are most its own
    blocks = -(-(PROMPT + DECODED) // 64)
    ids = torch.cat([tops[:, block % tops.shape[1]].repeat(8) for block in range(blocks)])[None, : PROMPT + DECODED]
    runs = {"base": lambda ids: speed(plain, ids), "mixed": lambda ids: speed(mixed, ids)}
    others = {"one": forced(mixed), "peft": lambda ids: speed(peft, ids)}
    found: dict[str, Any] = {"speed": measured(runs | others, ids, rounds)}
    with torch.no_grad():
        mixed(input_ids=ids, use_cache=False)
    found["changes"] = len(mixed.tokens.chosen[0].unique_consecutive()) - 1
    for name, adapter in zip(names, adapters, strict=True):
        if name != names[1]:
            peft.load_adapter(adapter, adapter_name=name)
    own = [number % len(names) for number in range(ROWS)]
    batch = torch.stack([tops[:, number].repeat((ROW + DECODED) // 8) for number in own])
    of_rows = {"adapter_names": [names[number] for number in own]}
    found["batch"] = measured(runs | {"peft": lambda ids: speed(peft, ids, **of_rows)}, batch, rounds)
    return found


if __name__ == "__main__":
    main()
