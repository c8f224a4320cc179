"""What tests of compositions share: looks into folders, commands, and experts that are made for one test."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from cli.main import main
from registry import PassSettings, Registry
from registry.composition import Recipe
from tests.conftest import Zoo, files_of
from tests.models import save_checkpoint, sentences, train_tokenizer, write_jsonl

PAIR = ("code", "math")
GATE = "model.layers.{}.block_sparse_moe.gate.weight"
FEW = PassSettings(tokens=64, seq_len=16, batch_size=2)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return every weight of a folder, of all of its files."""
    files = sorted(folder.glob("model*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def json_of(folder: Path, file: str = "composition.json") -> dict[str, Any]:
    """Return what a JSON file of a folder holds."""
    found: dict[str, Any] = json.loads((folder / file).read_bytes())
    return found


def reg(registry: Registry, *words: object, code: int = 0) -> Result:
    """Run a command on a registry, which shall exit with `code`."""
    result = CliRunner().invoke(main, ["--home", str(registry.home.path), *map(str, words)])
    assert result.exit_code == code, result.output
    return result


def add_model(
    registry: Registry,
    folder: Path,
    model: Any,
    tokenizer: Any = None,
    *,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Path:
    """Write a model to a folder, register it as an expert of the folder's name, and return the folder."""
    save_checkpoint(model, folder, tokenizer or train_tokenizer(), dtype=dtype)
    if "data" not in options:
        options["data"] = [write_jsonl(folder.with_suffix(".jsonl"), sentences("law", 10))]
    given: dict[str, Any] = {"settings": FEW, "remote_code": True} | options
    registry.add_expert(folder.name, folder, **given)
    return folder


def files_elsewhere(zoo: Zoo, folder: Path, names: Sequence[str], recipe: Recipe) -> dict[str, bytes]:
    """Return the files of a composition in a registry that never held more, registered in this order."""
    with Registry(folder / "home elsewhere") as registry:
        for name in names:
            registry.add_expert(name, zoo.experts[name])
        if recipe.needs_base:
            registry.add_base("base", zoo.base)
        registry.compose(names[::-1], folder / "elsewhere", recipe)
    return files_of(folder / "elsewhere")


def check_generated(model: Any, ids: torch.Tensor, left: int, tokens: int = 6) -> None:
    """Check that text is the same with and without a cache, by itself and padded in a batch, greedy and with beams.

    Args:
        model: the model.
        ids: two rows of tokens.
        left: how many tokens of the second row are padding.
        tokens: how many are generated.
    """
    mask, alone = torch.ones_like(ids), ids[1:, left:]
    ids = ids.clone()
    ids[1, :left], mask[1, :left] = 0, 0
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "max_new_tokens": tokens}
    cached = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(cached, model.generate(ids, attention_mask=mask, **options, use_cache=False))
    assert torch.equal(cached[1:, left:], model.generate(alone, attention_mask=torch.ones_like(alone), **options))
    options |= {"max_new_tokens": 4, "num_beams": 2}
    beams = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(beams, model.generate(ids, attention_mask=mask, **options, use_cache=False))
