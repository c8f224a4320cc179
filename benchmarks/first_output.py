"""Time until a command says something: of a typical call, and of one with a wrong name, for every command.

Both are measured side by side: the first output on a terminal with `import click`, which no command can do without, and
an error through a pipe with `reg list`. A command is ended once its first byte is there.
`python -m benchmarks.first_output [COMMAND…]` prints the table, or rows of it.
"""

import os
import pty
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.alternating import Comparison
from benchmarks.random_experts import fill, make_checkpoint, text_of
from registry import Recipe, Registry
from registry.signing import sign

ROUNDS = 5
OF_CLICK, OF_LIST = 4.0, 1.2
"""What the ratios may be at most: of any call to `import click`, and of a wrong one to `reg list`."""
TINY = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
HUB = "asks the Hub"
_PAIR = "--experts expert0,expert1"

CALLS: dict[str, tuple[str, str]] = {
    "list": ("", "--limit x"),
    "show": ("expert0", "nosuch"),
    "compositions": ("", "nosuch"),
    "log": ("", "nosuch"),
    "alias": ("expert0 good", "nosuch good"),
    "add-expert": ("new late --data text.txt --allow-unrelated", "new nosuch"),
    "add-experts": ("experts.yaml", "nosuch.yaml"),
    "add-base": ("new late", "new nosuch"),
    "check": ("late --data text.txt --allow-unrelated", "nosuch"),
    "collect": ("late --data text.txt --out collected", "nosuch --out collected"),
    "compose": (f"{_PAIR} --out made", "--experts nosuch --out made"),
    "instantiate": ("base --like text.txt --out made", "nosuch --like text.txt --out made"),
    "preview": (_PAIR, "--experts nosuch"),
    "suggest": ("--like text.txt", "--like nosuch.txt"),
    "train-expert": ("new --base base --data text.txt", "new --base base --data nosuch.txt"),
    "train-soup": (
        "new --base base --domains a=text.txt --domains b=text.txt --experts 1",
        "new --base base --domains a=nosuch.txt --domains b=text.txt --experts 1",
    ),
    "train-simoe": ("new --base base --data text.txt", "new --base nosuch --data text.txt"),
    "proxy": (f"text.txt {_PAIR} --base base --out near", f"nosuch.txt {_PAIR} --out near"),
    "train": ("moe --train all --data text.txt --out trained", "nosuch --train all --data text.txt --out trained"),
    "train-router": ("moe --data text.txt --out trained", "moe --data nosuch.txt --out trained"),
    "evaluate": ("moe --data expert0=text.txt", "nosuch --data expert0=text.txt"),
    "doctor": ("moe --quick", "nosuch"),
    "scores": ("--accuracy a=results.json --task a=t", "--accuracy a=nosuch.json --task a=t"),
    "report": ("moe --out page.html", "nosuch --out page.html"),
    "route": ("moe hello", "nosuch hello"),
    "audit-extraction": ("moe --data text.txt", "nosuch --data text.txt"),
    "continual": (
        "--schedule expert0,expert1 --data expert0=text.txt --data expert1=text.txt",
        "--schedule nosuch,expert1 --data expert1=text.txt",
    ),
    "opt-out": ("expert0", "nosuch"),
    "receipt": ("verify receipt.json", "verify nosuch.json"),
    "bom": ("moe", "nosuch"),
    "quantize": ("moe --out few", "nosuch --out few"),
    "export-gguf": ("moe --out moe.gguf", "nosuch --out moe.gguf"),
    "sign": ("moe --key key", "nosuch --key key"),
    "verify-signature": ("moe --signers signers", "nosuch --signers signers"),
    "export": ("expert0 --out exported", "nosuch --out exported"),
    "push": (HUB, "nosuch org/name"),
    "push-expert": (HUB, "nosuch org/name"),
    "reproduce": ("moe", "nosuch"),
    "verify": ("", "x"),
    "gc": ("--dry-run", "x"),
    "ui": ("--port 0", "--port x"),
    "serve": ("--port 0", "--port x"),
    "gateway": ("needs a folder of adapters", "nosuch --server http://127.0.0.1:1"),
    "arrays": ("copy home/arrays copied", "copy nosuch copied"),
    "db": ("current", "x"),
    "config": ("", "x"),
    "completion": ("bash", "x"),
    "schema": ("list", "x"),
    "demo": ("--out demo", "--out text.txt"),
}
"""Command → the words of a typical call, or why none can be made here, and those of a wrong one."""


def make_world(scratch: Path) -> Path:
    """Make a registry of three tiny experts with a signed mixture, a receipt and text beside it; return its home."""
    home, _ = fill(scratch, 3, **TINY)
    make_checkpoint(scratch / "late", 9)
    (scratch / "experts.yaml").write_text("- {name: late, checkpoint: late, data: [text.txt], allow_unrelated: true}\n")
    (scratch / "text.txt").write_text(text_of(9), encoding="utf-8")
    (scratch / "results.json").write_text('{"results": {"t": {"acc,none": 0.5}}}', encoding="utf-8")
    with Registry(home) as registry:
        registry.compose(["expert0", "expert1"], scratch / "moe", Recipe())
        registry.opt_out("expert2", receipt=scratch / "receipt.json")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", scratch / "key"], check=True)
    (scratch / "signers").write_text(f"ada {(scratch / 'key.pub').read_text()}")
    sign(scratch / "moe", scratch / "key")
    return home


def until_output(words: Sequence[str], folder: Path, *, terminal: bool = False) -> float:
    """Return the seconds until the first byte of a command, which is then ended; until its end if it prints nothing."""
    ours, its = pty.openpty() if terminal else os.pipe()
    begin = time.perf_counter()
    with subprocess.Popen(
        words, cwd=folder, stdin=subprocess.DEVNULL, stdout=its, stderr=its,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "TERM": "xterm"},
    ) as process:  # fmt: skip
        os.close(its)
        with suppress(OSError):  # a terminal whose last program has ended cannot be read
            os.read(ours, 1)
        seconds = time.perf_counter() - begin
        process.kill()
    os.close(ours)
    return seconds


def compared(calls: Mapping[str, tuple[str, str]], scratch: Path, rounds: int = ROUNDS) -> list[Comparison]:
    """Return, for each command, its typical call against `import click`, and its wrong one against `reg list`."""
    home = make_world(scratch)
    reg = [str(Path(sys.executable).with_name("reg")), "--home", str(home)]
    found = []
    for command, (typical, wrong) in calls.items():
        times: dict[str, list[float]] = {"click": [], "list": [], "typical": [], "wrong": []}
        for _ in range(rounds):
            times["click"].append(until_output([sys.executable, "-c", "import click"], scratch))
            times["list"].append(until_output([*reg, "list"], scratch))
            if typical != HUB:
                times["typical"].append(until_output([*reg, command, *typical.split()], scratch, terminal=True))
            times["wrong"].append(until_output([*reg, command, *wrong.split()], scratch))
        click, listed = tuple(times["click"]), tuple(times["list"])
        claim, ours = f"first output of `reg {command}` against `import click`", tuple(times["typical"])
        found.append(Comparison(claim, ours, click, OF_CLICK) if ours else Comparison.missing(claim, HUB, OF_CLICK))
        claim = f"error of `reg {command}` against `reg list`"
        found.append(Comparison(claim, tuple(times["wrong"]), listed, OF_LIST))
        cells = [f"{statistics.median(times[name]):.2f}" if times[name] else "-" for name in times]
        print(
            f"{command:18}", *(f"{cell:>6}" for cell in cells), *(f"{one.ratio:6.2f}" for one in found[-2:]), flush=True
        )
    return found


if __name__ == "__main__":
    chosen = {name: CALLS[name] for name in sys.argv[1:]} or CALLS
    print(f"{'seconds until':18}", *(f"{name:>6}" for name in ("click", "list", "typ.", "wrong", "/click", "/list")))
    with tempfile.TemporaryDirectory() as folder:
        compared(chosen, Path(folder))
