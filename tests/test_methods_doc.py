"""Proves: docs/methods.md names exactly the methods, options and figures that there are, with the scores measured."""

import re
from dataclasses import fields
from pathlib import Path

from cli.commands.compose import compose
from registry.composition.found import OUTPUTS, ROUTERS, TRUNKS
from registry.composition.recipe.fields import FIELDS
from registry.evaluation import METHODS, Continual, Row
from registry.evaluation.methods import DENSE
from registry.methods.ensemble.output import ROUTINGS
from tests.running import ROOT

PAGE = ROOT / "docs" / "methods.md"
MEASURED = ROOT / "benchmarks" / "QUALITY.md"

NO_METHOD = {"ray", "experts", "out", "plan_only", "force", "as_json", "quiet", "base", "recipe_path", "save_recipe"}
NO_METHOD |= {"repo", "private", "license_id", "sign", "public", "check", "home", "database", "arrays"}
NO_METHOD |= {"fit_tokens", "fit_steps", "fit_lr", "fit_seed", "fit_device"}
"""Options of `reg compose` that choose members, places and output, not a method."""
OWN_TABLES = {"to", "trunk", "router", "routing", "routing_tokens"}


def tables(page: Path) -> dict[str, list[list[str]]]:
    """Return heading → rows of cells; with several tables in a section, the first column joins the heading."""
    rows: dict[str, list[list[str]]] = {}
    heading, key = "", None
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        if not line.startswith("|"):
            key = None
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if key is None:
            key = heading if heading not in rows else f"{heading}: {cells[0].strip('`')}"
            rows[key] = []
        elif not set(line) <= set("|-: "):
            rows[key].append(cells)
    return rows


def names(rows: list[list[str]]) -> list[str]:
    return [row[0].strip("`") for row in rows]


def test_methods_are_those_that_exist() -> None:
    page = tables(PAGE)
    assert names(page["Trunks"]) == list(TRUNKS)
    assert names(page["Routers"]) == list(ROUTERS)
    assert names(page["Outputs"]) == [*OUTPUTS]
    assert names(page["Outputs: --routing"]) == list(ROUTINGS)
    assert names(page["Rows of a table"]) == [*DENSE, *METHODS]


def test_options_are_those_of_compose_and_of_recipes_with_their_defaults() -> None:
    page = tables(PAGE)
    options = {str(option.name) for option in compose.params} - NO_METHOD - OWN_TABLES
    assert {name.strip("-").replace("-", "_") for name in names(page["Options"])} == options
    defaults = {row[0].strip("`"): row[1] for row in page["Options"]}
    expected = {field.option: field.default_text for field in FIELDS.values() if field.name not in OWN_TABLES}
    assert defaults == expected | {"--like": "", "--fit": "", "--from-base": ""}
    routed = next(row[1] for row in page["Outputs: --routing"] if row[0] == "`task-vector`")
    assert f"`--routing-tokens` ({FIELDS['routing_tokens'].default_text} by default)" in routed


def test_figures_are_those_of_a_row_and_of_a_schedule() -> None:
    known = {name for cell in names(tables(PAGE)["Figures"]) for name in cell.split(", ")}
    assert {field.name for field in fields(Row)} - {"name", "tokens", "losses"} <= known
    assert {name for name, of in vars(Continual).items() if isinstance(of, property)} <= known


def test_scores_are_those_measured() -> None:
    measured = tables(MEASURED)
    near = {row[0].split()[0]: row[6] for row in measured["Every method"] if not row[0].startswith("expert ")}
    far = {row[0].split()[0]: row[-1] for row in measured.get("Near and far experts", [])}
    page = tables(PAGE)
    scored = [(row[0], row[2]) for row in page["Rows of a table"]] + [
        (row[1], row[2]) for row in page["Which to use when"]
    ]
    for name, score in scored:
        row = name.strip("`")
        assert score == " / ".join(scores[row] for scores in (near, far) if row in scores), row
