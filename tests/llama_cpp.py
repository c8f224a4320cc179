"""llama.cpp for tests: its own converters, and programs that stand in for what takes minutes to build.

The converters come with llama-cpp-python's source: `make .llama.cpp/installed`.
"""

import stat
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / ".llama.cpp"

_CONVERTER = """
import json, sys
from pathlib import Path
import numpy as np
from gguf import GGUFWriter
from conversion.base import TextModel

folder, given = Path(sys.argv[1]), dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
if (told := Path(__file__).with_name("fails.txt")).exists():
    print(told.read_text(), file=sys.stderr)
    sys.exit(1)
config = json.loads((folder / "config.json").read_text())
layers, width, experts = (config[key] for key in ("num_hidden_layers", "hidden_size", "num_local_experts"))
writer = GGUFWriter(given["--outfile"], "llama")
writer.add_tokenizer_pre(TextModel().get_vocab_base_pre(None))
writer.add_string("converted.to", given["--outtype"])
writer.add_add_bos_token(False)
writer.add_eot_token_id(5)
shapes = {"output": (4, width)}
for layer in range(layers):
    shapes |= {f"blk.{layer}.attn_q": (4, width), f"blk.{layer}.attn_output": (4, config["head_dim"] * 4)}
    shapes |= {f"blk.{layer}.ffn_up_exps": (experts, 4, width), f"blk.{layer}.ffn_down_exps": (experts, width, 4)}
for name, shape in shapes.items():
    writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
"""

_BASE = """
class TextModel:
    def get_vocab_base_pre(self, tokenizer):
        raise NotImplementedError
"""

_QUANTIZE = """
import json, shutil, sys
from pathlib import Path
words = sys.argv[1:]
here = Path(__file__).parent
if words[0] == "--imatrix":
    shutil.copyfile(words[1], here / "imatrix.gguf")
    words = words[2:]
(here / "kind.txt").write_text(words[2])
shutil.copyfile(words[0], words[1])
"""

_TOKENIZE = """
from pathlib import Path
print("a line of llama.cpp's")
print(Path(__file__).with_name("tokens.json").read_text())
"""


def stand_in(folder: Path, *programs: str) -> Path:
    """Write a folder that looks like llama.cpp's: its converter writes tensors of zeros, by the names of a Mixtral."""
    (folder / "conversion").mkdir(parents=True)
    (folder / "conversion" / "__init__.py").write_text("")
    (folder / "conversion" / "base.py").write_text(_BASE)
    (folder / "convert_hf_to_gguf.py").write_text(_CONVERTER)
    (folder / "bin").mkdir()
    for name, text in {"llama-quantize": _QUANTIZE, "llama-tokenize": _TOKENIZE}.items():
        if name in programs:
            program = folder / "bin" / name
            program.write_text(f"#!{sys.executable}\n{text}")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder
