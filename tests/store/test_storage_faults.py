"""Proves: faults of a bucket or of the way to it are overcome or become errors that name it; never a wrong byte."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store import object_store
from store.arrays import digest_of, open_arrays
from store.arrays import source as module
from store.arrays.object_arrays import ObjectArrays
from store.errors import DamagedError, StorageError
from tests.faulty_proxy import Fault, FaultyProxy, faulty_proxy
from tests.s3_server import S3Server
from tests.store.test_arrays import array, content

PASSING: list[Fault] = ["500", "slow down", "reset", "reset after"]
SOURCE = array(shape=(100, 7))


@pytest.fixture(scope="module")
def _proxy(s3_server: S3Server) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(_proxy: FaultyProxy, arrays_url: str, monkeypatch: pytest.MonkeyPatch) -> FaultyProxy:
    monkeypatch.setenv("AWS_ENDPOINT_URL", _proxy.endpoint)
    monkeypatch.setenv("REG_STORAGE_TIMEOUT", "1")
    monkeypatch.setattr(object_store, "RETRIES", 3)
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 64)
    _proxy.faults, _proxy.requests = [], []
    _proxy.applies = lambda _method, _path: True
    return _proxy


@pytest.fixture
def store(proxy: FaultyProxy, arrays_url: str, tmp_path: Path) -> ObjectArrays:
    found = open_arrays(arrays_url, tmp_path / "chunks")
    assert isinstance(found, ObjectArrays)
    return found


@pytest.mark.trust(after=1)
@pytest.mark.parametrize("fault", [*PASSING, "hang"])
@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_faults_that_pass_are_overcome(store: ObjectArrays, proxy: FaultyProxy, fault: Fault, method: str) -> None:
    proxy.applies = lambda found, path: found == method and "/c." in path
    proxy.faults = [fault, fault]
    assert store.put(SOURCE) == digest_of(SOURCE)
    assert content(store.open(digest_of(SOURCE))) == content(SOURCE)
    assert [fault for *_, fault in proxy.requests if fault] == [fault, fault]


@pytest.mark.trust(after=1)
@pytest.mark.parametrize("fault", ["500", "slow down", "reset", "denied", "expired"])
@pytest.mark.parametrize("doing", ["put", "read", "is_intact", "has", "delete", "digests", "owner"])
def test_faults_that_stay_are_errors_that_name_the_bucket(
    store: ObjectArrays, proxy: FaultyProxy, fault: Fault, doing: str
) -> None:
    digest = digest_of(SOURCE) if doing == "put" else store.put(SOURCE)
    proxy.faults = [fault] * 500
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: store.put(SOURCE),
        "read": lambda: store.read(digest),
        "is_intact": lambda: store.is_intact(digest),
        "has": lambda: store.has(digest),
        "delete": lambda: store.delete(digest),
        "digests": lambda: list(store.digests()),
        "owner": store.owner,
    }
    with pytest.raises(StorageError) as caught:
        calls[doing]()
    assert store.place in caught.value.message
    assert caught.value.hint
    assert "\n" not in caught.value.message
    proxy.faults = []
    assert store.put(SOURCE) == digest
    assert content(store.open(digest)) == content(SOURCE)


@pytest.mark.trust(after=1)
@pytest.mark.parametrize("fault", ["cut", "flip"])
@pytest.mark.parametrize("cached", [True, False])
def test_no_wrong_byte_is_read(store: ObjectArrays, proxy: FaultyProxy, fault: Fault, cached: bool) -> None:
    digest = store.put(SOURCE)
    proxy.applies = lambda method, path: method == "GET" and "/c." in path
    for faults in range(1, 6):
        proxy.faults = [fault] * faults
        for _ in range(4):
            try:
                read = b"".join(block.tobytes() for block in store.open(digest, cached=cached).blocks())
            except (DamagedError, StorageError):
                continue
            assert read == content(SOURCE)
    proxy.faults = []
    assert content(store.open(digest)) == content(SOURCE)


@pytest.mark.trust(after=1)
@pytest.mark.parametrize("fault", ["cut", "flip", "500", "slow down", "reset", "reset after", "hang"])
def test_what_is_put_amid_faults_is_whole_or_an_error(
    store: ObjectArrays,
    proxy: FaultyProxy,
    s3: S3Server,
    arrays_url: str,
    fault: Fault,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for at in range(0, 30, 3):
        left = [at]

        def applies(_method: str, _path: str, left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] < 0

        proxy.applies, proxy.faults = applies, [fault]
        try:
            store.put(SOURCE)
        except (DamagedError, StorageError):
            pass
        else:
            monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
            assert content(open_arrays(arrays_url).open(digest_of(SOURCE))) == content(SOURCE)
            monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        proxy.faults = []
        store.delete(digest_of(SOURCE))


def test_missing_bucket_is_no_missing_array(s3: S3Server) -> None:
    store = open_arrays("s3://nosuchbucket/team")
    for call in (lambda: store.open("0" * 64), lambda: store.put(SOURCE), lambda: list(store.digests())):
        with pytest.raises(StorageError, match="there is no bucket nosuchbucket"):
            call()
