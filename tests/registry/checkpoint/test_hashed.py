"""Proves: a checkpoint is hashed by several threads in a forked process too."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import make_model, save_checkpoint, train_tokenizer

FORKED = """
import os, sys
from pathlib import Path
import torch
from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.progress import silent

torch.ones(1000, 1000) @ torch.ones(1000, 1000)
torch.set_num_threads(2)
failed = 0
for _ in range(20):
    child = os.fork()
    if child == 0:
        try:
            hash_checkpoint(Checkpoint(Path(sys.argv[1])), silent)
            os._exit(0)
        except BaseException:
            os._exit(2)
    failed += os.waitpid(child, 0)[1] != 0
print(failed)
"""


@pytest.mark.check
def test_threads_of_a_forked_process_find_torchs_pool(tmp_path: Path) -> None:
    large = make_model(
        "llama", 1, hidden_size=256, intermediate_size=768, num_hidden_layers=6
    )  # its tensors are checked in parallel
    folder = save_checkpoint(large, tmp_path / "large", train_tokenizer())
    done = subprocess.run([sys.executable, "-c", FORKED, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n", done.stderr
