"""Loads folders in transformers 4, in a process of its own that answers requests until its input ends.

    PYTHONPATH=.transformers-4.57 python tests/transformers4.py

A request is one line of JSON: `folder`, `ids` (a file of token ids), `dtype`, `out` (where the logits go), `generate`
(arguments of `generate`, whose tokens are then wanted instead of logits). The answer is one line: an empty object, or
what was missing, unexpected or mismatched.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PLACE = Path(__file__).parents[1] / ".transformers-4.57"
"""Where `make test` installs it."""


class Transformers4:
    """The process."""

    def __init__(self) -> None:
        environment = os.environ | {"PYTHONPATH": str(PLACE), "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def logits(self, folder: Path, ids: Any, dtype: str, scratch: Path, **generate: Any) -> Any:
        """Return the logits of the model in `folder`, whose keys must match, or what it generates."""
        import torch

        torch.save(ids, scratch / "ids.pt")
        request = {"folder": folder, "ids": scratch / "ids.pt", "dtype": dtype, "out": scratch / "logits.pt"}
        request |= {"generate": generate}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request, default=str), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer == "{}\n", answer
        return torch.load(scratch / "logits.pt", weights_only=True)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    import torch
    import transformers

    assert transformers.__version__.startswith("4.57"), transformers.__version__
    torch.set_num_threads(1)
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        request["folder"],
        dtype=getattr(torch, request["dtype"]),
        output_loading_info=True,
        trust_remote_code=True,  # of folders that tests wrote
    )
    model, info = loaded
    ids = torch.load(request["ids"], weights_only=True)
    with torch.no_grad():
        generated = model.generate(ids, **request["generate"]) if request["generate"] else model(input_ids=ids).logits
        torch.save(generated, request["out"])
    return {key: sorted(map(str, value)) for key, value in info.items() if value}


if __name__ == "__main__":
    for line in sys.stdin:
        try:
            print(json.dumps(_answer(json.loads(line))), flush=True)
        except Exception as error:  # told to the test, which fails on it
            print(json.dumps({"error": repr(error)}), flush=True)
