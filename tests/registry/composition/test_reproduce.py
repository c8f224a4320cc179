"""Proves: a composed folder is made again from its own document, byte for byte, and whatever changed in it is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.composition.manifest import CompositionManifest
from registry.composition.reproduce import Compared
from registry.errors import CheckpointError, ConflictError, InvalidInputError, NotFoundError, OutputError
from registry.io.model_folder import MARKER, json_file
from tests.conftest import Zoo, files_of
from tests.registry.composition.composed import json_of

RECIPES: dict[str, Recipe | Recipe] = {
    "default": Recipe(),
    "all options": Recipe(
        router="domain-embedding", bias={"math": 0.5}, top_k=1, temperature=2.0, weights={"code": 3.0}, balance="tokens"
    ),
    "random": Recipe(trunk="mean", router="random", seed=7, dtype="bfloat16"),
    "dare": Recipe(trunk="dare", trunk_options={"density": 0.5}, router="ridge", lam=0.5, normalize=True),
    "passes": Recipe(router="ridge", refine=1, device="cpu"),
    "ridge": Recipe(router="ridge"),
    "context": Recipe(router="context", context_window=16, vocabulary="shared", dtype="float16"),
    "remote code": Recipe(trunk="base", host="remote-code"),
    "dense": Recipe(to="dense", trunk="ties", weights={"math": 2.5}),
    "sums": Recipe(trunk="dare", combine="sum", router="ridge", gating="softmax-topk", host="remote-code"),
    "posterior": Recipe(to="ensemble", top_k=1, weights={"code": 2.0}, dtype="float16"),
    "one trunk": Recipe(to="ensemble", trunk="dare", routing="prompt-perplexity", mixing="logits", routing_tokens=6),
    "task vector": Recipe(to="ensemble", routing="task-vector", routing_tokens=8),
}


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_is_reproduced(filled: Registry, tmp_path: Path, name: str) -> None:
    plan = filled.compose(["math", "code"], tmp_path / "made", RECIPES[name])
    shutil.rmtree(filled.home.cache, ignore_errors=True)
    before = len(filled.log())
    found = filled.reproduce(tmp_path / "made")
    assert (found.is_same, found.differing, found.digest) == (True, (), plan.digest)
    assert {file.name for file in found.files} == set(files_of(tmp_path / "made"))
    assert found.nbytes == sum(map(len, files_of(tmp_path / "made").values()))
    assert [version.ref for version in found.versions] == ["code@1", "math@1"] + ["base@1"] * (plan.base is not None)
    assert len(filled.log()) == before
    assert list(filled.home.work.iterdir()) == []
    document = json_of(tmp_path / "made")
    assert CompositionManifest.from_document(document, "x").recipe.document(["code", "math"]) == document["recipe"]


@pytest.fixture
def made(filled: Registry, tmp_path: Path) -> Path:
    filled.compose(["math", "code"], tmp_path / "made")
    return tmp_path / "made"


def test_what_was_changed_is_named_and_what_is_composed_now_can_be_kept(filled: Registry, made: Path) -> None:
    sound, again = files_of(made), made.with_name("again")
    weights = bytearray((made / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (made / "model.safetensors").write_bytes(weights)
    (made / "config.json").write_bytes((made / "config.json").read_bytes() + b"\n")
    (made / "README.md").unlink()
    (made / "more").mkdir()
    (made / "more" / "code.py").write_text("print()")
    found = filled.reproduce(made, again)
    assert found.differing == (
        Compared("README.md", "missing"),
        Compared("config.json", "differs", (made / "config.json").stat().st_size - 1),
        Compared("model.safetensors", "differs", len(weights) - 1),
        Compared("more/code.py", "added"),
    )
    assert (found.is_same, found.out, files_of(again)) == (False, again, sound)
    assert filled.compositions()[0].folders == (str(made), str(again))  # opting out tells of it
    for out, message in ((again, "is not empty"), (made / "x", "contain one another")):
        with pytest.raises(OutputError, match=message):
            filled.reproduce(made, out)


@pytest.mark.check
def test_versions_are_found_by_content_whatever_their_number(filled: Registry, made: Path, zoo: Zoo) -> None:
    with Registry(made.with_name("elsewhere")) as other:
        other.add_expert("math", zoo.experts["math"])
        with pytest.raises(NotFoundError, match=r"code [0-9a-f]{12}, which is not registered here"):
            other.reproduce(made)
    filled.opt_out("math", purge=True)
    with pytest.raises(ConflictError, match=r"holds math@1, which was opted out at 20"):
        filled.reproduce(made)
    assert filled.add_expert("math", zoo.experts["math"]).version.ref == "math@2"
    filled.add_expert("math", zoo.experts["law"])
    found = filled.reproduce(made)
    assert found.is_same
    assert [version.ref for version in found.versions] == ["code@1", "math@2"]


@pytest.mark.check
def test_trained_folder_needs_the_tensors_that_were_trained(filled: Registry, made: Path) -> None:
    """A folder that only says that it was trained, one of another registry, and one of a program without arrays."""
    document = json_of(made)
    parent = document["digest"]
    trained = document | {"parent": parent, "training": {"steps": 1}}
    (made / MARKER).write_bytes(json_file(trained))
    with pytest.raises(CheckpointError, match=f"was changed: composition {parent[:12]} was not trained"):
        filled.reproduce(made)
    digest = "f" * 64
    (made / MARKER).write_bytes(json_file(trained | {"digest": digest}))
    with pytest.raises(NotFoundError, match="composition ffffffffffff was not made in this registry") as elsewhere:
        filled.reproduce(made)
    assert "--home" in str(elsewhere.value.hint)
    covered = {key: value for key, value in trained.items() if key not in ("digest", "files")} | {"format": 1}
    used = [filled.resolve(name) for name in ("code", "math")]
    filled.catalog.record_composition(digest, covered, used, str(made))
    with pytest.raises(NotFoundError, match="tensors that were trained for composition ffffffffffff are not") as old:
        filled.reproduce(made)
    assert f"from composition {parent[:12]}: reg train" in str(old.value.hint)


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        *above, last = path.split(".")
        for key in above:
            document = document[int(key) if isinstance(document, list) else key]
        if value is ...:
            del document[last]
        else:
            document[last] = value

    return apply


UNTRUSTED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "unknown key": (change("note", "x"), "has a key 'note', which this program does not know"),
    "no recipe": (change("recipe", ...), "has no key 'recipe'"),
    "format": (change("format", 3), "has format 3, this program reads 1 and 2"),
    "members": (change("members", {}), "members is {}, it must be a list"),
    "no member": (change("members", []), "members are not in the order of their names"),
    "name": (change("members.0.name", "../x"), "is not of the form"),
    "digest": (change("members.0.digest", "A" * 64), "it must be a digest of 64 hexadecimal digits"),
    "base": (change("base", "base"), "base is 'base', it must be an object or null"),
    "recipe's missing key": (change("recipe.lam", ...), "the recipe has no key 'lam'"),
    "recipe's other key": (change("recipe.seed", 0), "has a key 'seed', which does not belong there"),
    "other method's key": (change("recipe.seed", 1), "seed has no part in router method 'ridge'"),
    "number": (change("recipe.temperature", True), "temperature is True, it must be a finite number"),
    "lam": (change("recipe.lam", [1]), "it must be a finite number with a decimal point"),
    "infinite": (change("recipe.temperature", float("inf")), "is not JSON: Infinity is not a number of JSON"),
    "whole": (change("recipe.top_k", 1.5), "top_k is 1.5, it must be a whole number"),
    "larger": (change("recipe.top_k", 10**400), "is not JSON: a number has 401 digits, the limit is 40"),
    "weights": (change("recipe.weights", {"code": "1"}), "it must be an object of finite numbers with"),
    "weight of a stranger": (change("recipe.weights.law", 1.0), "this program would write {'code': 1.0, 'math': 1.0}"),
    "method": (change("recipe.trunk", "__class__"), "trunk method '__class__' is not one of"),
    "device": (change("recipe.computed", {"device": "/dev/x"}), "it must be a kind of device"),
    "host": (change("host", "nonsense"), "host 'nonsense' does not carry"),
    "half trained": (change("parent", "0" * 64), "has one of parent and training"),
}


def test_document_that_this_program_would_not_write_is_refused(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="was not composed by this program"):
        filled.reproduce(zoo.base)
    plain = json.dumps(filled.plan(["math", "code"], RECIPES["ridge"]).document | {"digest": "0" * 64, "files": {}})
    for case, (apply, message) in UNTRUSTED.items():
        apply(document := json.loads(plain))
        (tmp_path / MARKER).write_text(json.dumps(document))
        with pytest.raises(InvalidInputError) as told:
            filled.reproduce(tmp_path)
        assert message in told.value.message, case
        assert told.value.hint
