"""Models in llama.cpp: converted by its own converter, quantised, and run by llama-cpp-python.

Both come from llama-cpp-python's source package. It is built once, which takes two cores about half an hour.
"""

import os
import subprocess
import sys
import tarfile
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

PACKAGE, NEEDED = "llama-cpp-python==0.3.36", ("diskcache==5.6.3", "sentencepiece==0.2.1")
PLACE = Path(__file__).parents[2] / "build" / "llama-cpp"
CONTEXT = 2048
QUANTISED = {"q8_0": 7, "q4_K_M": 15}
"""Numbers that llama.cpp has for kinds of quantised files (`llama_ftype`)."""


def installed() -> Any:
    """Return the module `llama_cpp`, which is built where it is not yet (CalledProcessError: it cannot be)."""
    if not PLACE.exists():
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        less = os.environ | {"CMAKE_ARGS": "-DLLAMA_BUILD_TOOLS=OFF -DMTMD_BUILD=OFF"}
        PLACE.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=PLACE.parent) as name:
            scratch = Path(name)
            subprocess.run([*pip, "download", "--no-deps", "-d", scratch, PACKAGE], check=True)
            source, partial = next(scratch.glob("*.tar.gz")), scratch / "llama-cpp"
            with tarfile.open(source) as file:
                file.extractall(scratch, filter="data")
            subprocess.run(
                [*pip, "install", "--no-deps", "--target", partial / "site", source, *NEEDED], check=True, env=less
            )
            next(scratch.glob("*/vendor/llama.cpp")).rename(partial / "llama.cpp")
            partial.rename(PLACE)
    if (site := str(PLACE / "site")) not in sys.path:
        sys.path.append(site)
    return import_module("llama_cpp")


def converted(folder: Path, kind: str) -> Path:
    """Convert a folder to `model.gguf` in it, of float16 or quantised from that, and return its path."""
    library, f16, out = installed(), folder / "f16.gguf", folder / "model.gguf"
    converter = [sys.executable, str(PLACE / "llama.cpp" / "convert_hf_to_gguf.py"), str(folder)]
    beside = os.environ | {"PYTHONPATH": str(PLACE / "site")}
    asked_for = ["--outtype", "f16", "--outfile", str(f16)]
    subprocess.run([*converter, *asked_for], check=True, capture_output=True, env=beside)
    if kind == "f16":
        return f16.rename(out)
    asked = library.llama_model_quantize_default_params()
    asked.ftype = QUANTISED[kind]
    if library.llama_model_quantize(os.fsencode(f16), os.fsencode(out), asked):
        raise ValueError(f"llama.cpp does not quantise to {kind}")
    f16.unlink()
    return out


class InLlama(nn.Module):
    """A GGUF file that is called as a model of transformers is, by token ids alone."""

    def __init__(self, path: Path) -> None:
        """Load it."""
        super().__init__()
        self.model = installed().Llama(
            str(path), n_ctx=CONTEXT, n_threads=torch.get_num_threads(), logits_all=True, verbose=False
        )

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Any:
        """Return logits, (B, S, V)."""
        return SimpleNamespace(logits=torch.stack([self._logits(row.tolist()) for row in input_ids]))

    def generate(self, input_ids: Tensor, attention_mask: Tensor, max_new_tokens: int, **options: Any) -> Tensor:
        """Return prompts, which may be padded on the left, and greedy answers, padded on the right."""
        rows = []
        for ids, mask in zip(input_ids, attention_mask, strict=True):
            told = [int(self._logits(ids[mask.bool()].tolist())[-1].argmax())]
            while told[-1] != options["eos_token_id"] and len(told) < max_new_tokens:
                self.model.eval(told[-1:])
                told.append(int(self.model.scores[self.model.n_tokens - 1].argmax()))
            rows.append(told + [options["pad_token_id"]] * (max_new_tokens - len(told)))
        return torch.cat([input_ids, torch.tensor(rows)], dim=1)

    def _logits(self, ids: list[int]) -> Tensor:
        self.model.reset()
        self.model.eval(ids)
        return torch.tensor(self.model.scores[: len(ids)].copy())
