"""llama.cpp's programs, and what they say: its converters, `llama-quantize` and `llama-tokenize`."""

import ast
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from registry.errors import CheckpointError, IncompatibleError, NotFoundError, RegError
from registry.progress import Progress

CONVERTER, LORA_CONVERTER = "convert_hf_to_gguf.py", "convert_lora_to_gguf.py"
QUANTIZE, TOKENIZE = "llama-quantize", "llama-tokenize"

_RUNNER = Path(__file__).with_name("run_converter.py")
_SOURCE = "git clone --depth 1 https://github.com/ggml-org/llama.cpp, then: --llama-cpp llama.cpp"
_BUILD = "cmake -B build && cmake --build build --target llama-quantize llama-tokenize, in llama.cpp's folder"
_STEP = 0.1  # seconds between two looks at a file that grows
_PLAIN = {"OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class LlamaCpp:
    """A copy of llama.cpp.

    Attributes:
        folder: its source, with the converters.
    """

    folder: Path

    @classmethod
    def find(cls, given: Path | None) -> "LlamaCpp":
        """Return the copy in a folder, or the one whose converter is on PATH (NotFoundError: there is none)."""
        on_path = None if given else shutil.which(CONVERTER)
        folder = given or (Path(on_path).resolve().parent if on_path else None)
        if folder is None:
            raise NotFoundError(f"{CONVERTER} of llama.cpp is not on PATH", _SOURCE)
        if not (folder / CONVERTER).is_file():
            raise NotFoundError(f"{folder} has no {CONVERTER}, so it is not llama.cpp's source", _SOURCE)
        return cls(folder.absolute())

    def program(self, name: str) -> Path | None:
        """Return a program that was built in the folder, or is on PATH; None if there is none."""
        built = (self.folder / part / name for part in ("build/bin", "bin", "."))
        found = next((path for path in built if os.access(path, os.X_OK)), None) or shutil.which(name)
        return None if found is None else Path(found)

    def require_quantize(self, kind: str) -> Path:
        """Return `llama-quantize`, which a type of file needs (NotFoundError: there is none)."""
        if (found := self.program(QUANTIZE)) is None:
            raise NotFoundError(f"{kind} needs {QUANTIZE}, which is neither in {self.folder} nor on PATH", _BUILD)
        return found

    def convert(self, model: Path, out: Path, kind: str, pre: str, nbytes: int, progress: Progress) -> None:
        """Convert a folder of transformers; `kind` is f32, f16, bf16 or q8_0, `nbytes` about what it writes.

        Raises:
            IncompatibleError: llama.cpp knows no such model, or no such tokenizer and `pre` is empty.
            CheckpointError: it fails in another way.
        """
        words = [str(self.folder / CONVERTER), pre, str(model), "--outtype", kind, "--outfile", str(out)]
        self._run([sys.executable, "-P", str(_RUNNER), *words], f"converting to {kind}", out, nbytes, progress)

    def convert_lora(self, adapter: Path, base: Path, out: Path, kind: str, progress: Progress) -> None:
        """Convert the folder of an adapter of the model in `base` (errors as `convert`)."""
        words = [str(self.folder / LORA_CONVERTER), "", str(adapter)]
        words += ["--base", str(base), "--outtype", kind, "--outfile", str(out)]
        nbytes = sum(path.stat().st_size for path in adapter.iterdir())
        self._run([sys.executable, "-P", str(_RUNNER), *words], f"converting {out.stem}", out, nbytes, progress)

    def quantize(
        self, model: Path, out: Path, kind: str, importance: Path | None, nbytes: int, progress: Progress
    ) -> None:
        """Quantize a GGUF file, with an importance matrix beside it if there is one (CheckpointError: llama.cpp fails).

        The name of the matrix stands in the file that is made, so it has no path.
        """
        weighed = [] if importance is None else ["--imatrix", importance.name]
        words = [str(self.require_quantize(kind)), *weighed, str(model), str(out), kind, str(os.cpu_count() or 1)]
        self._run(words, f"quantizing to {kind}", out, nbytes, progress, model.parent)

    def tokens(self, model: Path, text: str) -> list[int] | None:
        """Return the tokens of a text by a GGUF file's tokenizer; None where there is no `llama-tokenize`.

        (CheckpointError: it does not load the file.)
        """
        if (program := self.program(TOKENIZE)) is None:
            return None
        ended = subprocess.run(
            [program, "-m", model, "--stdin", "--ids"], input=text.encode(), capture_output=True, check=False
        )
        lines = [line for line in ended.stdout.decode(errors="replace").splitlines() if line.startswith("[")]
        if ended.returncode or not lines:
            why = f"{_newer(self.folder)}, or name another --pre-tokenizer if you gave one"
            raise CheckpointError(f"{TOKENIZE} does not load the file: {_told(ended.stderr)}", why)
        return [int(one) for one in ast.literal_eval(lines[-1])]

    def _run(
        self, words: Sequence[str], label: str, out: Path, nbytes: int, progress: Progress, at: Path | None = None
    ) -> None:
        """Run a program while its file grows; its notes are read only if it fails."""
        with TemporaryFile() as notes, progress(label, nbytes, "B") as advance:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=notes, stderr=notes, env=os.environ | _PLAIN, cwd=at
            )
            try:
                seen = 0
                while process.poll() is None:
                    time.sleep(_STEP)
                    size = min(nbytes, out.stat().st_size) if out.exists() else 0
                    advance(max(size - seen, 0))
                    seen = max(size, seen)
                advance(nbytes - seen)
            finally:
                process.kill()
                process.wait()
            notes.seek(0)
            told = notes.read()
        if process.returncode or not out.is_file():
            raise self._problem(label, told)

    def _problem(self, label: str, told: bytes) -> RegError:
        text = told.decode(errors="replace")
        if "is not supported" in text:
            line = next(line for line in text.splitlines() if "is not supported" in line)
            return IncompatibleError(
                f"llama.cpp: {line.rpartition(':')[2].strip()}",
                f"{_newer(self.folder)}; or compose for a host that it knows, such as --to moe --host mixtral",
            )
        if "pre-tokenizer was not recognized" in text:
            return IncompatibleError(
                "llama.cpp does not know the pre-tokenizer of this tokenizer",
                "name its rules that cut text alike, of which the tokens are then compared: --pre-tokenizer llama-bpe",
            )
        return CheckpointError(f"llama.cpp failed at {label}: {_told(told)}", _newer(self.folder))


def _told(notes: bytes) -> str:
    """Return the last line of a program's notes that is not empty."""
    lines = [line.strip() for line in notes.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it says nothing"


def _newer(folder: Path) -> str:
    return f"try a newer llama.cpp than the one in {folder}"
