"""Fixtures: tiny checkpoints made once for all workers of a run, registries made fresh for every test."""

import functools
import gc
import hashlib
import os
import pickle
import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import hypothesis
import pytest
import torch
import tqdm
from filelock import FileLock
from sqlalchemy import Engine

from registry import PassSettings, Registry
from registry.demo import DemoResult, run_demo
from registry.home import Home
from registry.maintenance.array_copy import copy_arrays
from registry.statistics.collect import collect_to
from store.arrays import FolderArrays
from store.catalog import schema
from store.catalog.engine import file_of, translated
from store.catalog.tables import VERSION_TABLE
from tests import postgres
from tests.catalogs import COPIES, KINDS, Schemas, database_name, in_files, in_schemas, make_tables
from tests.chromium import CHROMIUM, FLAGS
from tests.models import WORDS, make_model, save_checkpoint, sentences, train_tokenizer, write_jsonl
from tests.s3_server import S3Server
from tests.s3_server import s3 as s3
from tests.s3_server import s3_server as s3_server
from tests.tiers import TIERS, drawn_place, tiers_of
from tests.transformers4 import PLACE, Transformers4

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_MEMORY = Path("/dev/shm")
if _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 8 * 2**30:
    # Registries flush every array to disk; hundreds of them spend half the tests' time waiting for it.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# A loaded machine is slow, not wrong. The same examples everywhere, so that a failure is a change's fault; long runs
# draw others: --hypothesis-profile=random.
hypothesis.settings.register_profile("random", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile(
    "same", hypothesis.settings.get_profile("random"), derandomize=True, max_examples=25
)
hypothesis.settings.load_profile("same")

# Its thread looks after bars that hardly move, and a warning of it would fail whatever test is running.
tqdm.tqdm.monitor_interval = 0

T = TypeVar("T")
_IN_A_BUCKET = os.environ.get("REG_TEST_ARRAYS") == "s3"
SETTINGS = PassSettings(tokens=512, seq_len=32, batch_size=4)
EXPERTS = tuple(WORDS)
THREE = ("code", "law", "math")
"""Those in a bucket, which is slow to fill."""
DEMO_SIZES = {"vocab_size": 768, "num_hidden_layers": 1, "max_position_embeddings": 512}


@dataclass(frozen=True)
class Zoo:
    """A base model, five experts that carry statistics (so that registering needs no forward pass), and their text."""

    base: Path
    experts: dict[str, Path]
    train: dict[str, Path]
    test: dict[str, Path]


@dataclass(frozen=True)
class Shared:
    """A folder that all workers of a run share, for what is slow to make and changed by no test."""

    root: Path

    def get(self, name: str, make: Callable[[Path], T]) -> T:
        """Return what `make` returned of the folder `name`, which the first worker that needs it makes."""
        folder, result = self.root / name, self.root / f"{name}.pickle"
        with FileLock(self.root / f"{name}.lock"):
            if not result.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a worker that was interrupted
                folder.mkdir()
                with in_files():  # it outlives the test that needs it first
                    made = make(folder)
                result.write_bytes(pickle.dumps(made))
                return made
        found: T = pickle.loads(result.read_bytes())
        return found


ON_BOTH = (
    "store/test_",
    "registry/opt_out/",
    "registry/test_registry",
    "registry/test_workspace",
)
"""Tests that run with the catalog in SQLite and, in `make check`, in PostgreSQL."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--catalog`, the database of homes without a named one, `--tier` and `--until`."""
    parser.addoption("--catalog", choices=KINDS, help="all tests with the catalog in this database")
    parser.addoption("--tier", choices=TIERS, help="the tests of one tier alone (tests/tiers.py); default all")
    parser.addoption(
        "--until", type=int, help="begin no test from this time on (seconds since 1970); files in an order drawn by it"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests about the catalog on both databases."""
    if metafunc.config.getoption("catalog") is not None or metafunc.definition.get_closest_marker("sqlite"):
        return
    about = any(f"/tests/{part}" in str(metafunc.definition.path) for part in ON_BOTH)
    if about and {"catalog_schemas", "registry", "filled"} & set(metafunc.fixturenames):
        metafunc.parametrize("catalog_kind", KINDS, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out other tiers, and what is about SQLite's files where the catalog is elsewhere."""
    tier, out = config.getoption("tier"), set[pytest.Item]()
    if tier is not None:
        out = {item for item, own in tiers_of(items).items() if own != tier}
    if config.getoption("catalog") == "postgresql":
        out |= {item for item in items if item.get_closest_marker("sqlite")}
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]
    if (until := config.getoption("until")) is not None:
        items.sort(key=lambda item: drawn_place(until, item.nodeid))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is left when the time is over."""
    until = item.config.getoption("until")
    if until is not None and time.time() >= until:
        pytest.skip("no time is left")


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what was imported: it stays."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether all tiers run: tests that repeat a step at many places then try all of them."""
    return request.config.getoption("tier") is None


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    base = tmp_path_factory.getbasetemp()
    return Shared(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # tiny models are slower on more


@pytest.fixture(scope="session", autouse=True)
def _quick_catalogs() -> Iterator[None]:
    """Make new catalogs by the statements that Alembic's migrations came to for the first: they run but once."""
    migrate, statements = schema.upgrade, list[str]()

    @functools.wraps(migrate)
    def upgrade(engine: Engine) -> schema.Upgrade:
        file = file_of(engine)
        if schema.current(engine) is not None:
            return migrate(engine)
        if file is None:
            make_tables(engine)
            return schema.Upgrade(None, schema.HEAD, None)
        if not statements:
            done = migrate(engine)
            with closing(sqlite3.connect(file)) as connection:
                made = connection.execute("SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
                statements.extend(sql for (sql,) in made)
            return done
        with translated(engine), engine.execution_options(writing=True).begin() as creating:
            for statement in statements:
                creating.exec_driver_sql(statement)
            creating.exec_driver_sql(f"INSERT INTO {VERSION_TABLE} VALUES (?)", (schema.HEAD,))
            creating.exec_driver_sql("INSERT INTO registry VALUES (?)", (uuid.uuid4().hex,))
        return schema.Upgrade(None, schema.HEAD, None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "upgrade", upgrade)
        yield


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REG_HOME", "REG_DATABASE", "REG_ARRAYS", "REG_CACHE_BYTES", "REG_DEBUG", "REG_ACTOR", "REG_WEBHOOK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _arrays_in_a_bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `REG_TEST_ARRAYS=s3`, keep the arrays of every new registry of a test in a bucket."""
    if not _IN_A_BUCKET:
        return
    request.getfixturevalue("s3")
    bucket, locate = request.getfixturevalue("_bucket"), Home.locate

    def located(*arguments: Any, **named: Any) -> Home:
        home = locate(*arguments, **named)
        if home.arrays_elsewhere is not None or home.arrays.exists():
            return home
        prefix = hashlib.sha256(str(home.path).encode()).hexdigest()[:16]
        return replace(home, arrays_elsewhere=f"s3://{bucket}/{prefix}")

    monkeypatch.setattr(Home, "locate", located)


@pytest.fixture(scope="session")
def postgres_server(shared: Shared) -> str:
    """The URL of a PostgreSQL database of this worker's own, in the one cluster of the run."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    owner = os.getpid() if worker == "main" else os.getppid()
    server = shared.get("postgres", lambda _: postgres.url(owner))
    return postgres.make_database(server, database_name(str(shared.root), worker))


@pytest.fixture(autouse=True)
def catalog_kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The database in which homes without a named one have their catalogs: sqlite, or postgresql."""
    kind = str(getattr(request, "param", request.config.getoption("catalog") or "sqlite"))
    if kind == "sqlite":
        yield kind
        return
    with in_schemas(request.getfixturevalue("postgres_server")) as schemas:
        request.node.stash[_SCHEMAS] = schemas
        yield kind


_SCHEMAS = pytest.StashKey[Schemas]()


@pytest.fixture
def catalog_schemas(request: pytest.FixtureRequest, catalog_kind: str) -> Schemas | None:
    """The schemas of this test, if its catalogs are in PostgreSQL."""
    schemas: Schemas | None = request.node.stash.get(_SCHEMAS, None)
    return schemas


@pytest.fixture
def catalog_url(catalog_schemas: Schemas | None, tmp_path: Path) -> str:
    """The URL of an empty database: a file below tmp_path, or a schema."""
    return catalog_schemas.fresh() if catalog_schemas else f"sqlite:///{tmp_path / 'catalog.sqlite'}"


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return train_tokenizer()


@pytest.fixture(scope="session")
def zoo(shared: Shared) -> Zoo:
    return shared.get("zoo", _make_zoo)


def _make_zoo(root: Path) -> Zoo:
    tokenizer = train_tokenizer()
    base = save_checkpoint(make_model("llama", 100), root / "base", tokenizer)
    experts, train, test = {}, {}, {}
    for number, name in enumerate(EXPERTS, start=1):
        experts[name] = save_checkpoint(make_model("llama", 100 + number), root / name, tokenizer)
        train[name] = write_jsonl(root / f"{name}.train.jsonl", sentences(name, 60))
        test[name] = write_jsonl(root / f"{name}.test.jsonl", sentences(name, 30, seed=1))
        collect_to(experts[name], experts[name], data=[train[name]], settings=SETTINGS, keep_calibration=True)
    return Zoo(base, experts, train, test)


@pytest.fixture
def bare(zoo: Zoo, tmp_path: Path) -> Path:
    """A checkpoint of its own that may be changed, without statistics."""
    folder = shutil.copytree(zoo.experts["code"], tmp_path / "bare")
    (folder / "statistics.safetensors").unlink()
    return folder


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry(tmp_path / "home") as opened:
        yield opened


@pytest.fixture(scope="session")
def _filled_home(zoo: Zoo, shared: Shared) -> Path:
    return shared.get("filled", lambda root: _make_home(root / "home", zoo, EXPERTS))


@pytest.fixture(scope="session")
def _home_of_three(zoo: Zoo, shared: Shared) -> Path:
    return shared.get("three", lambda root: _make_home(root / "home", zoo, THREE))


def _make_home(home: Path, zoo: Zoo, experts: tuple[str, ...]) -> Path:
    with in_files(), Registry(home) as registry:
        registry.add_base("base", zoo.base)
        for name in experts:
            registry.add_expert(name, zoo.experts[name])
    return home


@pytest.fixture
def filled(_filled_home: Path, tmp_path: Path) -> Iterator[Registry]:
    """A registry of its own with the base model and the five experts."""
    with opened_copy(_filled_home, tmp_path / "home") as opened:
        yield opened


@pytest.fixture(scope="session")
def _bucket(s3_server: S3Server) -> str:
    return s3_server.new_bucket()


@pytest.fixture
def arrays_url(s3: S3Server, _bucket: str) -> str:
    """The URL of an empty prefix of a bucket."""
    return f"s3://{_bucket}/{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def _prefix_of_three(_home_of_three: Path, s3_server: S3Server, _bucket: str) -> str:
    """The prefix of the bucket below which the arrays of `_home_of_three` are."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.environment.items():
            patch.setenv(name, value)
        copy_arrays(_home_of_three / "arrays", f"s3://{_bucket}/three")
    return "three"


@pytest.fixture
def filled_url(s3: S3Server, _bucket: str, _prefix_of_three: str, arrays_url: str) -> str:
    """The URL of a prefix of its own with the arrays of the base model and `THREE` experts."""
    s3.copy(_bucket, _prefix_of_three, arrays_url.rpartition("/")[2])
    return arrays_url


@pytest.fixture
def filled_bucket(_home_of_three: Path, filled_url: str, tmp_path: Path) -> Iterator[Registry]:
    """A registry of its own with the base model and `THREE` experts, whose arrays are in a bucket."""
    home = tmp_path / "home with a bucket"
    shutil.copytree(_home_of_three, home, ignore=lambda folder, _: ["arrays"] if Path(folder) == _home_of_three else [])
    with Registry(home, arrays=filled_url) as opened:
        yield opened


@pytest.fixture(scope="session")
def transformers4() -> Iterator[Transformers4]:
    if not PLACE.is_dir():
        pytest.skip(f"no transformers 4 in {PLACE.name}: make {PLACE.name}/installed")
    process = Transformers4()
    yield process
    process.close()


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """The system's Chromium, without a window; the one that Playwright would download lies in a home folder."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def demo_result(shared: Shared) -> DemoResult:
    """The demo, run in small."""
    return shared.get("demo", _make_demo)


def _make_demo(root: Path) -> DemoResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("registry.demo.run.BASE_STEPS", 2)
        patch.setattr("registry.demo.run.EXPERT_STEPS", 2)
        patch.setattr("registry.demo.run.TOKENS", 512)
        patch.setattr("registry.demo.run.new_model", lambda: make_model("llama", 0, **DEMO_SIZES))
        patch.setattr("registry.demo.domains.DOMAIN_CHARACTERS", 60_000)
        patch.setattr("registry.demo.domains._TEST_SHARE", 4)
        return run_demo(root / "demo")


@pytest.fixture
def small_demo(demo_result: DemoResult) -> Path:
    """The folder that the demo leaves."""
    return demo_result.folder


_stamps: dict[str, tuple[int, int]] = {}
"""Size and time of change of every array that was linked."""


def copy_home(home: Path, to: Path) -> Path:
    """Copy a closed registry, whose arrays become links, as nothing changes an array: damage one by `overwrite`."""
    shutil.copytree(home, to, ignore=lambda folder, _: ["arrays"] if Path(folder) == home else [])
    COPIES[to] = home
    _link(home / "arrays", to / "arrays")
    return to


@contextmanager
def opened_copy(home: Path, to: Path) -> Iterator[Registry]:
    """Open a copy of a closed registry that was made `in_files`; where tests run in a bucket, its arrays go there."""
    if _IN_A_BUCKET:
        shutil.copytree(home, to, ignore=shutil.ignore_patterns("arrays"))
        copy_arrays(home / "arrays", Home.locate(to).arrays_place)
    else:
        copy_home(home, to)
    with Registry(to) as opened:
        yield opened


def _link(folder: Path, to: Path) -> None:
    to.mkdir()
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                _link(Path(entry.path), to / entry.name)
            else:
                found = entry.stat()
                stamp = found.st_size, found.st_mtime_ns
                assert _stamps.setdefault(entry.path, stamp) == stamp, f"a test wrote to {entry.path}: use overwrite"
                os.link(entry.path, to / entry.name)


def array_folder(registry: Registry, digest: str) -> Path:
    """Return the folder of an array of a registry whose arrays are in its home."""
    assert isinstance(registry.arrays, FolderArrays)
    return registry.arrays.path(digest)


def overwrite(path: Path, data: bytes) -> None:
    """Write a file of a registry, and not those of others that it is a link of."""
    path.unlink()
    path.write_bytes(data)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return every file below `folder` by its path there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
