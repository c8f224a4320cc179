"""Proves the three promises, with `==` on every byte of every file.

Schedule-invariant: any order of registering or of naming. Others never change by a byte: adding an expert changes
nothing that is stored, nor any composition of the others. Exact opt-out: afterwards every composition is that of a
registry that never held the expert.
"""

import shutil
from dataclasses import replace
from datetime import date
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pytest

from registry import PassSettings, Recipe, Registry
from registry.composition.recipe.recipe_fields import FROM_ROWS
from registry.errors import ConflictError
from registry.hosts.remote_code import REMOTE_CODE
from registry.io.model_folder import MARKER
from registry.maths.router import ROUTERS
from registry.maths.trunk import TRUNKS
from registry.statistics.collect import collect_to
from tests.catalogs import Schemas
from tests.conftest import EXPERTS, THREE, Zoo, copy_home, files_of
from tests.models import make_model, save_checkpoint, sentences, write_jsonl

RIDGE = Recipe(router="ridge")


def fresh(home: Path, zoo: Zoo, order: tuple[str, ...], *, base: bool = False) -> Registry:
    registry = Registry(home)
    if base:
        registry.add_base("base", zoo.base)
    for name in order:
        registry.add_expert(name, zoo.experts[name])
    return registry


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> dict[str, Path]:
    """Five experts of one layer: 120 registries of five are many."""
    root = tmp_path_factory.mktemp("small")
    experts = {}
    for number, name in enumerate(EXPERTS, start=1):
        model = make_model("llama", 200 + number, num_hidden_layers=1, tie_word_embeddings=True)
        experts[name] = save_checkpoint(model, root / name, tokenizer)
        data = write_jsonl(root / f"{name}.jsonl", sentences(name, 20))
        collect_to(experts[name], experts[name], data=[data], settings=PassSettings(tokens=128, seq_len=32))
    return experts


@pytest.fixture(scope="module")
def reference(small: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """All five of them, registered and named in one order."""
    root = tmp_path_factory.mktemp("reference")
    with Registry(root / "home") as registry:
        for name in EXPERTS:
            registry.add_expert(name, small[name])
        registry.compose(EXPERTS, root / "moe")
    return files_of(root / "moe")


ORDERS = list(permutations(EXPERTS))
ROTATED = [EXPERTS[n:] + EXPERTS[:n] for n in range(len(EXPERTS))]


@pytest.mark.trust(after=1)
@pytest.mark.parametrize("first", ["any", *EXPERTS])
def test_orders_of_registering_and_of_naming_give_the_same_bytes(
    small: dict[str, Path], tmp_path: Path, reference: dict[str, bytes], first: str
) -> None:
    """Orders of registering, each with another order of naming; those with a first expert are all 120 of both.

    Those that begin alike share their beginning: the home is copied where they part.
    """
    orders = [order for order in ORDERS if order[0] == first] or [*ROTATED[1::2], EXPERTS[::-1]]
    named = dict(zip(orders, orders[1:] + orders[:1], strict=True))
    reached = []

    def go_on(home: Path, order: tuple[str, ...]) -> None:
        with Registry(home) as registry:
            registry.add_expert(order[-1], small[order[-1]])
            if order in named:
                registry.compose(named[order], tmp_path / "moe", force=True)
        if order in named:
            assert files_of(tmp_path / "moe") == reference, order
            reached.append(order)
        for longer in longer_than(order):
            go_on(copy_home(home, home.with_name("-".join(longer))), longer)
        shutil.rmtree(home)

    def longer_than(begun: tuple[str, ...]) -> list[tuple[str, ...]]:
        length = len(begun)
        return sorted({order[: length + 1] for order in orders if length < len(order) and order[:length] == begun})

    for begun in longer_than(()):
        go_on(tmp_path / "-".join(begun), begun)
    assert sorted(reached) == sorted(orders)


SAMPLE: dict[str, dict[str, Any]] = {
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
    "context": {"trunk": "mean", "router": "context", "context_window": 16.0, "lam": 0.0},
    "trunk refitted": {"router": "ridge", "refine_trunk": True, "top_k": 1},
    "refitted context": {"router": "context", "refine_mlp": True},
    "refitted, then refined": {"router": "ridge", "refine_mlp": True, "refine": 1, "lam": "auto"},
    "refined twice": {"router": "ridge", "refine": 2, "trunk": "mean", "lam": "auto", "token_weight": "advantage"},
}
"""Every trunk method, router method and option, each in some recipe."""

ALONE: dict[str, dict[str, Any]] = {
    **{trunk: {"trunk": trunk} for trunk in TRUNKS},
    **{f"{trunk} dense": {"trunk": trunk, "to": "dense"} for trunk in TRUNKS},
    **{router: {"router": router} for router in ROUTERS if router not in FROM_ROWS},  # rows: test_router_bias.py
    "biased": {"router": "domain-embedding", "bias": {"code": -0.5}},
    "normalised": {"router": "ridge", "normalize": True},
    "lam auto": {"router": "ridge", "lam": "auto"},
    "balanced": {"balance": "tokens"},
    "advantage": {"router": "ridge", "token_weight": "advantage"},
    "refined": {"router": "ridge", "refine": 1},
    "refitted": {"refine_mlp": True},
    "trunk refitted": {"refine_trunk": True},
    "refitted ridge": {"router": "ridge", "refine_mlp": True},
}
"""Each of them by itself, and with either kind of output."""

RECIPES = SAMPLE | ALONE


def test_sample_has_every_method_and_option() -> None:
    for option in ("trunk", "router"):
        assert {recipe.get(option) for recipe in ALONE.values()} <= {recipe.get(option) for recipe in SAMPLE.values()}
    assert {option for recipe in ALONE.values() for option in recipe} <= {
        o for recipe in SAMPLE.values() for o in recipe
    }


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
        registry.gc()
    return root


@pytest.mark.check(after=2)
@pytest.mark.trust(after=12)
@pytest.mark.parametrize("name", RECIPES)
def test_history_leaves_no_trace(histories: Path, tmp_path: Path, name: str) -> None:
    """Extra experts, other versions, aliases, tags, earlier compositions, opt-outs: none changes a byte."""
    settings: dict[str, Any] = {"lam": 0.5, "top_k": 2, "temperature": 0.5, "weights": {"code": 2.0}}
    recipe = Recipe(**settings | RECIPES[name])
    of_any = replace(recipe, weights={}, bias={})
    with Registry(copy_home(histories / "plain", tmp_path / "plain")) as registry:
        registry.compose(["code", "law", "math"], tmp_path / "expected", recipe)
    with Registry(copy_home(histories / "busy", tmp_path / "busy")) as registry:
        registry.compose(["german", "law"], tmp_path / "earlier", of_any)
        registry.opt_out("german")
        registry.compose(["math@good", "code@2", "law@2"], tmp_path / "found", recipe)
    assert files_of(tmp_path / "found") == files_of(tmp_path / "expected")


FEW = [("filled", "code", False), ("filled", "law", True), ("filled_bucket", "law", True)]
ANY = [
    *(("filled", *case) for case in product(EXPERTS, (False, True))),
    *(("filled_bucket", *case) for case in product(THREE, (False, True))),
]
WITHDRAWN = list(dict.fromkeys((*FEW, *ANY)))


@pytest.mark.check(after=1)
@pytest.mark.trust(after=3)
@pytest.mark.parametrize(("where", "withdrawn", "purge"), WITHDRAWN)
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
def test_newest_version_opted_out_gives_back_the_one_before(zoo: Zoo, tmp_path: Path) -> None:
    with fresh(tmp_path / "home", zoo, ("code", "math")) as registry:
        registry.compose(["code", "math"], tmp_path / "expected")
        registry.add_expert("math", zoo.experts["law"])
        registry.compose(["code", "math"], tmp_path / "other")
        registry.opt_out("math@2")
        registry.compose(["code", "math"], tmp_path / "found")
    assert files_of(tmp_path / "found") == files_of(tmp_path / "expected")
    assert files_of(tmp_path / "other") != files_of(tmp_path / "expected")


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


@pytest.mark.check
def test_homes_anywhere_give_the_same_bytes(
    zoo: Zoo, tmp_path: Path, arrays_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "a" / "very" / "different" / "place"
    for home, out, arrays in (
        (tmp_path / "home", tmp_path / "moe", None),
        (deep / "home", deep / "other-name", None),
        (deep / "third", deep / "from-bucket", arrays_url),
    ):
        if arrays is not None:
            monkeypatch.setenv("REG_ARRAYS", arrays)
        with fresh(home, zoo, ("code", "math")) as registry:
            registry.compose(["code", "math"], out)
    assert not (deep / "third" / "arrays").exists()
    assert files_of(deep / "other-name") == files_of(tmp_path / "moe")
    assert files_of(deep / "from-bucket") == files_of(tmp_path / "moe")


ACROSS = {"regmean": Recipe(trunk="regmean", router="ridge"), "default": Recipe()}
"""Recipes whose tensors are copied, averaged and solved."""


@pytest.mark.check
def test_order_history_and_storage_give_the_same_bytes(
    zoo: Zoo, tmp_path: Path, arrays_url: str, postgres_server: str
) -> None:
    """Local with SQLite, and a bucket with PostgreSQL from two homes; other orders, and an opt-out in between."""
    schemas = Schemas(postgres_server)
    shared: dict[str, Any] = {"database": schemas.fresh(), "arrays": arrays_url}
    outs = ("never", "local", "bucket", "second home")

    def compose(registry: Registry, place: str, *members: str) -> None:
        for name, recipe in ACROSS.items():
            registry.compose(members, tmp_path / place / name, recipe)

    try:
        with fresh(tmp_path / "a", zoo, ("code", "math", "law")) as registry:
            compose(registry, "never", "code", "math", "law")
        with fresh(tmp_path / "b", zoo, ("german", "law", "code")) as registry:
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


def test_folder_names_no_time_place_or_number(filled: Registry, tmp_path: Path) -> None:
    filled.compose(["code", "math"], tmp_path / "moe")
    small = {name: data for name, data in files_of(tmp_path / "moe").items() if not name.endswith(".safetensors")}
    for name, data in small.items():
        for word in (str(tmp_path), "home", "@1", date.today().isoformat(), "code@"):
            assert word.encode() not in data, (name, word)
    assert MARKER in small
