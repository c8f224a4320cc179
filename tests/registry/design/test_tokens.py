"""Proves: every text colour can be read on every ground, light and dark; stylesheets use no unknown value."""

import re
from pathlib import Path

import pytest

from registry import ui
from registry.design import COLOURS, NEUTRAL, colour_class, expert_colours, static_text
from registry.design.styles import STATIC

PAIRS = {
    name: colours
    for name, *colours in re.findall(r"(--[\w-]+): light-dark\((#\w{6}), (#\w{6})\);", static_text("tokens.css"))
}
"""Token → its colours on a light and a dark page."""

GROUNDS = ("--ground", "--surface", "--raised")
TEXTS = ("--text", "--soft", "--accent", "--good", "--warn", "--bad", *(f"--e{n}" for n in range(COLOURS)), "--neutral")


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_every_ground(theme: int) -> None:
    pairs = [(text, ground) for text in TEXTS for ground in GROUNDS]
    pairs += [(f"--{name}", f"--{name}-soft") for name in ("accent", "good", "warn", "bad")]
    pairs += [("--text", f"--{name}-soft") for name in ("accent", "good", "warn", "bad")]
    pairs += [("--on-heat", "--heat")]
    measured = {pair: contrast(PAIRS[pair[0]][theme], PAIRS[pair[1]][theme]) for pair in pairs}
    assert {pair: ratio for pair, ratio in measured.items() if ratio < 4.5} == {}
    assert contrast("#ffffff", PAIRS["--accent-ground"][theme]) >= 4.5
    assert contrast(PAIRS["--edge"][theme], PAIRS["--surface"][theme]) >= 3  # the edges of fields


def test_every_value_that_a_stylesheet_uses_is_a_token() -> None:
    folder = Path(ui.__file__).with_name("static")
    defined = set(re.findall(r"(--[\w-]+):", static_text("tokens.css")))
    for file in (*STATIC.glob("*.css"), *folder.glob("*.css")):
        text = file.read_text(encoding="utf-8")
        used = set(re.findall(r"var\((--[\w-]+)", text)) - {"--height"}  # which composer.js measures
        assert used <= defined, file
        if file.name != "tokens.css":
            assert not re.findall(r"#[0-9a-f]{3,8}\b", text), file


def test_a_name_has_one_colour_whatever_the_order_and_the_page() -> None:
    known = [f"expert-{number}" for number in range(COLOURS)]
    everybody = expert_colours(known)
    assert everybody == expert_colours(reversed(known))
    assert sorted(everybody.values()) == list(range(COLOURS))
    for name in known:
        assert expert_colours([name], known) == {name: everybody[name]}


def test_of_many_experts_each_has_a_colour_and_a_page_of_few_has_none_twice() -> None:
    known = [f"expert-{number}" for number in range(1000)]
    everybody = expert_colours(known)
    assert set(everybody) == set(known)
    assert set(everybody.values()) == set(range(COLOURS))
    few = expert_colours(known[:COLOURS], known)
    assert len(set(few.values())) == COLOURS
    assert expert_colours(["\ud800", ""]) == expert_colours(["", "\ud800"])


def test_base_models_and_opted_out_experts_are_grey_and_others_keep_their_colours() -> None:
    names = ["code", "math", "law", "base"]
    colours, some = expert_colours(names), expert_colours(names, grey=["base", "law"])
    assert some == {name: colours[name] for name in ("code", "math")}
    assert colour_class("code", some) == f"e{colours['code']}"
    assert [colour_class(name, some) for name in ("base", "law", "nobody")] == [NEUTRAL] * 3
    assert f".{NEUTRAL} {{ --e: var(--{NEUTRAL}); }}" in static_text("tokens.css")
