"""Proves: damaged arrays are told, never composed, and repaired by adding their expert again.

They stand in no other expert's way.
"""

import shutil
from pathlib import Path

import pytest

from cli.output import bar
from registry import Recipe, Registry
from registry.errors import RegError
from tests.conftest import Zoo, array_folder, overwrite

NAMES = {"weights": "model.layers.0.mlp.gate_proj.weight", "statistics": "mlp_input/gram/0"}


def damage(registry: Registry, ref: str, name: str, kind: str) -> str:
    """Flip a byte of one array's first chunk, delete that chunk, or delete the array; return its digest."""
    (link,) = (link for link in registry.arrays_of(registry.resolve(ref)) if link.name == name)
    (chunk,) = array_folder(registry, link.digest).glob("c.0*")
    if kind == "changed":
        data = bytearray(chunk.read_bytes())
        data[len(data) // 2] ^= 1
        overwrite(chunk, bytes(data))
    elif kind == "missing":
        chunk.unlink()
    else:
        registry.arrays.delete(link.digest)
    return link.digest


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize("what", sorted(NAMES))
@pytest.mark.parametrize("kind", ["changed", "missing", "gone"])
def test_damage_is_told_not_composed_and_repaired_by_adding_again(
    filled: Registry, zoo: Zoo, tmp_path: Path, what: str, kind: str
) -> None:
    digest = damage(filled, "code", NAMES[what], kind)
    (problem,) = filled.verify().problems
    assert problem.startswith("code@1, ")
    assert f"array {digest[:12]} is " in problem
    with pytest.raises(RegError, match=digest[:12]):
        filled.compose(["code", "math"], tmp_path / "moe", Recipe(router="ridge"))
    assert not list(tmp_path.glob("*moe*"))
    assert filled.compositions() == []
    registration = filled.add_expert("code", zoo.experts["code"])
    assert (registration.version.ref, registration.added) == ("code@1", False)
    assert filled.verify().problems == ()


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize("what", sorted(NAMES))
@pytest.mark.parametrize("kind", ["missing", "gone"])
def test_damaged_expert_stands_in_no_others_way(
    filled: Registry, bare: Path, zoo: Zoo, what: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(filled, "law", NAMES[what], kind)
    filled.progress = bar
    assert "law@1" in {relation.ref for relation in filled.relations("code")}  # by its summary
    assert capsys.readouterr().err == ""
    shutil.rmtree(filled.home.summaries)
    assert filled.add_expert("new", zoo.experts["code"]).added
    assert "law@1 is not compared: " in capsys.readouterr().err
