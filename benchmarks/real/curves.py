"""How far compositions of a real model's experts hold: with little text, of low rank, in long windows, in few bits.

    python -m benchmarks.real.curves --base FOLDER --adapters FOLDER [--corpora ../shared/corpora] [--work FOLDER]
        [--panels text,rank,length,bits]

Of the domains that have an adapter, by --to moe and --to adapters: of experts that were registered with 128 to 24,576
tokens of text, of the changes of rank 2 to 8 that are nearest to the adapters' own and of these, in windows of 256 to
4,096 tokens, and in bfloat16 and, by torchao (`pip install torchao==0.18.0`), in 8 and 4 bits (of linear layers;
experts of --to moe are not among them). A score is 100 for its own expert, as it was trained, in float32 and on the
same windows; intervals are 95 %, paired bootstrap over windows. Prints a line of JSON a folder, and draws
WORK/curves.svg. What is there is not measured again.
"""

import argparse
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TorchAoConfig

from benchmarks.many_members import drawn, losses
from benchmarks.real.measure import interval, scores, scratch_of
from benchmarks.real.place import SIZES, WINDOW, Place, register, rows_of, windows_of
from benchmarks.real.rows import one
from registry import PassSettings, Recipe, Registry

RANKS = (2, 4, 8, 16)  # the last is that of adapters as they are
TEXT = (128, 512, 2048, 8192, 24_576)  # tokens of an expert's text
LENGTHS = (256, 1024, 4096)  # tokens of a window
MEASURED = 8192  # tokens of a domain
BITS = ("bfloat16", "int8", "int4")
RECIPES = {"--to adapters": Recipe(to="adapters"), "--to moe": Recipe()}
TITLES = {
    "text": ("tokens of an expert's text", [str(tokens) for tokens in TEXT]),
    "rank": ("rank of adapters", [str(rank) for rank in RANKS]),
    "length": ("tokens of a window", [str(length) for length in LENGTHS]),
    "bits": ("number format", list(BITS)),
}
OWN = "its own expert"
Found = dict[str, list[float]]
Line = dict[str, Any]


def lost(place: Place, length: int, model: Callable[[str], Any]) -> Found:
    """Return the losses of each domain's windows of so many tokens, by the model of that domain."""
    place = replace(place, size=replace(place.size, windows=MEASURED // length))
    return {name: losses(model(name), windows_of(place, name, length)).tolist() for name in place.domains}


def alone(place: Place, name: str) -> Any:
    """Return the expert of a domain."""
    return one(place, name).eval()


def always(model: Any) -> Callable[[str], Any]:
    """Return what gives this model for each domain."""
    return lambda name: model


def texts(place: Place) -> Iterator[tuple[int, dict[str, str]]]:
    """Register the adapters with little text, then more, and yield how many tokens, and the name of each."""
    for tokens in TEXT:
        names = {name: f"{name}-{tokens}" for name in place.domains}
        with Registry(place.work / "home") as registry:
            known = {version.name for version in registry.versions()}
            for domain, name in names.items():
                if name in known:
                    continue
                taken, data = 0, place.work / f"{name}.jsonl"
                with data.open("w", encoding="utf-8") as file:
                    for row in rows_of(place.text(domain, "train")):
                        ids = place.tokenizer(row["text"], add_special_tokens=False)["input_ids"][: tokens - taken]
                        taken += len(ids)
                        file.write(json.dumps({"text": place.tokenizer.decode(ids)}) + "\n")
                        if taken >= tokens:
                            break
                settings, base = PassSettings(tokens=tokens, seq_len=WINDOW), place.base.absolute().name.lower()
                registry.add_expert(name, place.adapter(domain), base=base, data=[data], settings=settings)
        yield tokens, names


def of_rank(place: Place, rank: int) -> tuple[Place, dict[str, str]]:
    """Register adapters of the changes of this rank that are nearest to a place's own.

    Returns:
        The place with these adapters, and the name of each in the registry.
    """
    there, names = replace(place, adapters=place.work / f"rank-{rank}"), {}
    for name in place.domains:
        out = there.adapter(name)
        names[name] = f"{name}-rank-{rank}"
        if (out / "adapter_config.json").exists():
            continue
        config = json.loads((place.adapter(name) / "adapter_config.json").read_text())
        tensors = load_file(place.adapter(name) / "adapter_model.safetensors")
        for key in [key for key in tensors if "lora_A" in key]:
            other = key.replace("lora_A", "lora_B")
            (left, r), (right, s) = (torch.linalg.qr(one.double()) for one in (tensors[other], tensors[key].T))
            u, sizes, v = torch.linalg.svd(r @ s.T)
            tensors[key], tensors[other] = (sizes[:rank, None] * v[:rank]) @ right.T, left @ u[:, :rank]
        out.mkdir(parents=True, exist_ok=True)
        kept = {key: tensor.float().contiguous() for key, tensor in tensors.items()}
        save_file(kept, out / "adapter_model.safetensors", {"format": "pt"})
        scaled = {**config, "r": rank, "lora_alpha": config["lora_alpha"] * rank / config["r"]}
        (out / "adapter_config.json").write_text(json.dumps(scaled))
    settings, base = PassSettings(tokens=place.size.tokens, seq_len=WINDOW), place.base.absolute().name.lower()
    with Registry(place.work / "home") as registry:
        known = {version.name for version in registry.versions()}
        for name, registered in names.items():
            if registered not in known:
                data = [place.text(name, "train")]
                registry.add_expert(registered, there.adapter(name), base=base, data=data, settings=settings)
    return there, names


def in_bits(folder: Path, kind: str) -> Any:
    """Load a folder in a number format."""
    if kind == "bfloat16":
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, trust_remote_code=True)
    ways = import_module("torchao.quantization")  # of no extra
    groups = ways.granularity.PerGroup(64)
    how = ways.IntxWeightOnlyConfig(vars(torch)["int4"], groups) if kind == "int4" else ways.Int8WeightOnlyConfig()
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, quantization_config=TorchAoConfig(how), trust_remote_code=True
    )


def compose(place: Place, names: list[str], recipe: Recipe, out: Path) -> Path:
    """Write a composition, and return its folder."""
    with Registry(place.work / "home") as registry:
        registry.compose(names, out, recipe)
    return out


def loaded(folder: Path) -> Any:
    """Load a folder in float32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=True).eval()


def lines(place: Place, panels: list[str], done: set[tuple[str, str, str]]) -> Iterator[Line]:
    """Yield what was measured for panels, but lines that are done."""

    @cache
    def own(length: int) -> Found:
        return lost(place, length, partial(alone, place))

    def line(panel: str, at: object, row: str, found: Found, length: int = WINDOW) -> Line:
        low, high = interval(own(length), found)
        score = scores(own(length), found)
        mean = sum(score.values()) / len(score)
        numbers = {name: round(value, 2) for name, value in {"score": mean, "low": low, "high": high, **score}.items()}
        return {"panel": panel, "at": str(at), "row": row, **numbers}

    for tokens, names in texts(place) if "text" in panels else ():
        for row, recipe in RECIPES.items():
            if ("text", str(tokens), row) not in done:
                with scratch_of(place) as out:
                    model = loaded(compose(place, list(names.values()), recipe, out))
                    yield line("text", tokens, row, lost(place, WINDOW, always(model)))
    for rank in RANKS if "rank" in panels else ():
        there, names = (place, {}) if rank == RANKS[-1] else of_rank(place, rank)
        for row, recipe in RECIPES.items():
            if ("rank", str(rank), row) not in done:
                with scratch_of(place) as out:
                    model = loaded(compose(place, [*names.values()] or place.domains, recipe, out))
                    yield line("rank", rank, row, lost(place, WINDOW, always(model)))
        if ("rank", str(rank), OWN) not in done:
            yield line("rank", rank, OWN, lost(there, WINDOW, partial(alone, there)))
    for row, recipe in RECIPES.items() if {"length", "bits"} & {*panels} else ():
        with scratch_of(place) as out:
            folder = compose(place, place.domains, recipe, out)
            model = loaded(folder)
            for length in LENGTHS if "length" in panels else ():
                if ("length", str(length), row) not in done:
                    yield line("length", length, row, lost(place, length, always(model)), length)
            for kind in BITS if "bits" in panels else ():
                if ("bits", kind, row) not in done:
                    model = in_bits(folder, kind).eval()
                    yield line("bits", kind, row, lost(place, WINDOW, always(model)))
    for kind in BITS if "bits" in panels else ():
        if ("bits", kind, OWN) not in done:

            def merged(name: str, kind: str = kind) -> Any:
                one(place, name).merge_and_unload().save_pretrained(place.work / "own")
                model = in_bits(place.work / "own", kind).eval()
                shutil.rmtree(place.work / "own")
                return model

            yield line("bits", kind, OWN, lost(place, WINDOW, merged))


def figure(told: list[Line]) -> str:
    """Return an SVG of what was printed."""

    def panel(name: str, title: str, order: list[str]) -> Line:
        x = {"field": "at", "type": "ordinal", "sort": order, "axis": {"title": title, "labelAngle": 0}}
        y = {"type": "quantitative", "scale": {"zero": False}, "title": "score"}
        colour = {"field": "row", "title": None, "scale": {"domain": [*RECIPES, OWN]}, "legend": {"orient": "bottom"}}
        layers = [
            {"mark": {"type": "rule"}, "encoding": {"y": {"field": "low", **y}, "y2": {"field": "high"}}},
            {"mark": {"type": "line", "point": True}, "encoding": {"y": {"field": "score", **y}}},
        ]
        chosen = [{"filter": {"field": "panel", "equal": name}}]
        return {
            "width": 200, "height": 180, "transform": chosen, "encoding": {"x": x, "color": colour}, "layer": layers,
        }  # fmt: skip

    return drawn(told, [panel(name, *TITLES[name]) for name in dict.fromkeys(row["panel"] for row in told)])


def main() -> None:
    """Register, compose, score, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--adapters", type=Path, required=True)
    parser.add_argument("--corpora", type=Path, default=Path(__file__).parents[3] / "shared" / "corpora")
    parser.add_argument("--work", type=Path, default=Path("build/real/curves"))
    parser.add_argument("--panels", type=lambda text: text.split(","), default=[*TITLES], help="default: all four")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(given.base, padding_side="left")
    none = given.work / "none"
    place = Place(given.base, given.adapters, given.corpora, none, none, given.work, SIZES["full"], tokenizer)
    register(place)
    kept = given.work / "curves.jsonl"
    told = [json.loads(text) for text in kept.read_text().splitlines()] if kept.exists() else []
    for line in lines(place, given.panels, {(row["panel"], row["at"], row["row"]) for row in told}):
        told.append(line)
        print(json.dumps(line), flush=True)
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    (given.work / "curves.svg").write_text(figure(told), encoding="utf-8")


if __name__ == "__main__":
    main()
