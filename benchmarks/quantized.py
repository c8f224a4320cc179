"""Compositions in few bits: rounded to the nearest, by GPTQ with stored Grams, and with Grams of a pass over text.

    python -m benchmarks.quantized [--shared ../shared] [--experts code,math,german] [--tokens 24576] [--windows 64]

The pass is what others do: text of all domains goes through the composed model, and each matrix, down projections too,
has the Gram of what reached it. Losses are of other text, on the same windows of 256 tokens; intervals are 95 %, paired
bootstrap over windows. In fp8 attention's activations are rounded too, by compressed-tensors; experts' are not, as they
are whole matrices in transformers.
"""

import argparse
import gzip
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.many_members import losses
from registry import PassSettings, Registry
from registry.composition.manifest import ComposedFolder
from registry.progress import silent
from registry.quantization.quantize import Place, Source, write_quantized
from registry.quantization.schemes import SCHEMES

WINDOW, RESAMPLES = 256, 2000


def windows_of(tokenizer: Any, file: Path, count: int) -> Tensor:
    """Return the first windows of a file, (N, 256)."""
    ids: list[int] = []
    with gzip.open(file, "rt", encoding="utf-8") as rows:
        for row in rows:
            ids += tokenizer(json.loads(row)["text"], verbose=False)["input_ids"]
            if len(ids) >= count * WINDOW:
                break
    return torch.tensor(ids[: count * WINDOW]).view(-1, WINDOW)


class FreshGrams:
    """Grams of the inputs of matrices, taken while text goes through a mixture of Mixtral's class."""

    def __init__(self, folder: Path, windows: Tensor) -> None:
        """Run the text."""
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.sums: dict[str, Tensor] = {}
        for number, layer in enumerate(model.model.layers):
            at = f"model.layers.{number}"
            for name in ("q_proj", "o_proj"):
                part = getattr(layer.self_attn, name)
                part.register_forward_pre_hook(self._attention(f"{at}.self_attn.{name}"))
            layer.mlp.experts.register_forward_pre_hook(self._experts(f"{at}.block_sparse_moe.experts"))
        with torch.inference_mode():
            for batch in windows.split(8):
                model(input_ids=batch, use_cache=False)

    def __call__(self, name: str, place: Place) -> Tensor | None:
        """Return the Gram of a matrix's input; None of those of added layers."""
        module = name.removesuffix(".weight")
        for own, input_of in (("k_proj", "q_proj"), ("v_proj", "q_proj"), ("w3", "w1")):
            module = module.replace(own, input_of)
        return None if place.layer is None else self.sums.get(module)

    def _add(self, module: str, x: Tensor) -> None:
        x = x.reshape(-1, x.shape[-1]).double()
        self.sums[module] = self.sums.get(module, 0) + x.T @ x

    def _attention(self, module: str) -> Callable[..., None]:
        return lambda part, inputs: self._add(module, inputs[0])

    def _experts(self, module: str) -> Callable[..., None]:
        def hook(part: Any, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
            hidden, chosen, _ = inputs
            for expert in range(len(part.gate_up_proj)):
                own = hidden[(chosen == expert).any(dim=1)]
                gate, up = torch.nn.functional.linear(own, part.gate_up_proj[expert]).chunk(2, dim=-1)
                self._add(f"{module}.{expert}.w1", own)
                self._add(f"{module}.{expert}.w2", part.act_fn(gate) * up)

        return hook


def more(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> str:
    """Return by how much perplexity is higher in the second, in percent, with its interval: the mean over domains."""
    draw = torch.Generator().manual_seed(0)
    found = []
    for _ in range(RESAMPLES):
        picks = {name: torch.randint(0, len(loss), (len(loss),), generator=draw) for name, loss in first.items()}
        found.append(sum(float((second[name] - first[name])[pick].mean()) for name, pick in picks.items()) / len(picks))
    low, high = torch.tensor(found).quantile(torch.tensor([0.025, 0.975])).expm1().mul(100).tolist()
    mean = sum(float((second[name] - first[name]).mean()) for name in first) / len(first)
    return f"{100 * math.expm1(mean):+.2f} % [{low:+.2f}, {high:+.2f}]"


def main() -> None:
    """Compose, round in each way, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"), help="default: %(default)s")
    parser.add_argument("--experts", default="code,math,german", help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=24_576, help="of each expert; default: %(default)s")
    parser.add_argument("--windows", type=int, default=64, help="of each domain; default: %(default)s")
    given = parser.parse_args()
    names = given.experts.split(",")
    with TemporaryDirectory() as scratch, Registry(Path(scratch) / "home") as registry, torch.inference_mode():
        work, text = Path(scratch), given.shared / "corpora"
        registry.add_base("base", given.shared / "experts" / "base")
        for name in names:
            data, settings = [text / name / "train.jsonl.gz"], PassSettings(tokens=given.tokens)
            registry.add_expert(name, given.shared / "experts" / name, data=data, settings=settings)
        registry.compose(names, work / "moe")
        tokenizer = AutoTokenizer.from_pretrained(work / "moe")
        test = {name: windows_of(tokenizer, text / name / "test.jsonl.gz", given.windows) for name in names}
        calibration = [windows_of(tokenizer, text / name / "train.jsonl.gz", given.tokens // WINDOW) for name in names]
        fresh = FreshGrams(work / "moe", torch.cat(calibration))
        source = Source.of(ComposedFolder.read(work / "moe"))
        folders = {"as it was composed": work / "moe"}
        by_gptq = [name for name, scheme in SCHEMES.items() if not scheme.is_float]
        for scheme in SCHEMES:
            way = f"{scheme}, to the nearest"
            registry.quantize(work / "moe", folders.setdefault(way, work / way), scheme, statistics=False)
            if scheme not in by_gptq:
                continue
            way = f"{scheme}, GPTQ, stored Grams"
            registry.quantize(work / "moe", folders.setdefault(way, work / way), scheme)
            way = f"{scheme}, GPTQ, a pass over text"
            write_quantized(source, folders.setdefault(way, work / way), scheme, fresh, silent)
        found: dict[str, dict[str, Tensor]] = {}
        print("| weights | MB |", " | ".join(names), "| perplexity |")
        for way, folder in folders.items():
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            found[way] = {name: losses(model, windows) for name, windows in test.items()}
            size = sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6
            figures = " | ".join(f"{math.exp(float(loss.mean())):.2f}" for loss in found[way].values())
            print(f"| {way} | {size:.1f} | {figures} | {more(found['as it was composed'], found[way])} |", flush=True)
        for scheme in by_gptq:
            stored, passed = found[f"{scheme}, GPTQ, stored Grams"], found[f"{scheme}, GPTQ, a pass over text"]
            print(f"{scheme}: stored Grams against a pass over text {more(passed, stored)}")
            print(f"{scheme}: stored Grams against the nearest {more(found[f'{scheme}, to the nearest'], stored)}")


if __name__ == "__main__":
    main()
