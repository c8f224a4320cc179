"""Proves: a process killed at any step leaves a registry that verifies, and the command repeated does what it should.

Every twenty-fourth step is tried here; REG_TEST_STRIDE=1 tries them all (some minutes).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from registry import PassSettings
from registry.collecting import collect_to
from tests.models import make_model, save_checkpoint, sentences, write_jsonl

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    for seed, name in ((301, "code"), (302, "math")):
        model = make_model("llama", seed, num_hidden_layers=1, tie_word_embeddings=True)
        data = write_jsonl(folder / f"{name}.jsonl", sentences(name, 20))
        save_checkpoint(model, folder / name, tokenizer)
        collect_to(folder / name, folder / name, data=[data], settings=PassSettings(tokens=128, seq_len=32))
    return folder


@pytest.mark.parametrize("command", ["add", "compose", "recompose", "opt-out"])
def test_killed_at_any_step(checkpoints: Path, tmp_path: Path, command: str) -> None:
    stride = os.environ.get("REG_TEST_STRIDE", "24")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("COV", "PYTEST"))}
    words = [sys.executable, "-m", "tests.crash", command, str(checkpoints), str(tmp_path), stride]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["steps"] > 20
    assert told["kills"] >= told["tried"] - 1
    print(command, told)
    shutil.rmtree(tmp_path)
