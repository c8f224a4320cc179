"""Proves: a recipe file is what it says, line by line; a recipe that is written reads back; every method has a file."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry import Recipe, Registry
from registry.composition import RecipeFile, check_recipe_output, read_recipe, recipe_schema, write_recipe
from registry.composition.option import Option, OptionKind
from registry.composition.recipe.fields import FIELDS, obstacle
from registry.composition.recipe_file import recipe_text
from registry.errors import CheckpointError, IncompatibleError, InvalidInputError, NotFoundError, OutputError
from registry.evaluation import METHODS
from registry.io.limits import YAML_BYTES
from registry.io.model_folder import MARKER
from registry.io.strict_yaml import parse_yaml

DOCS = Path(__file__).parents[3] / "docs"
NAMES = ("code", "math", "n", "7", "a.b-c")
jsonschema.Draft202012Validator.check_schema(recipe_schema())
SCHEMA = jsonschema.Draft202012Validator(recipe_schema())


def read(tmp_path: Path, text: str) -> RecipeFile:
    (tmp_path / "r.yaml").write_text(text, encoding="utf-8")
    return read_recipe(tmp_path / "r.yaml")


def test_a_file_has_experts_perhaps_with_weights_base_model_and_recipe(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        "experts: [code, math@2]\nbase: zero@good\ntrunk: ties\ntrunk_options:\n  density: 1e-1\nrouter: ridge\n"
        "lam: 0.5\ntop_k: 1\nnormalize: true\nweights: {math: 2}\ndtype: null\nseed:\n",
    )
    assert (file.experts, file.base) == (("code", "math@2"), "zero@good")
    expected = Recipe(
        trunk="ties",
        trunk_options={"density": 0.1},
        router="ridge",
        lam=0.5,
        top_k=1,
        normalize=True,
        weights={"math": 2.0},
    )
    assert file.recipe == expected
    file = read(tmp_path, "experts: {code: 2, math@2: 0.5, law: }\n")
    assert file.experts == ("code", "math@2", "law")
    assert file.recipe == Recipe(weights={"code": 2.0, "math": 0.5})
    for text in ("", "# nothing\n", "{}", "trunk:\n"):
        assert read(tmp_path, text) == RecipeFile(tmp_path / "r.yaml")
    assert read(tmp_path, text).recipe == Recipe()


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("trunk: mean\ntopk: 1", 2, "there is no field 'topk'; did you mean 'top_k'?"),
        ("lam: 1\n\nlam: 2", 3, "the key 'lam' appears twice, first in line 1"),
        ("\nlam: no", 2, "lam is 'no', it must be a finite number, 0 or more"),
        ("to: [moe]", 1, "output ['moe'] is not one of moe, dense, ensemble"),
        ("- trunk", 1, "a recipe file holds fields"),
        ("trunk: ties\ntrunk_options:\n  alpha: 1", 3, "trunk method 'ties' has no option 'alpha'"),
        ("trunk_options: {beta: 1}", 1, "there is no trunk option 'beta'"),
        ("trunk_options: 1", 1, "trunk_options must hold fields of its own"),
        ("trunk_options:\n  alpha: 2", 2, "alpha is 2, it must be a finite number from 0 to 1"),
        ("alpha: 0.5", 1, "alpha belongs under trunk_options"),
        ("remote_code: true", 1, "there is no field 'remote_code'"),
        ("router: random\nlam: 1", 2, "lam has no part in router method 'random'"),
        ("to: ensemble\nrouting: perplexity\nweights: {a: 1}", 3, "weights has no part in routing method 'perplexity'"),
        ("router: ridge\nlam: auto", 2, "lam: auto was removed"),
        ("to: dense\ntrunk: base", 2, "a dense model with the trunk of the base is the base model itself"),
        ("weights:\n  code: 1\n  math: 0", 3, "the weight of math is 0, it must be a finite number, more than 0"),
        ("weights:\n  Code: 1", 2, "name 'Code' is not of the form"),
        ("weights: {math: 1}\nexperts: [code]", 1, "there is a weight for math, which is not a member"),
        ("weights: {code: 1}\nexperts: {code: 2}", 1, "weights stand beside the experts already"),
        ("experts: code", 1, "experts must be a list of references"),
        ("experts:\n- code\n- 7", 3, "the expert 7 is not text"),
        ("experts:\n- code\n- code@2", 3, "code is named more than once"),
        ("experts:\n- code\n- code@", 3, "alias '' is not of the form"),
        ("experts:\n- code\ntop_k: 2", 3, "top-k is 2, it must be 1, as there is one member"),
        ("experts: {code: -1}", 1, "the weight of code is -1, it must be"),
        ("trunk: mean\nbase: zero", 2, "this recipe takes no base model, and one is named"),
        ("trunk: base\nbase: 1", 2, "the base model must be a reference"),
        ("device: cpu\ncomputed: {device: cpu}", 2, "the device is given twice"),
        ("computed:\n  batch_size: 3", 2, "passes run in batches of 16, not 3"),
        ("computed:\n  threads: 3", 2, "there is no field 'threads' of computed"),
        ("to: ensemble\ntrunk_options: {alpha: 1}", 2, "trunk_options.alpha has no part in an ensemble whose members"),
        ("to: ensemble\ncombine: sum", 2, "combine has no part in an ensemble whose members keep their own trunks"),
        ("to: ensemble\ntrunk: mean\nbase: zero", 3, "this recipe takes no base model"),
        ("to: ensemble\ntrunk: task-arithmetic\ncoefficients: {a: 1}\nfit: {}", 4, "coefficients are fitted for one"),
        ("from_base: 1", 1, "the number of copies of the base model is 1, it must be from 2 to 1,024"),
        ("from_base: [2]", 1, "the number of copies of the base model is"),
        ("from_base: 4\nrouter: ridge", 2, "router method 'ridge' cannot tell copies of one base model apart"),
        ("from_base: 4\nexperts: [code]", 2, "the experts are copies of the base model, and others are named"),
        ("from_base: 4\ntop_k: 5", 2, "top-k is 5, it must be from 1 to 4"),
        ("{'recipe': {}, 'members': []}", 1, "there is no field 'recipe'"),
        ('{"trunk": "men"', 1, "it is not valid YAML"),
    ],
)
def test_mistakes_are_reported_with_file_and_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        assert not read(tmp_path, text).recipe
    assert caught.value.message.startswith(f"{tmp_path / 'r.yaml'}:{line}: {message}")
    assert caught.value.hint


def test_what_is_not_a_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.yaml"):
        with pytest.raises(NotFoundError, match="is not a file") as caught:
            read_recipe(path)
        assert caught.value.hint
    with pytest.raises(InvalidInputError, match=f"the limit is {YAML_BYTES:,}"):
        read(tmp_path, "#" * (YAML_BYTES + 1))


PRINTABLE = st.characters(exclude_categories=("C", "Z"), include_characters=" ")  # as `str.isprintable` has it


def values_of_field(one: Option) -> Any:
    least, most = one.limits.least, one.limits.most
    whole = one.kind is OptionKind.WHOLE
    low = None if least == float("-inf") else least
    high = None if most == float("inf") else most
    if whole:
        return st.integers(-(2**53) if low is None else int(low), 2**53 if high is None else int(high))
    if one.kind in (OptionKind.NUMBER, OptionKind.BY_MEMBER):
        number: st.SearchStrategy[Any] = st.floats(
            low, high, exclude_min=one.limits.above, allow_nan=False, allow_infinity=False
        )
        if one.kind is OptionKind.BY_MEMBER:
            return st.dictionaries(st.sampled_from(NAMES), number, min_size=1)
        return number
    if one.kind is OptionKind.SWITCH:
        return st.booleans()
    if one.kind is OptionKind.CHOICE:
        return st.sampled_from(one.choices)
    return st.text(PRINTABLE, min_size=1, max_size=100)


VALUES = {one.name: values_of_field(one) for one in FIELDS.values() if not one.stands_for}
TRUNK_NUMBERS = [one.name for one in FIELDS.values() if one.group]


def some_recipe(values: dict[str, Any]) -> Recipe:
    """Return the recipe of some fields, less those that have no part in it or contradict others."""
    for contradicting in (
        (),
        ("lam",),
        ("refine",),
        ("trunk", "combine", *TRUNK_NUMBERS),
        ("gating",),
        ("router", "bias"),
        ("coefficients",),
        ("routing_tokens",),
        ("max_bytes",),  # beside a rank
    ):
        values = {name: value for name, value in values.items() if name not in contradicting}
        values = {name: value for name, value in values.items() if obstacle(FIELDS[name], values) is None}
        with suppress(InvalidInputError):
            return Recipe.of_fields(values)
    raise AssertionError(values)


@given(st.fixed_dictionaries({}, optional=VALUES), st.lists(st.sampled_from(NAMES), unique=True), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_recipe_that_is_written_reads_back(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any], experts: list[str], pinned: bool
) -> None:
    recipe = some_recipe(values)
    path = tmp_path_factory.mktemp("recipes") / "r.yaml"
    weighed = {*getattr(recipe, "weights", {}), *getattr(recipe, "bias", {})}
    members = sorted({*experts, *weighed})
    coefficients = getattr(recipe, "coefficients", {})
    complete = {*members} == {*coefficients} if coefficients else bool(experts)
    named = members if complete and recipe.problem_of_members(members) is None else []
    references = [f"{name}@2" if pinned else name for name in named]
    base = "zero" if recipe.needs_base else None
    write_recipe(path, recipe, references, base)
    file = read_recipe(path)
    assert (list(file.experts), file.base) == (references, base)
    assert file.recipe == recipe
    SCHEMA.validate(parse_yaml(path.read_bytes(), "r").plain)


@pytest.mark.parametrize(
    "text",
    [
        "topk: 1", "trunk: men", "lam: -1", "lam: no", "top_k: 1.5", "normalize: 1", "alpha: 1", "experts: code",
        "trunk_options: {beta: 1}", "trunk_options: {alpha: 2}", "trunk: ties\ntrunk_options: {alpha: 1}",
        "router: random\nlam: 1", "combine: sum", "gating: softmax-topk", "seed: 1",
        "routing: posterior", "to: dense\nrefine: 1", "weights: {a: 0}",
        "to: ensemble\nrouting: perplexity\nweights: {a: 1}", "remote_code: true", "experts: [Code]", "base: 1",
    ],
)  # fmt: skip
def test_the_schema_refuses_what_the_reader_refuses(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInputError):
        read(tmp_path, text)
    with pytest.raises(jsonschema.ValidationError):
        SCHEMA.validate(parse_yaml(text.encode(), "r").plain)


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "r.yaml"
    path.write_bytes(data)
    with suppress(InvalidInputError):
        read_recipe(path)


def test_a_file_is_replaced_only_with_force_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.yaml"
    write_recipe(path, Recipe(), ["code"])
    before = path.read_bytes()
    with pytest.raises(OutputError, match=r"r\.yaml exists") as caught:
        write_recipe(path, Recipe(top_k=1))
    assert "--force" in str(caught.value.hint)
    assert path.read_bytes() == before
    write_recipe(path, Recipe(top_k=1), force=True)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space"):
            write_recipe(path, Recipe(), force=True)
    assert read_recipe(path).recipe == Recipe(top_k=1)
    assert [one.name for one in tmp_path.iterdir()] == ["r.yaml"]
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for wrong in (tmp_path / "link", tmp_path / "absent" / "r.yaml"):
        with pytest.raises(OutputError):
            check_recipe_output(wrong)
    with pytest.raises(OutputError):
        check_recipe_output(tmp_path, force=True)


COMPOSED: dict[str, Recipe] = {
    "default": Recipe(weights={"code": 2.0}),
    "refined": Recipe(router="ridge", refine=1, device="cpu", top_k=1),
    "dense": Recipe(trunk="ties", trunk_options={"density": 0.5}, to="dense"),
    "remote code": Recipe(host="remote-code", router="domain-embedding", bias={"math": 1.0}),
    "ensemble": Recipe(to="ensemble", routing="task-vector"),
    "several architectures": Recipe(to="hetero", lead="math", lam=0.1, routing_tokens=0),
}


@pytest.mark.check(after=5)
@pytest.mark.parametrize("name", COMPOSED)
def test_a_composition_document_is_a_recipe_file(filled: Registry, tmp_path: Path, name: str) -> None:
    plan = filled.plan(["math", "code"], COMPOSED[name])
    path = tmp_path / MARKER
    path.write_text(json.dumps(plan.document), encoding="utf-8")
    file = read_recipe(path)
    assert file.members == tuple((member.name, member.version.digest) for member in plan.members)
    found = file.resolved(filled.catalog)
    assert (found.experts, found.members) == (("code@1", "math@1"), ())
    assert filled.plan(found.experts, found.recipe, base=found.base).digest == plan.digest


def test_a_composition_document_that_no_recipe_makes_is_refused(filled: Registry, tmp_path: Path) -> None:
    document, one = filled.plan(["math", "code"]).document, filled.plan(["code"]).document
    stranger: dict[str, Any] = {"members": [{"name": "code", "digest": "0" * 64}]}

    def written(document: dict[str, Any], **changes: Any) -> Path:
        (tmp_path / MARKER).write_text(json.dumps(document | changes), encoding="utf-8")
        return tmp_path / MARKER

    with pytest.raises(InvalidInputError, match="describes a trained composition, which no recipe makes"):
        read_recipe(written(document, parent="0" * 64, training={}))
    with pytest.raises(CheckpointError, match="lam is 1"):
        read_recipe(written(document, recipe=document["recipe"] | {"lam": 1}))
    with pytest.raises(CheckpointError):
        read_recipe(written(document, **stranger))
    with pytest.raises(NotFoundError, match="was composed of code 000000000000, which is not registered here"):
        read_recipe(written(one, **stranger)).resolved(filled.catalog)


@pytest.mark.check(after=6)
@pytest.mark.trust(after=13)
@pytest.mark.parametrize("name", METHODS)
def test_recipe_files_compose_as_their_methods_do(filled: Registry, name: str) -> None:
    assert {path.name for path in (DOCS / "recipes").iterdir()} == {f"{name}.yaml" for name in METHODS}
    path = DOCS / "recipes" / f"{name}.yaml"
    comment, rest = path.read_text(encoding="utf-8").split("\n", 1)
    assert re.fullmatch(r"# [^\n]{20,}\.", comment)
    assert "#" not in rest
    run = {key: value for key, value in next(METHODS[name].runs()).items() if key not in ("train_steps", "train_seed")}
    file = read_recipe(path)
    if run == {"to": "simoe"}:  # of experts that were trained together
        assert file.recipe == Recipe(to="simoe")
        with pytest.raises(IncompatibleError, match="not trained with others"):
            filled.plan(["code", "math"], file.recipe)
        return
    plan = filled.plan(["code", "math"], file.recipe)
    assert plan.document == filled.plan(["code", "math"], Recipe(**run)).document


def test_the_example_of_the_page_on_composing_is_a_recipe_file(tmp_path: Path) -> None:
    page = (DOCS / "tasks" / "compose.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    file = read(tmp_path, example)
    assert (file.experts, file.base) == (("code", "math@2"), "base")
    with pytest.raises(InvalidInputError) as caught:
        read(tmp_path, example.replace("top_k", "topk"))
    assert caught.value.message.replace(f"{tmp_path}/r.yaml:4", "recipe.yaml:4") in page
    assert f"next: {caught.value.hint}" in page


def test_fields_are_written_where_they_have_a_part_and_read_the_same_with_quotes_or_without() -> None:
    assert recipe_text(Recipe(router="ridge", lam=5.0).replace(router="random")) == recipe_text(Recipe(router="random"))
    assert "lam: 5.0\n" in recipe_text(Recipe(router="ridge", lam=5.0))
    for text in ("null", "no", "7", "1e3", "a b", "ä", "\U0001f600", '"', "\\", "- a", "x: y", "#", "a@2", "On"):
        written = next(one for one in recipe_text(Recipe(device=text)).splitlines() if one.startswith("device: "))
        assert parse_yaml(written.encode(), "r").plain == {"device": text}
