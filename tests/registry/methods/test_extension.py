"""Proves: a package of its own adds a trunk, a router and an output, and no other file knows of them.

The code is that of docs/extending.md. Each is composed, loaded by transformers, evaluated by name, pushed to a Hub,
reproduced and opted out.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Zoo
from tests.running import ROOT

PAGE = ROOT / "docs" / "extending.md"


def write_package(folder: Path) -> None:
    """Write the examples of the page as an installed package."""
    page = PAGE.read_text(encoding="utf-8")
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL):
        (folder / name).write_text(code, encoding="utf-8")
        assert 15 <= len(code.splitlines()) <= 80, name
    info = folder / "reg_examples-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reg-examples\nVersion: 1.0\n", encoding="utf-8")
    points = re.findall(r'^(\w+) = "(\w+:\w+)"$', page, re.MULTILINE)
    assert len(points) == 3
    lines = "".join(f"{name} = {target}\n" for name, target in points)
    (info / "entry_points.txt").write_text(f"[reg.methods]\n{lines}", encoding="utf-8")


def run(code: str, packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program that finds the packages in a folder."""
    environment = {"PYTHONPATH": f"{packages}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(packages)}
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment)


LIFE = """
import json, sys
from pathlib import Path
import pytest, torch
from transformers import AutoModelForCausalLM
from cli.main import main
from registry import Recipe, Registry, PassSettings
from tests.writable_hub import writable_hub

home, work, zoo = map(Path, sys.argv[1:])

def reg(*words):
    try:
        main.main(["--home", str(home), *map(str, words)], standalone_mode=False)
    except SystemExit as end:
        assert not end.code, (words, end.code)

for name in ("code", "law", "math"):
    reg("add-expert", name, zoo / name, "--license", "apache-2.0")
made = {"median": ("--trunk", "median", "--towards", "0.5"), "centroid": ("--router", "centroid", "--top-k", "1"),
        "layers": ("--to", "layers", "--every", "2")}
for name, options in made.items():
    reg("compose", "--experts", "math,code,law", *options, "--out", work / name, "--save-recipe", work / f"{name}.yaml")
    logits = AutoModelForCausalLM.from_pretrained(work / name)(torch.tensor([[1, 2, 3]])).logits
    assert logits.isfinite().all()
    reg("compose", "--recipe", work / f"{name}.yaml", "--out", work / f"{name} again")
    one, other = (sorted(path.read_bytes() for path in (work / at).iterdir()) for at in (name, f"{name} again"))
    assert one == other
    reg("reproduce", work / name)
card = (work / "median" / "README.md").read_text()
assert "median of the experts' weights" in card and "1803.01498" in card and "| trunk | median, towards 0.5 |" in card
with pytest.MonkeyPatch.context() as patch:
    for hub in writable_hub(patch, work / "hub"):
        for name in made:
            reg("push", work / name, f"org/{name}")
            assert {"config.json", "composition.json"} <= hub.files(f"org/{name}").keys()
reg("evaluate", "--experts", "code,law,math", "--methods", ",".join(made),
    *(word for name in ("code", "math") for word in ("--data", f"{name}={zoo / (name + '.jsonl')}")), "--json")
with Registry(home) as registry:
    whole = registry.plan(["code", "math"], Recipe(trunk="median", trunk_options={"towards": 0.5})).digest
    digests = {name: json.loads((work / name / "composition.json").read_text())["digest"] for name in made}
reg("opt-out", "law", "--receipt", work / "receipt.json", "--yes")
reg("receipt", "verify", work / "receipt.json")
receipt = json.loads((work / "receipt.json").read_text())
again = {one["digest"]: one["recomposed"]["digest"] for one in receipt["compositions"] if one["recomposed"]}
assert {*digests.values()} <= again.keys(), (digests, again)
assert again[digests["median"]] == whole
"""
"""The life of three methods, in a registry at argv[1], with folders in argv[2], of the experts in argv[3]."""


def zoo_folder(zoo: Zoo, folder: Path) -> Path:
    """Gather the experts and their text in one folder."""
    folder.mkdir()
    for name in ("code", "law", "math"):
        (folder / name).symlink_to(zoo.experts[name])
        (folder / f"{name}.jsonl").symlink_to(zoo.test[name])
    return folder


@pytest.mark.check
def test_a_package_adds_methods_that_nothing_else_knows(zoo: Zoo, tmp_path: Path) -> None:
    packages, work = tmp_path / "packages", tmp_path / "work"
    packages.mkdir()
    work.mkdir()
    write_package(packages)
    ran = run(LIFE, packages, str(tmp_path / "home"), str(work), str(zoo_folder(zoo, tmp_path / "zoo")))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    helped = run("from cli.main import main; main(['help', 'compose', 'layers'])", packages)
    assert "--every" in helped.stdout
    listed = run("from cli.main import main; main(['compose', '--help-all'])", packages)
    assert "median" in listed.stdout
    assert "For median: how far to go from the mean to the median." in re.sub(r"\s+", " ", listed.stdout)


@pytest.mark.parametrize(
    ("module", "target", "message"),
    [
        ("import nosuch\n", "broken:Broken", "it cannot be loaded: ModuleNotFoundError: No module named 'nosuch'"),
        ("class Broken:\n    pass\n", "broken:Broken", "it is no class of Output, Trunk or Router"),
        (
            "from registry.composition.method import Trunk\nclass Broken(Trunk):\n    name = 'mean'\n",
            "broken:Broken",
            "its name 'mean' is taken",
        ),
        (
            "from registry.composition.method import Trunk\nclass Broken(Trunk):\n    name = 'My Mean'\n",
            "broken:Broken",
            "name 'My Mean' is not of the form",
        ),
    ],
)
def test_a_method_that_cannot_be_is_refused_by_its_package(
    module: str, target: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(module, encoding="utf-8")
    info = tmp_path / "reg_broken-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reg-broken\nVersion: 2.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[reg.methods]\nbroken = {target}\n", encoding="utf-8")
    ran = run("from cli.main import main; main(['compose', '--help'])", tmp_path)
    assert ran.returncode == 1
    assert "Traceback" not in ran.stderr
    assert f"method {target} of package reg-broken 2.0: " in ran.stderr
    assert message in ran.stderr
    assert "pip uninstall reg-broken, or mend it" in ran.stderr
    assert run("from cli.main import main; main(['--help'])", tmp_path).returncode == 0
