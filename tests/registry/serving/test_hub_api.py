"""Proves: clients of the Hub read versions and mixes from a registry, to the byte, and are told what is not there.

Everything goes over HTTP: `huggingface_hub` and transformers ask as they ask the Hub.
"""

import hashlib
import http.client
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from huggingface_hub import HfApi, close_session, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

from registry import Recipe, Registry
from registry.errors import ConflictError, NotFoundError
from registry.io.http_server import listen
from registry.serving import Repositories, hub_app
from tests.conftest import Zoo, files_of
from tests.fake_hub import use_hub
from tests.faulty_proxy import faulty_proxy
from tests.pages import answering
from tests.registry.checkpoint.test_adapter import LINEAR, train

MEAN = Recipe(trunk="mean", router="ridge")


@dataclass
class Served:
    """A registry as a Hub."""

    registry: Registry
    repositories: Repositories
    url: str

    def ask(self, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers by lower-case name, and body."""
        with closing(http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)) as connection:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


@contextmanager
def serving(
    registry: Registry, folder: Path, monkeypatch: pytest.MonkeyPatch, tokens: tuple[str, ...] = ()
) -> Iterator[Served]:
    repositories = Repositories(registry, folder, MEAN)
    with listen(0) as listening, answering(hub_app(repositories, tokens), listening) as url:
        served = Served(registry, repositories, url)
        use_hub(monkeypatch, served, folder.parent / "client")  # type: ignore[arg-type]
        yield served
        close_session()


@pytest.fixture
def served(filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with serving(filled, tmp_path / "served", monkeypatch) as found:
        yield found


def test_an_expert_is_what_an_export_writes(served: Served, tmp_path: Path) -> None:
    served.registry.alias("math", "stable")
    served.registry.export("math", tmp_path / "math")
    expected = files_of(tmp_path / "math")
    folders = {Path(snapshot_download("experts/math", revision=one)) for one in (None, "1", "stable")}
    assert [files_of(folder) for folder in folders] == [expected]
    info = HfApi().model_info("experts/math", files_metadata=True)
    assert info.sha == folders.pop().name
    assert {one.rfilename: one.size for one in info.siblings or ()} == {
        name: len(data) for name, data in expected.items()
    }
    large = {one.rfilename: one.lfs.sha256 for one in info.siblings or () if one.lfs}
    assert large == {
        name: hashlib.sha256(data).hexdigest() for name, data in expected.items() if name.endswith(".safetensors")
    }
    assert {one.id for one in HfApi().list_models()} >= {"experts/math", "bases/base"}


def test_a_mix_is_composed_when_it_is_asked_for(served: Served, tmp_path: Path) -> None:
    served.registry.compose(["code", "math"], tmp_path / "moe", MEAN)
    assert files_of(Path(snapshot_download("mix/math-code"))) == files_of(tmp_path / "moe")
    model = AutoModelForCausalLM.from_pretrained("mix/code-math", dtype="float32")
    ids = torch.tensor([AutoTokenizer.from_pretrained("mix/code-math")("def return self import")["input_ids"]])
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "moe", dtype="float32")
    assert torch.equal(model(ids).logits, expected(ids).logits)


def test_an_adapter_comes_as_it_came(
    registry: Registry, zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train(zoo.base, tmp_path / "law", target_modules=LINEAR)
    registry.add_base("base", zoo.base)
    registry.add_expert("law", folder, base="base", data=[zoo.train["law"]])
    registry.add_expert("math", zoo.experts["math"])
    with serving(registry, tmp_path / "served", monkeypatch) as served:
        name = "adapter_model.safetensors"
        assert Path(hf_hub_download("adapters/law", name)).read_bytes() == (folder / name).read_bytes()
        with pytest.raises(RepositoryNotFoundError, match="trained in full"):
            hf_hub_download("adapters/math", name)
        assert served.repositories.names() == ["experts/law", "experts/math", "bases/base", "adapters/law"]


def test_what_is_not_there_is_told_apart(served: Served) -> None:
    for repository in ("experts/nosuch", "nosuch/math", "mix/code-nosuch", "experts/base", "bases/math"):
        with pytest.raises(RepositoryNotFoundError):
            HfApi().model_info(repository)
    for repository, revision in (
        ("experts/math", "9"),
        ("experts/math", "old"),
        ("mix/code-math", "2"),
        ("experts/math", "f" * 40),
    ):
        with pytest.raises(RevisionNotFoundError):
            HfApi().model_info(repository, revision=revision)
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("experts/math", "nosuch.json")
    assert served.ask("GET", "/api/models/experts/math/tree/main/more")[0] == 404
    assert served.ask("GET", "/experts/math/resolve/main/../../catalog.sqlite")[0] == 404
    assert served.ask("POST", "/api/models/experts/math")[0] == 405


def test_what_was_opted_out_is_gone_at_once(served: Served) -> None:
    commits = {
        name: served.repositories.find(name).commit for name in ("experts/math", "mix/code-math", "mix/code-law")
    }
    folders = {name: served.repositories.find(name).folder for name in commits}
    served.registry.opt_out("math")
    for name in ("experts/math", "mix/code-math"):
        for revision in ("main", commits[name]):
            with pytest.raises(HfHubHTTPError, match=r"math.* opted out") as gone:
                HfApi().model_info(name, revision=revision)
            assert gone.value.response.status_code == 410
        assert not folders[name].exists()
    assert Path(hf_hub_download("mix/code-law", "config.json", revision=commits["mix/code-law"])).is_file()


def test_a_token_is_asked_for_where_some_are_known(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(filled, tmp_path / "served", monkeypatch, tokens=("one", "two")) as served:
        for token in (False, "three"):
            with pytest.raises(HfHubHTTPError, match="set HF_TOKEN") as refused:
                hf_hub_download("experts/math", "config.json", token=token)
            assert refused.value.response.status_code == 401
        assert Path(hf_hub_download("experts/math", "config.json", token="two")).is_file()
        assert served.ask("GET", "/api/models", Host="elsewhere", Authorization="Bearer one")[0] == 200


def test_without_tokens_only_this_machine_is_answered(served: Served) -> None:
    for host, status in (
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("rebound.example", 421),
        ("127.0.0.1.example", 421),
    ):
        assert served.ask("GET", "/api/models", Host=host)[0] == status


def test_parts_of_a_file_are_of_one_content(served: Served) -> None:
    where = "/mix/code-math/resolve/main/model.safetensors"
    status, headers, whole = served.ask("GET", where)
    assert (status, headers["etag"], headers["accept-ranges"]) == (
        200,
        f'"{hashlib.sha256(whole).hexdigest()}"',
        "bytes",
    )
    assert served.ask("HEAD", where)[1:] == ({**headers, "date": served.ask("HEAD", where)[1]["date"]}, b"")
    status, part, data = served.ask("GET", where, Range="bytes=100-", **{"If-Range": headers["etag"]})
    assert (status, data) == (206, whole[100:])
    assert part["content-range"] == f"bytes 100-{len(whole) - 1}/{len(whole)}"
    status, _, data = served.ask("GET", where, Range="bytes=100-", **{"If-Range": '"another"'})
    assert (status, data) == (200, whole)
    assert served.ask("GET", where, Range=f"bytes={len(whole)}-")[0] == 416


def test_an_interrupted_download_goes_on_where_it_was(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = served.repositories.find("experts/math").files["model.safetensors"]
    with faulty_proxy(served.url) as proxy:
        proxy.applies = lambda method, path: method == "GET" and path.endswith("model.safetensors")
        proxy.faults = ["cut", "cut"]
        template = proxy.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", proxy.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        found = Path(hf_hub_download("experts/math", "model.safetensors"))
        assert [fault for _, path, fault in proxy.requests if fault] == ["cut", "cut"]
    assert hashlib.sha256(found.read_bytes()).hexdigest() == expected.sha256


def test_fifty_clients_at_once_get_one_composition(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    written, compose = [], Registry.compose

    def counted(self: Registry, *given: Any, **named: Any) -> Any:
        written.append(given)
        return compose(self, *given, **named)

    monkeypatch.setattr(Registry, "compose", counted)
    with ThreadPoolExecutor(50) as pool:
        found = set(
            pool.map(lambda _: served.ask("GET", "/mix/code-math/resolve/main/model.safetensors")[2], range(50))
        )
    assert (len(found), len(written)) == (1, 1)
    assert re.fullmatch("[0-9a-f]{40}", served.repositories.find("mix/code-math").commit)


def test_names_with_hyphens_are_told_apart(filled: Registry, zoo: Zoo, tmp_path: Path) -> None:
    repositories = Repositories(filled, tmp_path / "served", MEAN)
    filled.add_expert("code-math", zoo.experts["german"])
    with pytest.raises(NotFoundError, match="may be code, math, law; or code-math, law"):
        repositories.find("mix/code-math-law")
    assert repositories.find("mix/law-german").made_from == ("german@1", "law@1")
    filled.opt_out("law")
    with pytest.raises(ConflictError, match="law was opted out"):
        repositories.find("mix/law-german")
