"""Run a converter of llama.cpp with its own library, and without any code of the model's folder: SCRIPT PRE ARGUMENTS…

Some of its classes would run a tokenizer's own code.
Byte-level BPE tokenizers are known to it by a hash, so that one which nobody has published stops it. PRE then names
llama.cpp's rules that cut the same text alike; an empty PRE names none.
"""

import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import transformers


def main() -> None:
    """Run it."""
    script, pre, *arguments = sys.argv[1:]
    folder = Path(script).parent
    sys.path[:0] = [str(folder / "gguf-py"), str(folder)]
    for library in (transformers.AutoConfig, transformers.AutoTokenizer):
        _without_code(library)
    if pre:
        model = import_module("conversion.base").TextModel
        known = model.get_vocab_base_pre

        def named(self: Any, tokenizer: Any) -> Any:
            try:
                return known(self, tokenizer)
            except NotImplementedError:
                return pre

        model.get_vocab_base_pre = named
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def _without_code(library: Any) -> None:
    loads = library.from_pretrained

    def load(*given: Any, **options: Any) -> Any:
        return loads(*given, **options | {"trust_remote_code": False})

    library.from_pretrained = load


if __name__ == "__main__":
    main()
