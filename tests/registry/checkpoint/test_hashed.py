"""Proves: a checkpoint is hashed by several threads in a forked process too."""

import subprocess
import sys

from tests.conftest import Zoo

FORKED = """
import os, sys
from pathlib import Path
import torch
from registry.checkpoint import Checkpoint, hash_checkpoint
from registry.progress import silent

checkpoint = Checkpoint(Path(sys.argv[1]))
torch.set_num_threads(2)
whole = hash_checkpoint(checkpoint, silent).weights
failed = 0
for _ in range(20):
    child = os.fork()
    if child == 0:
        try:
            os._exit(hash_checkpoint(checkpoint, silent).weights != whole)
        except BaseException:
            os._exit(2)
    failed += os.waitpid(child, 0)[1] != 0
print(failed)
"""


def test_threads_of_a_forked_process_find_torchs_pool(zoo: Zoo) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, str(zoo.base)], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n", done.stderr
