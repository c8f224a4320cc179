"""Proves: the shapes that annotations give are checked where tests run the code."""

import re

import pytest
import torch
from jaxtyping import TypeCheckError

from registry.maths.lora import lora_delta
from tests.running import ROOT


def test_every_package_with_shapes_is_checked(pytestconfig: pytest.Config) -> None:
    *checked, _ = str(pytestconfig.getoption("--jaxtyping-packages")).split(",")
    for path in (ROOT / "registry").rglob("*.py"):
        if re.search(r"^(from|import) jaxtyping", path.read_text(encoding="utf-8"), re.MULTILINE):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            assert any(f"{name}.".startswith(f"{package}.") for package in checked), f"{name}: see pyproject.toml"
    with pytest.raises(TypeCheckError):
        lora_delta(torch.zeros(2, 3), torch.zeros(4, 5), 1.0)
