"""Proves: every method, every output and every family writes the very bytes that it wrote when they were recorded.

The experts are tiny and the same on every machine (`golden_experts`); what was written of them is in
`golden_compositions.json`. Where sums, products and roots take part, their last bits are those of one kind of machine:
on a kind that is not recorded they are skipped, and the rest is compared.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry.composition.recipe.fields import FIELDS
from registry.families.table import FAMILIES
from tests.registry.golden_experts import KINDS, Home, golden_home
from tests.registry.make_golden_compositions import CASES, GOLDEN, fingerprint, written

RECORDED: dict[str, Any] = json.loads(GOLDEN.read_bytes())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with golden_home(tmp_path_factory.mktemp("golden")) as opened:
        yield opened


@pytest.fixture(scope="module")
def machine() -> str:
    return fingerprint()


@pytest.mark.check(after=12)
@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_what_was_recorded(name: str, home: Home, machine: str, tmp_path: Path) -> None:
    found, expected = written(CASES[name], home, tmp_path), RECORDED["everywhere"][name]
    here = RECORDED["machines"].get(machine)
    if here is not None:
        expected = expected | here["written"].get(name, {})
    differing = [
        file
        for file in sorted(found.keys() | expected.keys())
        if file not in found or file not in expected or expected[file] not in (None, found[file])
    ]
    assert differing == [], f"{name}: {', '.join(differing)}"
    if unknown := [file for file, digest in expected.items() if digest is None]:
        pytest.skip(
            f"{', '.join(unknown)} not compared: machine {machine[:12]} is not recorded; to record it, run there, with "
            "sources known to be right: python -m tests.registry.make_golden_compositions"
        )


def test_the_record_is_of_these_cases() -> None:
    assert RECORDED["everywhere"].keys() == CASES.keys()
    varying = {name: {file for file in files if files[file] is None} for name, files in RECORDED["everywhere"].items()}
    for machine in RECORDED["machines"].values():  # one may lack cases that changed since it was recorded
        assert {name: set(files) for name, files in machine["written"].items()}.items() <= varying.items()


def test_every_method_and_family_has_a_case() -> None:
    for name in ("to", "trunk", "router", "balance", "dtype", "routing", "mixing"):
        assert {*FIELDS[name].choices} <= {getattr(case.recipe, name, None) for case in CASES.values()}, name
    assert {*FAMILIES} == {"llama", *(kind.model_type for kind in KINDS.values())}
