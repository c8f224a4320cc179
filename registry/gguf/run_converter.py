"""Run a converter of llama.cpp with its own library: SCRIPT PRE ARGUMENTS…

Byte-level BPE tokenizers are known to it by a hash, so that one which nobody has published stops it. PRE then names
llama.cpp's rules that cut the same text alike; an empty PRE names none.
"""

import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def main() -> None:
    """Run it."""
    script, pre, *arguments = sys.argv[1:]
    folder = Path(script).parent
    sys.path[:0] = [str(folder / "gguf-py"), str(folder)]
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


if __name__ == "__main__":
    main()
