"""Proves: the page of a version of a soup or a SIMoE says what it is in it, and what was trained together with it."""

from pathlib import Path
from typing import Any

from registry import Registry
from tests.pages import served
from tests.store.test_catalog import new

OF_ALL: dict[str, Any] = {"family": "llama", "license": None}


def test_versions_of_a_soup_and_a_simoe_name_those_that_were_trained_with_them(tmp_path: Path) -> None:
    soup = {"domains": ["code", "<b>law"], "experts": 2, "support": 2, "rank": None, "data": "0" * 64}
    with Registry(tmp_path / "home") as registry:
        add = registry.catalog.add_version
        add(new("mix", "a", kind="base", content=OF_ALL | {"soup": soup}))
        for number in (1, 2):
            of_soup, of_simoe = {"soup": "a" * 64, "number": number}, {"delta": "d" * 64, "number": number}
            of_simoe |= {"base": "e" * 64, "experts": 2, "prompt_tokens": 32}
            add(new(f"mix-{number}", str(number), content=OF_ALL | {"soup": of_soup}))
            add(new(f"found-{number}", str(number + 2), content=OF_ALL | {"simoe": of_simoe}))
        add(new("code", "5", content=OF_ALL))
        with served(registry) as pages:
            shared, expert, found = (pages.read("versions", f"{ref}@1").text for ref in ("mix", "mix-1", "found-2"))
            listed = pages.read().text
            alone = pages.read("versions", "code@1").text
    assert "Soup shared weights; experts: 2 Domains code, <b>law Trained together with mix-1@1 mix-2@1 " in shared
    assert "Soup expert 1 of the soup aaaaaaaaaaaa Trained together with mix@1 mix-2@1 " in expert
    assert "SIMoE expert 2 of 2; its router reads the first 32 tokens Trained together with found-1@1 " in found
    assert "Calibration tokens" not in expert + found
    assert "Calibration tokens 100" in alone
    assert "Trained together" not in alone
    assert "code@1 6 parameters · 100 calibration tokens " in listed
    assert "mix-1@1 6 parameters " in listed
    assert "mix-1@1 6 parameters ·" not in listed
