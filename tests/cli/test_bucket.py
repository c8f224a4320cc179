"""Proves: commands write compositions to a bucket, read them from there, and refuse a URL where a path is needed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.main import main
from registry import Registry
from store.bucket import Bucket
from tests.conftest import Zoo


def run(registry: Registry, *words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["--home", str(registry.home.path), *map(str, words)])
    assert result.exit_code == code, result.output
    return result


@pytest.mark.check
def test_composition_goes_to_a_bucket_and_is_read_from_there(filled: Registry, tmp_path: Path, zoo: Zoo) -> None:
    url = f"memory://{tmp_path.name}/moe"
    composed = json.loads(run(filled, "compose", "--experts", "code,math", "--out", f"{url}/", "--json").stdout)
    assert composed["out"] == url
    assert json.loads(run(filled, "compositions", "--json").stdout)[0]["folders"] == [url]
    text = f"code={zoo.test['code']}"
    assert run(filled, "evaluate", url, "--data", text, "--seq-len", 32, "--json").exit_code == 0
    assert json.loads(run(filled, "doctor", url, "--quick", "--json").stdout)["verdict"]
    again = run(filled, "reproduce", url).output
    assert "files equal the composition" in again
    assert f"evaluate {url}" in again
    receipt = tmp_path / "receipt.json"
    run(filled, "opt-out", "math", "--receipt", receipt, "--yes")
    assert url in receipt.read_text()
    found = run(filled, "receipt", "verify", receipt, "--folder", url, code=1)
    assert "holds math@1" in found.output
    assert list(filled.home.work.iterdir()) == []


@pytest.mark.check
def test_second_composition_needs_force(filled: Registry, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/moe"
    run(filled, "compose", "--experts", "code", "--out", url)
    refused = run(filled, "compose", "--experts", "math", "--out", url, code=1)
    assert f"{url} holds a composition" in refused.output
    assert "--force" in refused.output
    checked = run(filled, "compose", "--experts", "code,law", "--out", url, "--force", "--check", code=1)  # not trained
    assert "integrity: every file is as it was composed" in checked.output
    assert {"composition.json", "config.json"} <= set(Bucket(url).listed()[0])


@pytest.mark.check
def test_prefix_without_composition_is_an_error(filled: Registry, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/none"
    failed = run(filled, "evaluate", url, "--data", f"code={tmp_path}", code=1)
    assert f"{url} holds no composition" in failed.output
    assert "reg compose" in failed.output


@pytest.mark.check
def test_path_is_asked_for_where_no_url_can_be(filled: Registry, tmp_path: Path) -> None:
    for words in (
        ("export", "code", "--out", "s3://bucket/code"),
        ("train", "s3://bucket/moe", "--out", tmp_path / "out", "--data", "code"),
        ("reproduce", tmp_path, "--out", "s3://bucket/again"),
    ):
        refused = run(filled, *words, code=2)
        assert "is a URL, and this takes a path" in refused.output
    assert (
        "is not the URL of a bucket" in run(filled, "compose", "--experts", "code", "--out", "ftp://x/y", code=2).output
    )
