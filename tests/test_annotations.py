"""Proves: the shapes that annotations give are checked where tests run the code: in `make test`, in every fourth."""

import re
from pathlib import Path

import jaxtyping
import pytest
import torch
from jaxtyping import TypeCheckError

from registry.maths.lora import lora_delta

PACKAGE = Path(__file__).parents[1] / "registry"


def test_every_package_with_shapes_is_checked(pytestconfig: pytest.Config) -> None:
    *checked, _ = str(pytestconfig.getoption("--jaxtyping-packages")).split(",")
    for path in PACKAGE.rglob("*.py"):
        if re.search(r"^(from|import) jaxtyping", path.read_text(encoding="utf-8"), re.MULTILINE):
            name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            assert any(f"{name}.".startswith(f"{package}.") for package in checked), f"{name}: see pyproject.toml"


def test_wrong_shape_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", False)
    with pytest.raises(TypeCheckError):
        lora_delta(torch.zeros(2, 3), torch.zeros(4, 5), 1.0)
