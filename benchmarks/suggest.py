"""Suggested experts against the best: every subset composed and scored, text that nobody knows, 1,000 experts.

    python -m benchmarks.suggest [--shared ../shared] [--work build/suggest] [--windows 4]

`SHARED/experts/<name>` are checkpoints beside their `base`, `SHARED/corpora/<name>/{train,test}.jsonl.gz` is text. What
is registered and measured stays in --work, so that an interrupted run goes on.
"""

import argparse
import gzip
import json
import shutil
import time
from dataclasses import replace
from itertools import combinations, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from registry import Registry, TestSettings
from registry.io.torch_blocks import to_block
from registry.workspace import content_digest
from store.arrays import ArraySource
from store.catalog import NewVersion

CHARACTERS, LONGEST = 36_000, 1_500  # of a text, and of a document in it
MIXED = ("code+math", "literature+german", "biomed+history_philosophy", "code+german+biomed", "code+general")
BUDGETS, MANY = (2, 3), 1_000
Scores = dict[str, dict[str, float]]  # members, or `base` → text → perplexity


def make_texts(corpora: Path, work: Path) -> dict[str, Path]:
    """Write text of each domain, and of several in turn, from the test parts; return name → file."""
    parts, texts = dict[str, list[str]](), dict[str, Path]()
    for folder in sorted(corpora.iterdir()):
        with gzip.open(folder / "test.jsonl.gz", "rt", encoding="utf-8") as file:
            parts[folder.name] = [json.loads(line)["text"][:LONGEST] for line in file]
    for name in (*parts, *MIXED):
        rows, texts[name] = list[str](), work / f"{name}.jsonl"
        for text in sum(zip_longest(*map(parts.__getitem__, name.split("+")), fillvalue=""), ()):
            rows += [text] if sum(map(len, rows)) < CHARACTERS else []
        texts[name].write_text("".join(json.dumps({"text": text}) + "\n" for text in rows), encoding="utf-8")
    return texts


def measure_all(registry: Registry, experts: list[str], texts: dict[str, Path], work: Path, windows: int) -> Scores:
    """Return the perplexities of the base model, of each expert, and of the default mixture of every larger subset."""
    kept, settings = work / "perplexity.json", TestSettings(windows=windows, dtype="float32")
    found: Scores = json.loads(kept.read_text()) if kept.exists() else {}
    data = {f"text-{name}": [file] for name, file in texts.items()}  # a domain of an expert's name would have it scored
    subsets = [("base",), *(one for count in range(1, max(BUDGETS) + 1) for one in combinations(experts, count))]
    for key, members in ((key, one) for one in subsets if (key := ",".join(one)) not in found):
        with TemporaryDirectory(dir=work) as scratch:
            one = Path(scratch) / "one"
            registry.write(registry.plan(members), one) if members[1:] else registry.export(members[0], one)
            (row,) = registry.evaluate([one], data, settings)
        found[key] = {name.removeprefix("text-"): value for name, value in row.perplexity.items()}
        kept.write_text(json.dumps(found))
        print(f"{key}: {' '.join(f'{value:.2f}' for value in found[key].values())}", flush=True)
    return found


def compare(registry: Registry, experts: list[str], texts: dict[str, Path], found: Scores) -> None:
    """Print how far each suggested subset is above the best one, and whether nobody's text is told."""
    every, of_known, told, measured = list[float](), list[float](), list[bool](), list[bool]()
    for budget, name in ((budget, name) for budget in BUDGETS for name in texts):
        scores = {key: row[name] for key, row in found.items() if key != "base" and key.count(",") < budget}
        suggested = registry.suggest([texts[name]], budget=budget)
        chosen = ",".join(sorted(one.name for one in suggested.experts))
        best = min(scores, key=scores.__getitem__)
        every.append(above := scores[chosen] / scores[best] - 1)
        of_known += [above] if suggested.known == 1 else []
        print(f"budget {budget}, {name}: {chosen} {scores[chosen]:.2f}; best {best} {scores[best]:.2f}: {above:+.1%}")
    print(f"above the best, at most 3 %: {max(every):.1%}; {max(of_known):.1%} where experts know all of the text\n")
    for name, without in [*((name, "") for name in texts), *((name, name) for name in experts)]:
        others, base = {*experts} - {without}, found["base"][name]
        suggested = registry.suggest([texts[name]], without=[without] if without else [])
        least = min(row[name] for key, row in found.items() if {*key.split(",")} <= others)
        told.append(suggested.nobody == {*name.split("+")}.isdisjoint(others))
        measured.append(suggested.nobody == (base < least))
        verdict = f"right by domain {told[-1]}, by perplexity {measured[-1]} (base {base:.2f}, others {least:.2f})"
        print(f"{name}{without and ' without its expert'}: known {suggested.known:.0%}; {verdict}")
    print(f"right in 9 of 10: by domain {sum(told)}, by perplexity {sum(measured)}, of {len(told)}\n")


def among_many(home: Path, text: Path) -> None:
    """Print the time of a suggestion among copies of an expert, each with counts of tokens of its own."""
    draw = torch.Generator().manual_seed(0)
    with Registry(home) as registry, registry.catalog.lock("registering"):
        versions = registry.versions(kind="expert")
        counts, first = torch.stack([member.evidence_counts for member in registry.members(versions)]), versions[0]
        for number in range(MANY):
            own = (torch.rand((len(counts), 1), generator=draw).square() * counts).sum(dim=0).long()
            digest = registry.arrays.put(ArraySource.of(to_block(own), "int64"), compress=True)
            given = {
                link: digest for link in registry.arrays_of(first) if link.name in ("token_counts", "content_counts")
            }
            links = tuple(replace(link, digest=given.get(link, link.digest)) for link in registry.arrays_of(first))
            made = content_digest(first.content or {}, links), first.content or {}, first.parameters, links
            registry.catalog.add_version(NewVersion(f"made-{number}", "expert", *made, first.statistics))
    with Registry(home) as registry:
        started, before = time.monotonic(), time.process_time()
        registry.suggest([text], budget=max(BUDGETS))
        seconds, used = time.monotonic() - started, time.process_time() - before
    print(f"{MANY:,} more experts, in 10 s: {seconds:.1f} s, of which {used:.1f} s of a CPU")


def main() -> None:
    """Register and measure what is not there yet, and print the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--work", type=Path, default=Path("build/suggest"))
    parser.add_argument("--windows", type=int, default=4)
    given = parser.parse_args()
    work, (checkpoints, corpora) = given.work.absolute(), (given.shared.absolute() / n for n in ("experts", "corpora"))
    work.mkdir(parents=True, exist_ok=True)
    texts = make_texts(corpora, work)
    experts = sorted({path.parent.name for path in checkpoints.glob("*/config.json")} - {"base"})
    with Registry(work / "home") as registry:
        registry.add_base("base", checkpoints / "base")
        for name in {*experts} - {version.name for version in registry.versions()}:
            registry.add_expert(name, checkpoints / name, data=[corpora / name / "train.jsonl.gz"])
        compare(registry, experts, texts, measure_all(registry, experts, texts, work, given.windows))
    with TemporaryDirectory(dir=work) as scratch:
        among_many(Path(shutil.copytree(work / "home", Path(scratch) / "home")), texts[MIXED[0]])


if __name__ == "__main__":
    main()
