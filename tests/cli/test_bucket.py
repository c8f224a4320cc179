"""Proves: commands write compositions to a bucket, read them from there, and refuse a URL where a path is needed."""

from pathlib import Path

import pytest

from registry import Registry
from store.bucket import Bucket
from tests.cli.conftest import Reg, some_text
from tests.conftest import Zoo


@pytest.mark.check
def test_composition_goes_to_a_bucket_and_is_read_from_there(
    reg: Reg, filled: Registry, tmp_path: Path, zoo: Zoo
) -> None:
    url = f"memory://{tmp_path.name}/moe"
    assert reg.json("compose", "--experts", "code", "--out", f"{url}/")["out"] == url
    refused = reg("compose", "--experts", "code,math", "--out", url, code=1)
    assert f"{url} holds a composition" in refused.output
    assert "--force" in refused.output
    words = ("compose", "--experts", "code,math", "--out", url, "--force", "--check")
    assert "integrity: every file is as it was composed" in reg(*words, code=1).output  # code 1: it is not trained
    assert {"composition.json", "config.json"} <= set(Bucket(url).listed()[0])
    assert reg.json("compositions", "code")[0]["folders"] == [url]
    reg("evaluate", url, *some_text(zoo, "code"))
    assert reg.json("doctor", url, "--quick")["verdict"]
    again = reg("reproduce", url).output
    assert "files equal the composition" in again
    assert f"evaluate {url}" in again
    receipt = tmp_path / "receipt.json"
    reg("opt-out", "math", "--receipt", receipt, "--yes")
    assert url in receipt.read_text()
    assert "holds math@1" in reg("receipt", "verify", receipt, "--folder", url, code=1).output
    assert list(filled.home.work.iterdir()) == []


def test_urls_that_cannot_be_are_told(reg: Reg, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/none"
    failed = reg("evaluate", url, "--data", f"code={tmp_path}", code=1)
    assert f"{url} holds no composition" in failed.output
    assert "reg compose" in failed.output
    for words in (
        ("export", "code", "--out", "s3://bucket/code"),
        ("train", "s3://bucket/moe", "--out", tmp_path / "out", "--data", "code"),
        ("reproduce", tmp_path, "--out", "s3://bucket/again"),
    ):
        assert "is a URL, and this takes a path" in reg(*words, code=2).output
    refused = reg("compose", "--experts", "code", "--out", "ftp://x/y", code=2)
    assert "is not the URL of a bucket" in refused.output
