"""Proves: every token of a text is told with its experts, and nothing in a text reaches a terminal raw."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from cli.main import main
from registry import Recipe, Registry
from registry.composition.route import route
from registry.errors import CheckpointError, InvalidInputError
from registry.io.display import printable
from registry.runtime.loading import load_model, load_tokenizer
from tests.conftest import Zoo

TEXT = "def return print\nder wald \u00fc \U0001f642 ist"


@pytest.fixture(scope="module")
def moe(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("route")
    with Registry(folder / "home") as registry:
        for name in ("code", "german"):
            registry.add_expert(name, zoo.experts[name])
        registry.compose(["code", "german"], folder / "moe", Recipe(router="ridge", top_k=2))
    return folder / "moe"


def run(*words: object, code: int = 0, **options: object) -> Result:
    result = CliRunner().invoke(main, ["route", *map(str, words)], **options)  # type: ignore[arg-type]
    assert result.exit_code == code, result.output
    return result


@pytest.mark.check
def test_tokens_make_up_the_text_and_go_where_the_model_sends_them(moe: Path) -> None:
    routed = route(moe, TEXT)
    assert "".join(token.text for token in routed.tokens if not token.special) == TEXT
    tokenizer, model = load_tokenizer(moe), load_model(moe, "float32", None)
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    with torch.no_grad():
        logits = model(input_ids=ids, output_router_logits=True).router_logits
    for layer, found in enumerate(logits):
        first = [routed.experts[number] for number in found.argmax(-1).flatten().tolist()]
        assert [token.experts[layer] for token in routed.tokens] == first
    assert all(sum(weights.values()) == pytest.approx(1) for token in routed.tokens for weights in token.weights)
    assert sum(routed.shares().values()) == pytest.approx(1)
    assert (routed.experts, routed.layers) == (("code", "german"), 2)
    document = json.loads(run(moe, TEXT, "--json").stdout)
    assert document["experts"] == ["code", "german"]
    assert [token["experts"] for token in document["tokens"]] == [list(token.experts) for token in routed.tokens]


def test_letters_without_colours_and_layers_on_request(moe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run(moe, "def return").stdout.splitlines()
    assert lines[0].startswith("[")
    assert lines[-1].startswith("[a] code ")
    assert run(moe, "-", input="def return").stdout.splitlines() == lines
    printed = run(moe, "def return", "--every-layer").stdout
    assert [line for line in printed.splitlines() if line.startswith("layer")] == ["layer 0", "layer 1"]
    assert run(moe, "def return", "--layer", "0", "--layer", "1").stdout == printed
    assert "there is no layer 2 in" in run(moe, "def", "--layer", "2", code=1).stderr
    assert "exclude one another" in run(moe, "def", "--layer", "0", "--every-layer", code=2).stderr
    monkeypatch.setattr("cli.commands.routing.sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run(moe, "def return").stdout


def test_hostile_text_reaches_no_terminal_raw(moe: Path) -> None:
    hostile = "a\x1b[2J\x07\x9b31m\u202eb\r\x00\u2028"
    printed = run(moe, hostile).stdout
    assert not set("\x1b\x07\x9b\u202e\r\x00\u2028") & set(printed)
    assert r"\x1b[2J" in printed.replace("[a]", "").replace("[b]", "")
    assert printable("ü 🙂\n\t", keep="\n\t") == "ü 🙂\n\t"
    assert printable("\ud800\x1b\u200b") == r"\ud800\x1b\u200b"


def test_what_cannot_be_routed_is_told(moe: Path, zoo: Zoo) -> None:
    for text, said in (("", "no token"), ("x" * 100_001, "100,001 characters"), ("def " * 200, "the model takes 128")):
        with pytest.raises(InvalidInputError, match=said):
            route(moe, text)
    with pytest.raises(InvalidInputError, match="not a mixture"):
        route(zoo.base, "def")
    with pytest.raises(CheckpointError, match="nope is not a folder"):
        route(moe.parent / "nope", "def")
