"""Proves: docs/adding-a-family.md works as written. Its file is executed, its family listed, its cases run."""

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from registry.families import FAMILIES, Family
from tests.registry.families.test_configuration import SIZES
from tests.registry.hosts.test_hosts import Case, check_exactness, variant_of
from tests.transformers4 import Transformers4

PAGE = Path(__file__).parents[3] / "docs" / "adding-a-family.md"


def blocks() -> list[str]:
    """Return the page's Python code."""
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> Family:
    """The family that the page writes, in the table as the page says."""
    namespace: dict[str, Any] = {"__name__": "registry.families.seed_oss"}
    exec(compile(blocks()[0], str(PAGE), "exec"), namespace)
    added: Family = namespace["SeedOss"]()
    assert added.model_type not in FAMILIES, "the page's example is taken: find another"
    monkeypatch.setitem(FAMILIES, added.model_type, added)
    return added


def cases() -> dict[str, Case]:
    """Return the cases that the page adds."""
    namespace: dict[str, Any] = {"Case": Case, "CASES": {}}
    exec(compile(blocks()[1], str(PAGE), "exec"), namespace)
    found: dict[str, Case] = namespace["CASES"]
    return found


def test_page_has_a_file_and_cases_and_names_only_files_that_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(blocks()) == 2
    for path in set(re.findall(r"`((?:registry|tests|docs)/[\w/.]+)`", text)) - {"registry/families/seed_oss.py"}:
        assert (PAGE.parents[1] / path).exists(), path
    methods = ("fill_defaults", "rope", "outer_shapes", "trunk_layer", "mlp_layer", "projections")
    for method in (*methods, "mlp_input", "attention"):
        assert f"`{method}`" in text
        assert hasattr(Family, method)


def test_configuration_is_read_as_transformers_reads_it(family: Family) -> None:
    sizes: Any = SIZES
    theirs = CONFIG_MAPPING[family.model_type](**sizes)
    assert family.architecture(SIZES).differences(family.architecture(theirs.to_dict())) == []
    assert family.special_tokens == (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id)


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("case", sorted(cases()))
def test_case_holds(family: Family, case: str, tmp_path: Path, tokenizer: Any, transformers4: Transformers4) -> None:
    with variant_of(cases()[case], tmp_path, tokenizer) as variant:
        for dtype in ("float32", "bfloat16"):
            (tmp_path / dtype).mkdir()
            check_exactness(variant, tmp_path / dtype, dtype, transformers4)
