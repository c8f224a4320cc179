"""Proves: `reg config` says of every setting what it is and where it comes from, makes nothing, and tells no secret."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.main import main
from registry.maintenance.environment import Setting, configuration

TOKEN, PASSWORD = "hf_secret_token", "s3cret"


@pytest.mark.parametrize("by_variable", [False, True])
def test_every_setting_has_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool) -> None:
    home, url = tmp_path / "home", f"postgresql+psycopg://reg:{PASSWORD}@db/reg?sslpassword={PASSWORD}"
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words, source = ["--home", str(home), "--database", url], "option --{}"
    if by_variable:
        monkeypatch.setenv("REG_HOME", str(home))
        monkeypatch.setenv("REG_DATABASE", url)
        words, source = [], "environment variable REG_{}"
    output = CliRunner().invoke(main, [*words, "config", "--json"]).output
    assert TOKEN not in output
    assert PASSWORD not in output
    found = json.loads(output)["settings"]
    for name in ("home", "database"):
        assert found[name]["source"] == source.format(name.upper() if by_variable else name)
    assert found["home"]["value"] == str(home)
    assert found["database"]["value"] == "postgresql+psycopg://reg:***@db/reg?sslpassword=%2A%2A%2A"
    assert found["hub_token"] == {"value": "present", "source": "environment variable HF_TOKEN"}
    assert found["threads"]["source"] == "environment variable OMP_NUM_THREADS"
    lines = CliRunner().invoke(main, [*words, "config"]).stdout.splitlines()
    assert lines[0].split() == ["setting", "value", "source"]
    assert {"reg", "torch", "transformers", "zarr"} <= {line.split()[0] for line in lines if line}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.sqlite
def test_defaults_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("registry.home._default", lambda: tmp_path / "home")
    for name in ("HF_TOKEN", "HF_ENDPOINT", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    found = configuration()
    assert Setting("home", str(tmp_path / "home"), "default") in found
    assert Setting("database", f"sqlite:///{tmp_path / 'home' / 'catalog.sqlite'}", "default") in found
    assert Setting("Hub token", "none", "default") in found
    monkeypatch.setattr("huggingface_hub.get_token", lambda: TOKEN)
    token = next(one for one in configuration() if one.name == "Hub token")
    assert (token.value, token.source.partition(" ")[0]) == ("present", "file")
    no_url = {one.name: one.value for one in configuration("home", f"nonsense {PASSWORD}")}
    assert no_url["database"] == "(not a database URL)"
