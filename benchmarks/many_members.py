"""Whether the first members of a composition lose when others join: adapters kept, one or two a token, and `--to moe`.

    python -m benchmarks.many_members [--shared ../shared] [--members 4 8 16 32 64] [--work build/members]

Trains LoRA experts (rank 8, all linear layers) of `SHARED/experts/base`: four on `SHARED/corpora`, whose scores are
reported, and others on the source code of installed packages, a package an expert. The score of a domain is 100 for
its own expert, and exp(loss of that - loss) of a folder, on the same 48 windows of 256 tokens; intervals are 95 %,
paired bootstrap over windows. Prints a line of JSON a folder, and draws WORK/many_members.svg. What is trained and
registered stays in --work, and is not made again.
"""

import argparse
import gzip
import json
import shutil
import site
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from registry import PassSettings, Recipe, Registry

FIRST = ("biomed", "code", "german", "math")
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
STEPS, BATCH, LENGTH = 60, 16, 128  # of a training
WINDOWS, WINDOW = 48, 256
LEAST_TEXT = 200_000  # characters of a package that is a domain
RECIPES = {
    "--to adapters": Recipe(to="adapters"),
    "--to adapters --top-k 1": Recipe(to="adapters", top_k=1),
    "--to moe": Recipe(),
}


def packages() -> Iterator[tuple[str, str]]:
    """Yield the name of each installed package with enough source code, and that, in name order."""
    for folder in sorted(Path(site.getsitepackages()[0]).iterdir()):
        if folder.is_dir() and folder.name.isidentifier() and folder.name == folder.name.lower():
            text = "".join(path.read_text(errors="ignore")[:50_000] for path in sorted(folder.rglob("*.py"))[:60])
            if len(text) >= LEAST_TEXT:
                yield folder.name.replace("_", "-").strip("-"), text


def rows(path: Path) -> str:
    """Return the text of a corpus."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return "\n\n".join(json.loads(line)["text"] for line in islice(file, 600))


def train(base: Path, text: str, out: Path) -> None:
    """Write a LoRA expert of a text."""
    torch.manual_seed(0)
    ids = torch.tensor(AutoTokenizer.from_pretrained(base)(text)["input_ids"])
    config = LoraConfig(r=8, lora_alpha=16, target_modules=LINEAR, task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    optimiser = torch.optim.AdamW([part for part in model.parameters() if part.requires_grad], lr=3e-3)
    for _ in range(STEPS):
        starts = torch.randint(0, len(ids) - LENGTH, (BATCH,)).tolist()
        batch = torch.stack([ids[start : start + LENGTH] for start in starts])
        model(input_ids=batch, labels=batch).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.save_pretrained(str(out))


@torch.no_grad()
def losses(model: Any, windows: Tensor) -> Tensor:
    """Return the mean loss of each window, (N,), in nats per token."""
    found = []
    for batch in windows.split(16):
        logits = model(input_ids=batch, use_cache=False).logits.float()
        every = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), batch[:, 1:], reduction="none")
        found.append(every.mean(dim=1))
    return torch.cat(found)


def scored(own: dict[str, Tensor], found: dict[str, Tensor]) -> dict[str, Any]:
    """Return the score of each domain, their average, and its interval."""
    draw, averages = torch.Generator().manual_seed(0), []
    for _ in range(2000):
        picks = [torch.randint(0, WINDOWS, (WINDOWS,), generator=draw) for _ in own]
        every = [float((own[d][p] - found[d][p]).mean().exp()) for d, p in zip(own, picks, strict=True)]
        averages.append(100 * sum(every) / len(every))
    low, high = torch.tensor(averages).quantile(torch.tensor([0.025, 0.975])).tolist()
    scores = {domain: 100 * float((own[domain] - found[domain]).mean().exp()) for domain in own}
    return {
        "average": round(sum(scores.values()) / len(scores), 2),
        "interval": [round(low, 2), round(high, 2)],
        **{domain: round(score, 1) for domain, score in scores.items()},
    }


def drawn(rows: Sequence[Mapping[str, Any]], panels: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG of panels beside one another, of Vega-Lite, which draw these rows."""
    import vl_convert

    text: str = vl_convert.vegalite_to_svg(
        json.dumps(
            {
                "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
                "data": {"values": rows},
                "hconcat": panels,
                "config": {"view": {"stroke": None}, "font": "sans-serif"},
            }
        )
    )
    return text


def figure(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG of what was printed: scores by members, of all four domains, with intervals, and of code."""
    told = [{**row, "low": row["interval"][0], "high": row["interval"][1]} for row in rows]
    at = {"field": "members", "type": "quantitative", "scale": {"type": "log", "base": 2}}
    at["axis"] = {"values": sorted({row["members"] for row in rows}), "title": "members", "grid": False}
    colour = {"field": "recipe", "title": None, "scale": {"domain": [*RECIPES]}, "legend": {"orient": "bottom"}}

    def panel(title: str, field: str, *, banded: bool) -> dict[str, Any]:
        y = {"type": "quantitative", "scale": {"zero": False}, "title": "score"}
        line = {"mark": {"type": "line", "point": True}, "encoding": {"y": {"field": field, **y}}}
        band = {
            "mark": {"type": "area", "opacity": 0.15},
            "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}},
        }
        layers = [band, line] if banded else [line]
        return {"title": title, "width": 260, "height": 180, "encoding": {"x": at, "color": colour}, "layer": layers}

    four = "mean of the first four, 95 % intervals"
    return drawn(told, [panel(four, "average", banded=True), panel("of it code", "code", banded=False)])


def main() -> None:
    """Train, register, compose, score, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--members", type=int, nargs="+", default=[4, 8, 16, 32, 64])
    parser.add_argument("--work", type=Path, default=Path("build/members"))
    given = parser.parse_args()
    base, corpora, work = given.shared / "experts" / "base", given.shared / "corpora", given.work
    work.mkdir(parents=True, exist_ok=True)
    texts = [(name, rows(corpora / name / "train.jsonl.gz")) for name in FIRST]
    texts += islice(packages(), max(0, max(given.members) - len(texts)))
    tokenizer = AutoTokenizer.from_pretrained(base)
    with Registry(work / "home") as registry:
        known = {one.name for one in registry.versions()}
        if "base" not in known:
            registry.add_base("base", base)
        for name, text in texts:
            if not (work / name).exists():
                train(base, text, work / "partial")
                (work / "partial").rename(work / name)
            if name not in known:
                (work / f"{name}.txt").write_text(text, encoding="utf-8")
                settings, data = PassSettings(tokens=24_576, seq_len=256), [work / f"{name}.txt"]
                registry.add_expert(name, work / name, base="base", data=data, settings=settings)
        windows = {
            name: torch.tensor(tokenizer(rows(corpora / name / "test.jsonl.gz"))["input_ids"])[: WINDOWS * WINDOW]
            for name in FIRST
        }
        windows = {name: ids.view(WINDOWS, WINDOW) for name, ids in windows.items()}
        plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
        own = {}
        for name, ids in windows.items():
            expert = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
            own[name] = losses(PeftModel.from_pretrained(expert, work / name).eval(), ids)
        of_base = {name: losses(plain, ids) for name, ids in windows.items()}
        print(json.dumps({"members": 0, **scored(own, of_base)}), flush=True)
        told: list[dict[str, Any]] = []
        for members in given.members:
            names = [name for name, _ in texts[:members]]
            for called, recipe in RECIPES.items():
                start = time.perf_counter()
                registry.compose(names, work / "out", recipe)
                seconds = time.perf_counter() - start
                model = AutoModelForCausalLM.from_pretrained(work / "out", dtype=torch.float32, trust_remote_code=True)
                found = {name: losses(model.eval(), ids) for name, ids in windows.items()}
                size = sum(path.stat().st_size for path in (work / "out").glob("*.safetensors"))
                made = {"members": members, "recipe": called, "MB": round(size / 1e6, 1)}
                told.append({**made, "compose_s": round(seconds, 1), **scored(own, found)})
                print(json.dumps(told[-1]), flush=True)
                del model
                shutil.rmtree(work / "out")
    (work / "many_members.svg").write_text(figure(told), encoding="utf-8")


if __name__ == "__main__":
    main()
