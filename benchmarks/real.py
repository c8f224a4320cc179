"""What LoRA experts of a real chat model are worth together: ours beside what PEFT offers without training.

    python -m benchmarks.real BASE ADAPTERS [--corpora ../shared/corpora] [--skills FOLDER] [--work build/real]
        [--windows 16] [--prompts 50] [--only ROW,ROW] [--page benchmarks/REAL.md]

BASE is a model folder; ADAPTERS has a PEFT folder `dom_NAME` for each domain, whose text is
`CORPORA/NAME/{train,test}.jsonl.gz`, and `task_NAME` for each skill, whose conversations are
`SKILLS/task_NAME.{train,test}.jsonl.gz`: questions of a user, and the one right answer to each.

The score of a domain is 100 for its own expert, and 100 exp(loss of that - loss) of a model, on the same windows of 256
tokens; intervals are 95 %, paired bootstrap over windows. Exact match is the share of a skill's test questions that
greedy decoding answers to the letter; its interval is Wilson's. Models are loaded in float32. What is registered and
found stays in --work, so that an interrupted run goes on.
"""

import argparse
import gzip
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from platform import python_version
from typing import Any

import peft
import torch
import transformers
from peft import ArrowConfig, PeftModel, create_arrow_model
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.many_members import losses
from registry import PassSettings, Recipe, Registry

WINDOW = 256  # tokens
CALIBRATION = PassSettings(tokens=24_576, seq_len=256)
OWN_TEXT = 24_576  # tokens that the base model writes
RESAMPLES = 2000
PAGE = Path(__file__).with_name("REAL.md")


@dataclass(frozen=True)
class Place:
    """Where everything is, and how much of it is used."""

    base: Path
    adapters: Path
    corpora: Path
    skills: Path
    work: Path
    windows: int
    prompts: int
    tokenizer: Any = field(repr=False)

    @property
    def domains(self) -> list[str]:
        """The domains that have an adapter, in name order."""
        return sorted(path.name.removeprefix("dom_") for path in self.adapters.glob("dom_*"))

    @property
    def tasks(self) -> list[str]:
        """The skills that have an adapter, in name order."""
        return sorted(path.name.removeprefix("task_") for path in self.adapters.glob("task_*"))

    def adapter(self, name: str) -> Path:
        """Return the PEFT folder of a domain or skill."""
        return self.adapters / (f"dom_{name}" if name in self.domains else f"task_{name}")

    def text(self, name: str, part: str) -> Path:
        """Return the `train` or `test` text of a domain or skill."""
        if name in self.domains:
            return self.corpora / name / f"{part}.jsonl.gz"
        return self.skills / f"task_{name}.{part}.jsonl.gz"


Load = Callable[[Place, Sequence[str], Path], Any]
"""Return a model of members; the folder is free for what it writes."""


def plain(place: Place) -> Any:
    """Return the base model."""
    return AutoModelForCausalLM.from_pretrained(place.base, dtype=torch.float32)


def merged(how: str, weight: float | None = None, **options: Any) -> Load:
    """Return what merges adapters with PEFT, each with this weight, else with 1 / their number."""

    def load(place: Place, names: Sequence[str], scratch: Path) -> Any:
        model = PeftModel.from_pretrained(plain(place), place.adapter(names[0]), adapter_name=names[0])
        for name in names[1:]:
            model.load_adapter(place.adapter(name), adapter_name=name)
        weights = [weight or 1 / len(names)] * len(names)
        torch.manual_seed(0)  # DARE drops at random
        model.add_weighted_adapter(list(names), weights, "all", combination_type=how, **options)
        model.set_adapter("all")
        return model

    return load


def arrow(top_k: int) -> Load:
    """Return what routes adapters with PEFT's Arrow."""

    def load(place: Place, names: Sequence[str], scratch: Path) -> Any:
        paths = [str(place.adapter(name)) for name in names]
        return create_arrow_model(plain(place), paths, ArrowConfig(top_k=top_k))

    return load


def composed(recipe: Recipe, *, own_text: bool = True) -> Load:
    """Return what composes members with us; with `own_text` the base model is a member if the recipe takes it."""

    def load(place: Place, names: Sequence[str], scratch: Path) -> Any:
        with Registry(place.work / ("home" if own_text else "home-without-base")) as registry:
            registry.compose(names, scratch, recipe)
        return AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.float32, trust_remote_code=True)

    return load


ROWS: dict[str, Load] = {
    "base": lambda place, names, scratch: plain(place),
    "average": merged("cat"),
    "sum": merged("cat", 1.0),
    "PEFT linear": merged("linear"),
    "PEFT svd": merged("svd"),
    "PEFT ties": merged("ties_svd", density=0.5),
    "PEFT dare": merged("dare_linear_svd", density=0.5),
    "PEFT Arrow top 1": arrow(1),
    "PEFT Arrow top 3": arrow(3),
    "--to dense --trunk mean": composed(Recipe(to="dense", trunk="mean")),
    "--to moe --router ridge": composed(Recipe(router="ridge")),
    "--to moe": composed(Recipe()),
    "--to adapters without base member": composed(Recipe(to="adapters"), own_text=False),
    "--to adapters": composed(Recipe(to="adapters")),
}


def register(place: Place) -> None:
    """Register the base model and every adapter, in a home with the base's own text and in one without."""
    for home, own_text in (("home", OWN_TEXT), ("home-without-base", 0)):
        with Registry(place.work / home) as registry:
            known = {version.name for version in registry.versions()}
            base = place.base.absolute().name
            if base not in known:
                registry.add_base(base, place.base, own_text=own_text)
            for name in (*place.domains, *place.tasks):
                if name in known:
                    continue
                settings = CALIBRATION if own_text else PassSettings(tokens=24_576, seq_len=256, sites="counts")
                data = [place.text(name, "train")]
                registry.add_expert(name, place.adapter(name), base=base, data=data, settings=settings)


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def windows_of(place: Place, domain: str) -> Tensor:
    """Return the test windows of a domain, (N, 256)."""
    ids: list[int] = []
    for row in rows_of(place.text(domain, "test")):
        ids += [*place.tokenizer(row["text"], add_special_tokens=False)["input_ids"], place.tokenizer.eos_token_id]
        if len(ids) >= place.windows * WINDOW:
            break
    return torch.tensor(ids)[: place.windows * WINDOW].view(-1, WINDOW)


@torch.inference_mode()
def exact_match(place: Place, model: Any, task: str) -> int:
    """Return how many test questions of a skill a model answers to the letter."""
    tokenizer, right = place.tokenizer, 0
    rows = [row["messages"] for row in islice(rows_of(place.text(task, "test")), place.prompts)]
    for start in range(0, len(rows), 50):
        part = rows[start : start + 50]
        answers = [messages[1]["content"] for messages in part]
        prompts = [
            tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True) for messages in part
        ]
        x = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        longest = max(len(tokenizer(answer)["input_ids"]) for answer in answers) + 3
        stop = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.eos_token_id}
        found = model.generate(**x, max_new_tokens=longest, do_sample=False, **stop)
        told = tokenizer.batch_decode(found[:, x["input_ids"].shape[1] :], skip_special_tokens=True)
        right += sum(one.strip() == answer for one, answer in zip(told, answers, strict=True))
    return right


@contextmanager
def scratch_of(place: Place) -> Iterator[Path]:
    """Yield a folder that is not there yet, and delete it."""
    folder = place.work / "out"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(place: Place, row: str, kind: str, names: Sequence[str]) -> dict[str, Any]:
    """Return what one row gives for members: the losses of windows by domain, or right answers by skill."""
    started = time.perf_counter()
    with scratch_of(place) as scratch:
        model = ROWS[row](place, names, scratch).eval()
        size = sum(path.stat().st_size for path in scratch.glob("*.safetensors"))
        if kind == "domains":
            found: Any = {name: losses(model, windows_of(place, name)).tolist() for name in place.domains}
        else:
            found = {name: exact_match(place, model, name) for name in place.tasks}
    return {kind: found, "MB": round(size / 1e6), "seconds": round(time.perf_counter() - started)}


def own(place: Place, kind: str) -> dict[str, Any]:
    """Return what each domain's or skill's own expert gives on it, by PEFT."""
    names = place.domains if kind == "domains" else place.tasks
    found: dict[str, Any] = {}
    for name in names:
        model = PeftModel.from_pretrained(plain(place), place.adapter(name)).eval()
        if kind == "domains":
            found[name] = losses(model, windows_of(place, name)).tolist()
        else:
            found[name] = exact_match(place, model, name)
    return {kind: found}


def scores(best: dict[str, list[float]], found: dict[str, list[float]]) -> dict[str, float]:
    """Return the score of each domain."""
    return {
        name: 100 * math.exp(sum(best[name]) / len(best[name]) - sum(found[name]) / len(found[name])) for name in best
    }


def interval(best: dict[str, list[float]], found: dict[str, list[float]], less: Any = None) -> tuple[float, float]:
    """Return the 95 % interval of the mean score, or with `less` of by how much it is above that model's."""
    draw, means = torch.Generator().manual_seed(0), []
    for _ in range(RESAMPLES):
        mean = 0.0
        for name, losses_ in best.items():
            picks = torch.randint(0, len(losses_), (len(losses_),), generator=draw)
            gap = torch.tensor(losses_)[picks].mean()
            mean += 100 * float((gap - torch.tensor(found[name])[picks].mean()).exp())
            if less is not None:
                mean -= 100 * float((gap - torch.tensor(less[name])[picks].mean()).exp())
        means.append(mean / len(best))
    low, high = torch.tensor(means).quantile(torch.tensor([0.025, 0.975])).tolist()
    return low, high


def wilson(right: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share, in percent (Wilson 1927)."""
    z, share = 1.96, right / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return 100 * (middle - half), 100 * (middle + half)


def main() -> None:
    """Measure what is not there yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("adapters", type=Path)
    parser.add_argument("--corpora", type=Path, default=Path(__file__).parents[2] / "shared" / "corpora")
    parser.add_argument("--skills", type=Path, default=Path("build/skills"))
    parser.add_argument("--work", type=Path, default=Path("build/real"))
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--only", help="rows, with commas between; default: all")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    place = Place(
        given.base, given.adapters, given.corpora, given.skills, given.work, given.windows, given.prompts,
        AutoTokenizer.from_pretrained(given.base, padding_side="left"),
    )  # fmt: skip
    register(place)
    everyone = [*place.domains, *place.tasks]
    wanted = [row for row in ROWS if given.only is None or row in given.only.split(",")]
    for kind, among in (("domains", place.domains), ("domains", everyone), ("skills", everyone)):
        for row in ("own", *wanted):
            path = place.work / f"{kind} {len(among)} {row.replace('/', '-')}.json"
            if path.exists() or (row == "own" and kind == "domains" and among != place.domains):
                continue
            try:
                found = own(place, kind) if row == "own" else measure(place, row, kind, among)
            except ValueError as error:  # what PEFT refuses, as adapters of several ranks
                found = {"refused": str(error)}
            path.write_text(json.dumps(found))
            print(path.stem, found.get("refused", f"{found.get('seconds', 0)} s"), flush=True)
    given.page.write_text(page(place, everyone))
    print(f"wrote {given.page}")


def platform() -> str:
    """Return Python's version and the instructions that torch uses."""
    return f"Python {python_version()}, {torch.backends.cpu.get_cpu_capability()}"


def ranks(place: Place, names: Sequence[str]) -> str:
    """Return the rank of each adapter, in words."""
    found = {name: json.loads((place.adapter(name) / "adapter_config.json").read_text())["r"] for name in names}
    return "; ".join(
        f"{rank} ({', '.join(name for name in names if found[name] == rank)})" for rank in sorted(set(found.values()))
    )


def page(place: Place, everyone: Sequence[str]) -> str:
    """Return the page of all that was found."""

    def of(kind: str, count: int, row: str) -> dict[str, Any]:
        path = place.work / f"{kind} {count} {row.replace('/', '-')}.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    best = of("domains", len(place.domains), "own")["domains"]
    lines = [
        "# LoRA experts of a real chat model",
        "",
        "Written by `python -m benchmarks.real` (`benchmarks/real.py` says how), not by hand.",
        "",
        f"The base model is {place.base.absolute().name}; its adapters have rank {ranks(place, everyone)}. Merges and",
        "averages give each adapter the weight 1 / members, `sum` the weight 1; TIES and DARE keep half of each.",
        "Without base member, the base model counted no text of its own, so that all text goes to an adapter. MB are",
        "those of a composed folder. Text that the base model wrote, and of each calibration, is 24,576 tokens.",
        "",
        f"{platform()}, torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}.",
    ]
    for names in (place.domains, everyone):
        reference = of("domains", len(names), "--to adapters").get("domains")
        lines += ["", f"## {len(names)} members: {', '.join(names)}", ""]
        lines += [f"Score of each domain, {place.windows} windows of {WINDOW} tokens each; 100 is its own expert.", ""]
        lines += [
            f"| | {' | '.join(best)} | mean | 95 % interval | `--to adapters` is above it by | MB |",
            "| --- |" + " ---: |" * (len(best) + 4),
        ]
        for row in ROWS:
            found = of("domains", len(names), row)
            if "domains" not in found:
                lines += [f"| {row} |" + " |" * (len(best) + 4)] if "refused" in found else []
                continue
            every, (low, high) = scores(best, found["domains"]), interval(best, found["domains"])
            ahead = ""
            if reference is not None and row != "--to adapters":
                ahead = "{:.2f} to {:.2f}".format(*interval(best, reference, found["domains"]))
            cells = " | ".join(f"{score:.2f}" for score in every.values())
            mean = sum(every.values()) / len(every)
            lines.append(f"| {row} | {cells} | {mean:.2f} | {low:.2f} to {high:.2f} | {ahead} | {found['MB'] or ''} |")
    lines += ["", f"## Exact match of {place.prompts} greedy answers, in %, among {', '.join(everyone)}", ""]
    lines += [f"| | {' | '.join(place.tasks)} |", "| --- |" + " ---: |" * len(place.tasks)]
    for row in ("own", *ROWS):
        found = of("skills", len(everyone), row)
        if "skills" in found:
            shares = [
                "{:.0f} ({:.0f} to {:.0f})".format(100 * right / place.prompts, *wilson(right, place.prompts))
                for right in found["skills"].values()
            ]
            lines.append(f"| {'its own expert' if row == 'own' else row} | {' | '.join(shares)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
