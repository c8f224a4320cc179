"""Models in llama.cpp: written by `reg export-gguf`, and run by llama-cpp-python.

llama.cpp's source comes with llama-cpp-python's source package. It is built once with cmake, which takes two cores five
to twenty minutes.
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

from registry import Registry

PACKAGE, NEEDED = "llama-cpp-python==0.3.36", "diskcache==5.6.3"
PLACE = Path(__file__).parents[2] / "build" / "llama-cpp"
CONTEXT = 2048
PLAIN = " without importance"
KINDS = ("f16", "q8_0", "q4_K_M", f"q4_K_M{PLAIN}")
"""Kinds of files: their types, with an importance matrix where bits are few, and without."""

_LEFT_OUT = ("LLAMA_CURL", "LLAMA_OPENSSL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER")


def installed() -> Path:
    """Return the folder of llama.cpp's source and programs, made where it is not there."""
    if not PLACE.exists():
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        PLACE.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=PLACE.parent) as name:
            scratch, partial = Path(name), Path(name) / "made"
            subprocess.run([*pip, "download", "--no-deps", "-d", scratch, PACKAGE], check=True)
            with tarfile.open(next(scratch.glob("*.tar.gz"))) as file:
                file.extractall(scratch, filter="data")
            subprocess.run([*pip, "install", "--no-deps", "--target", partial / "site", NEEDED], check=True)
            source = next(scratch.glob("*/vendor/llama.cpp"))
            next(scratch.glob("*/llama_cpp")).rename(partial / "site" / "llama_cpp")
            source.rename(partial / "llama.cpp")
            build = partial / "llama.cpp" / "build"
            less = [f"-D{option}=OFF" for option in _LEFT_OUT]
            less += ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON"]  # the folder will move
            subprocess.run(["cmake", "-S", build.parent, "-B", build, *less], check=True)
            targets = ["--target", "llama-quantize", "llama-tokenize"]
            subprocess.run(["cmake", "--build", build, "-j", str(os.cpu_count()), *targets], check=True)
            partial.rename(PLACE)
    return PLACE / "llama.cpp"


def library() -> Any:
    """Return the module `llama_cpp`, on the library that was built."""
    os.environ["LLAMA_CPP_LIB_PATH"] = str(installed() / "build" / "bin")
    if (site := str(PLACE / "site")) not in sys.path:
        sys.path.append(site)
    return import_module("llama_cpp")


def exported(registry: Registry, folder: Path, kind: str) -> Path:
    """Write a composed folder as one of `KINDS`, and return the file."""
    out, importance = folder.with_name(f"{folder.name}.gguf"), PLAIN not in kind
    registry.export_gguf(folder, out, kind.removesuffix(PLAIN), llama_cpp=installed(), importance=importance)
    return out


class InLlama(nn.Module):
    """A GGUF file that is called as a model of transformers is, by token ids alone."""

    def __init__(self, path: Path) -> None:
        """Load it."""
        super().__init__()
        self.model = library().Llama(
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
