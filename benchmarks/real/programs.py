"""MBPP (Austin et al. 2021): small Python functions, right if they pass the tests of their task.

Answers are run: each in a process of its own, in an empty folder, without the environment, for a few seconds.
"""

import re
import resource
import subprocess
import sys
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

SECONDS, MEMORY = 5, 2**30
_BLOCK = re.compile(r"```(?:python|py)?\n(.*?)(?:```|\Z)", re.DOTALL)


def question(task: dict[str, Any]) -> str:
    """Return the prompt of a task, with its first test, which names the function."""
    return f"{task['text']} Your code should pass this test:\n{task['test_list'][0]}"


def passed(tasks: Sequence[dict[str, Any]], answers: Sequence[str]) -> int:
    """Return how many answers, their first block of code or else all of them, pass all tests of their task."""
    return sum(_passes(task, answer) for task, answer in zip(tasks, answers, strict=True))


def _passes(task: dict[str, Any], answer: str) -> bool:
    block = _BLOCK.search(answer)
    done = "passed all tests"  # so that code that ends the process early does not pass
    parts = [block[1] if block else answer, task["test_setup_code"], *task["test_list"], f"print({done!r})"]
    with TemporaryDirectory() as folder:
        try:
            run = subprocess.run(
                [sys.executable, "-I", "-c", "\n".join(parts)], cwd=folder, env={}, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=SECONDS, preexec_fn=_limit,
            )  # fmt: skip
        except (subprocess.TimeoutExpired, ValueError):  # ValueError: a null character
            return False
    return run.returncode == 0 and run.stdout.decode(errors="replace").endswith(f"{done}\n")


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
