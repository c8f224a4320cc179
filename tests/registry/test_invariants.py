"""Proves the three promises, with `==` on every byte of every file.

Schedule-invariant: any order of registering or of naming. Others never change by a byte: adding an expert changes
nothing that is stored, nor any composition of the others. Exact opt-out: afterwards every composition is that of a
registry that never held the expert.
"""

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from registry import Recipe, Registry
from registry.composition.found import ROUTERS, TRUNKS
from registry.composition.recipe.fields import FIELDS, obstacle
from registry.errors import ConflictError
from registry.hosts.remote_code import REMOTE_CODE
from tests.catalogs import Schemas
from tests.conftest import EXPERTS, THREE, Zoo, copy_home, files_of
from tests.models import sentences, write_jsonl

RIDGE = Recipe(router="ridge")


def fresh(home: Path, zoo: Zoo, order: tuple[str, ...], *, base: bool = False) -> Registry:
    registry = Registry(home)
    if base:
        registry.add_base("base", zoo.base)
    for name in order:
        registry.add_expert(name, zoo.experts[name])
    return registry


def test_orders_of_registering_and_of_naming_give_the_same_bytes(zoo: Zoo, tmp_path: Path) -> None:
    """All orders of three, each with another order of naming."""
    orders, found = list(permutations(THREE)), []
    for order, named in zip(orders, orders[1:] + orders[:1], strict=True):
        with fresh(tmp_path / "-".join(order), zoo, order) as registry:
            registry.compose(named, tmp_path / "moe", force=True)
        found.append(files_of(tmp_path / "moe"))
    assert found == found[:1] * 6


RECIPES: dict[str, dict[str, Any]] = {
    "regmean": {"trunk": "regmean", "router": "ridge"},
    "mean": {"trunk": "mean", "router": "domain-embedding", "bias": {"code": -0.5}},
    "base": {"trunk": "base", "router": "random"},
    "ties": {"trunk": "ties", "router": "ridge", "normalize": True, "balance": "tokens"},
    "dare dense": {"trunk": "dare", "to": "dense"},
    "ties summed": {
        "trunk": "ties",
        "combine": "sum",
        "router": "ridge",
        "gating": "softmax-topk",
        "host": REMOTE_CODE,
    },
    "task-arithmetic dense": {"trunk": "task-arithmetic", "to": "dense"},
    "context": {"trunk": "mean", "router": "context", "context_window": 16.0},
    "refined": {"router": "ridge", "refine": 1},
    "refined twice": {"router": "ridge", "refine": 2, "trunk": "mean"},
}
"""Every trunk method, router method and option, each in some recipe."""


def test_recipes_have_every_method() -> None:
    for option, methods in (
        ("trunk", {*TRUNKS}),
        ("router", {name for name, one in ROUTERS.items() if not one.is_trained}),
    ):  # rows: test_router_bias.py
        assert methods <= {recipe.get(option) for recipe in RECIPES.values()}


@pytest.fixture(scope="module")
def histories(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two homes that hold the same three experts: `plain`, and `busy` with a history."""
    root = tmp_path_factory.mktemp("histories")
    fresh(root / "plain", zoo, ("code", "math", "law"), base=True).close()
    other = write_jsonl(root / "other.jsonl", sentences("german", 20))
    with Registry(root / "busy") as registry:
        registry.add_expert("german", zoo.experts["german"], tags={"x": "y"}, alias="stable")
        registry.add_expert("law", zoo.experts["biomed"])  # another content under the same name
        registry.opt_out("law", purge=True)
        registry.add_expert("math", zoo.experts["math"], data=[other])  # other statistics of the same weights
        registry.add_expert("math", zoo.experts["math"], alias="good")
        registry.add_expert("law", zoo.experts["law"], tags={"a": "b"})
        registry.compose(["german", "law"], root / "earlier")
        registry.add_base("base", zoo.base)
        registry.add_expert("code", zoo.experts["code"])
        registry.opt_out("code")
        registry.add_expert("code", zoo.experts["code"])
        registry.opt_out("math@1")
        registry.add_expert("law", zoo.experts["math"])
        registry.opt_out("law@3")  # which gives back the one before
        registry.gc()
    return root


@pytest.mark.check(after=2)
@pytest.mark.parametrize("name", RECIPES)
def test_history_leaves_no_trace(histories: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Extra experts, other versions, aliases, tags, earlier compositions, opt-outs, who acts: none changes a byte."""
    settings: dict[str, Any] = {"lam": 0.5, "top_k": 2, "temperature": 0.5, "weights": {"code": 2.0}} | RECIPES[name]
    without_part = {one for one in settings if one in FIELDS and obstacle(FIELDS[one], settings)} - RECIPES[name].keys()
    recipe = Recipe(**{one: value for one, value in settings.items() if one not in without_part})
    of_any = recipe.replace(weights={}, bias={})
    with Registry(copy_home(histories / "plain", tmp_path / "plain")) as registry:
        registry.compose(["code", "law", "math"], tmp_path / "expected", recipe)
    monkeypatch.setenv("REG_ACTOR", "grace")
    with Registry(copy_home(histories / "busy", tmp_path / "busy")) as registry:
        registry.compose(["german", "law"], tmp_path / "earlier", of_any)
        registry.opt_out("german")
        registry.compose(["math@good", "code@2", "law"], tmp_path / "found", recipe)
    assert files_of(tmp_path / "found") == files_of(tmp_path / "expected")


@pytest.mark.check(after=1)
@pytest.mark.parametrize(
    ("where", "withdrawn", "purge"),
    [("filled", "code", False), ("filled", "law", True), ("filled", "biomed", True), ("filled_bucket", "law", True)],
)
def test_opt_out_equals_never_registered(
    zoo: Zoo, request: pytest.FixtureRequest, tmp_path: Path, withdrawn: str, purge: bool, where: str
) -> None:
    """In a bucket as on the disk."""
    filled: Registry = request.getfixturevalue(where)
    names = EXPERTS if where == "filled" else THREE
    rest = tuple(name for name in names if name != withdrawn)
    with fresh(tmp_path / "never", zoo, rest) as registry:
        registry.compose(rest, tmp_path / "expected")
        registry.compose(rest[:2], tmp_path / "pair")
        registry.compose(rest, tmp_path / "expected-ridge", RIDGE)
    filled.compose(names, tmp_path / "before")
    filled.compose(names, tmp_path / "before-ridge", RIDGE)
    filled.opt_out(withdrawn, purge=purge)
    filled.compose(rest, tmp_path / "found")
    filled.compose(rest[:2], tmp_path / "found-pair")
    filled.compose(rest, tmp_path / "found-ridge", RIDGE)
    with pytest.raises(ConflictError, match=f"every version of {withdrawn} was opted out"):
        filled.compose(names, tmp_path / "again")
    assert filled.verify().problems == ()
    assert files_of(tmp_path / "found") == files_of(tmp_path / "expected")
    assert files_of(tmp_path / "found-ridge") == files_of(tmp_path / "expected-ridge")
    assert files_of(tmp_path / "before-ridge") != files_of(tmp_path / "expected-ridge")
    assert files_of(tmp_path / "found-pair") == files_of(tmp_path / "pair")
    assert files_of(tmp_path / "before") != files_of(tmp_path / "expected")


@pytest.mark.check
def test_registering_changes_no_stored_byte_of_another(zoo: Zoo, tmp_path: Path) -> None:
    with fresh(tmp_path / "home", zoo, ("code", "math")) as registry:
        before = files_of(tmp_path / "home" / "arrays")
        registry.compose(["code", "math"], tmp_path / "moe")
        made = files_of(tmp_path / "moe")
        registry.add_expert("law", zoo.experts["law"])
        after = files_of(tmp_path / "home" / "arrays")
        assert {path: after[path] for path in before} == before
        assert len(after) > len(before)
        registry.compose(["code", "math"], tmp_path / "moe", force=True)
    assert files_of(tmp_path / "moe") == made


ACROSS = {"regmean": Recipe(trunk="regmean", router="ridge"), "default": Recipe()}
"""Recipes whose tensors are copied, averaged and solved."""


def test_order_history_and_storage_give_the_same_bytes(
    zoo: Zoo, tmp_path: Path, arrays_url: str, postgres_server: str
) -> None:
    """Local with SQLite, and a bucket with PostgreSQL from two homes; other orders, and an opt-out in between."""
    schemas = Schemas(postgres_server)
    shared: dict[str, Any] = {"database": schemas.fresh(), "arrays": arrays_url}
    outs, deep = ("never", "local", "bucket", "second home"), tmp_path / "a" / "very" / "different" / "place"

    def compose(registry: Registry, place: str, *members: str) -> None:
        for name, recipe in ACROSS.items():
            registry.compose(members, tmp_path / place / name, recipe)

    try:
        with fresh(tmp_path / "home", zoo, ("code", "math", "law")) as registry:
            compose(registry, "never", "code", "math", "law")
        with fresh(deep, zoo, ("german", "law", "code")) as registry:
            registry.compose(["german", "law"], tmp_path / "earlier")
            registry.opt_out("german")
            registry.add_expert("math", zoo.experts["math"])
            compose(registry, "local", "math", "law", "code")
        with Registry(tmp_path / "c", **shared) as registry, Registry(tmp_path / "d", **shared) as second:
            registry.add_expert("math", zoo.experts["math"])
            second.add_expert("biomed", zoo.experts["biomed"])
            registry.add_expert("law", zoo.experts["law"])
            registry.compose(["biomed", "math"], tmp_path / "with-biomed")
            second.opt_out("biomed", purge=True)
            second.add_expert("code", zoo.experts["code"])
            compose(registry, "bucket", "law", "code", "math")
            compose(second, "second home", "code", "law", "math")
            with pytest.raises(ConflictError, match="every version of biomed was opted out"):
                registry.compose(["biomed", "math"], tmp_path / "again")
            assert registry.verify().problems == second.verify().problems == ()
    finally:
        schemas.drop()
    found = {out: files_of(tmp_path / out) for out in outs}
    assert len(found["never"]) > 3 * len(ACROSS)
    assert found == dict.fromkeys(outs, found["never"])
