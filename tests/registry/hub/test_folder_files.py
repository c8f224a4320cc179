"""Proves: a composed folder reaches the Hub byte for byte, in one commit, with a card that says what is known of it."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, snapshot_download

from registry import EnsembleRecipe, ExtractionSettings, HeteroRecipe, Recipe, Registry, TestSettings
from registry.composition.cards.pushed import without_additions
from registry.errors import CheckpointError, ConflictError, InvalidInputError
from registry.hub.target import Target
from registry.io.model_folder import MARKER
from tests.conftest import Zoo, files_of
from tests.writable_hub import WritableHub


@pytest.fixture(scope="module")
def _licensed_home(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("licensed") / "home"
    with Registry(home) as registry:
        for name, license_id in (("code", "mit"), ("math", "apache-2.0")):
            registry.add_expert(name, zoo.experts[name], license=license_id)
    return home


@pytest.fixture
def licensed(_licensed_home: Path, tmp_path: Path) -> Iterator[Registry]:
    """A registry with experts under licenses that go together."""
    with Registry(shutil.copytree(_licensed_home, tmp_path / "licensed")) as opened:
        yield opened


def fetched(repo_id: str, to: Path, revision: str | None = None) -> Path:
    """Return a repository's folder as anybody fetches it."""
    return Path(snapshot_download(repo_id, revision=revision, local_dir=to))


@pytest.mark.check
def test_a_folder_comes_back_byte_for_byte(licensed: Registry, hub: WritableHub, tmp_path: Path) -> None:
    plan = licensed.compose(["code", "math"], tmp_path / "moe", Recipe(trunk="mean"))
    pushed = licensed.push(tmp_path / "moe", "org/moe")
    assert (pushed.repo_id, pushed.revision, pushed.added) == ("org/moe", "main", True)
    assert pushed.commit == hub.repositories["org/moe"].revisions["main"]
    sent, made = hub.files("org/moe"), files_of(tmp_path / "moe")
    assert sent.keys() == made.keys()
    assert {name for name in made if sent[name] != made[name]} == {"README.md"}
    assert without_additions(sent["README.md"]) == made["README.md"]
    assert hub.messages == [
        (f"Composition {plan.digest[:12]} of code, math", f"Pushed by expert-registry.\n\ncomposition {plan.digest}")
    ]
    back = fetched("org/moe", tmp_path / "back")
    assert {name: data for name, data in files_of(back).items() if not name.startswith(".")} == sent
    assert licensed.reproduce(back).is_same
    assert [file.name for file in licensed.reproduce(back).files if file.state == "pushed"] == ["README.md"]
    again = licensed.push(back, "org/moe")  # what was fetched is what was composed
    assert (again.added, again.commit) == (False, pushed.commit)
    assert len(hub.messages) == 1


@pytest.mark.check
def test_every_kind_of_composition_can_be_pushed(
    licensed: Registry, zoo: Zoo, hub: WritableHub, tmp_path: Path
) -> None:
    recipes: dict[str, Any] = {
        "dense": Recipe(to="dense"),
        "ensemble": EnsembleRecipe(),
        "bodies": HeteroRecipe(),
        "remote": Recipe(trunk="mean", host="remote-code", router="ridge", lam="auto"),
        "default": Recipe(),
    }
    for name, recipe in recipes.items():
        licensed.compose(["code", "math"], tmp_path / name, recipe)
        licensed.push(tmp_path / name, f"org/{name}")
        made = files_of(tmp_path / name)
        assert {key: data for key, data in hub.files(f"org/{name}").items() if key != "README.md"} == {
            key: data for key, data in made.items() if key != "README.md"
        }
        card = ModelCard(hub.files(f"org/{name}")["README.md"].decode())
        card.validate()
        assert "fani2026dume" in card.text
    assert "li2022btm" in (tmp_path / "ensemble" / "README.md").read_text()
    assert "zhou2025mergeme" in (tmp_path / "bodies" / "README.md").read_text()
    licensed.add_base("base", zoo.base, license="apache-2.0")
    licensed.check_push(licensed.plan([], from_base=4), "org/copies")
    licensed.compose([], tmp_path / "copies", from_base=4)
    licensed.push(tmp_path / "copies", "org/copies")
    assert "license: apache-2.0" in (tmp_path / "copies" / "README.md").read_text()
    assert licensed.reproduce(fetched("org/copies", tmp_path / "back")).is_same
    assert "wortsman2022soups" in (tmp_path / "dense" / "README.md").read_text()
    assert "vllm" not in (tmp_path / "remote" / "README.md").read_text()


@pytest.mark.check
def test_the_card_says_what_the_registry_knows(registry: Registry, zoo: Zoo, hub: WritableHub, tmp_path: Path) -> None:
    registry.add_base("base", zoo.base, license="mit")
    registry.add_expert("code", zoo.experts["code"], license="mit", tags={"language": "code,en"})
    registry.add_expert("math", zoo.experts["math"], license="cc-by-4.0", tags={"language": "de", "hub": "org/mathe"})
    pushed = registry.push_expert("code", "org/code-expert")
    registry.compose(["code", "math"], tmp_path / "moe", Recipe(trunk="ties"))
    settings = TestSettings(windows=2, seq_len=32, batch_size=2)
    registry.evaluate([tmp_path / "moe"], {name: [zoo.test[name]] for name in ("code", "math")}, settings, oracle=True)
    tried = ExtractionSettings(documents=3, prefix=8, continued=4, samples=2, device="cpu")
    (audited,) = registry.audit_extraction([tmp_path / "moe"], [zoo.test["math"]], tried)
    before = files_of(tmp_path / "moe")
    registry.push(tmp_path / "moe", "org/moe")
    assert files_of(tmp_path / "moe") == before
    card = ModelCard(hub.files("org/moe")["README.md"].decode())
    card.validate()
    data: Any = card.data
    assert (data.license, data.base_model, data["base_model_relation"]) == (
        "cc-by-4.0",
        ["org/code-expert", "org/mathe"],
        "merge",
    )
    assert (data.library_name, data.pipeline_tag, data.language) == (
        "transformers",
        "text-generation",
        ["code", "de", "en"],
    )
    assert {"merge", "moe", "mixture-of-experts", "expert-registry", "mixtral"} <= set(data.tags)
    (evaluation,) = registry.evaluations(registry.compositions()[0])
    found = {(one.dataset_type, one.metric_type): one.metric_value for one in data.eval_results}
    for domain in ("code", "math"):
        assert found[domain, "perplexity"] == round(evaluation.document["figures"]["perplexity"][domain], 4)
        assert found[domain, "score"] == round(evaluation.document["figures"]["score"][domain], 4)
    page = card.text
    for said in (
        f"| code | code@1 | `{registry.resolve('code').digest[:12]}` | [org/code-expert]",
        f"$ reg add-expert code hf://org/code-expert@{pushed.commit}",
        "| base | base@1 |",
        "not known",
        "## Scores",
        "## Extraction",
        f"| `{audited.data[:12]}` | {audited.extracted} of 3 | {audited.mean:.3f} | {max(audited.similarity):.3f} |",
        "AutoModelForCausalLM",
        "vllm serve",
        "reg reproduce",
        "## Limits",
        *("fani2026dume", "yadav2023ties", "zhou2025mergeme"),
    ):
        assert said in page, said
    assert "jin2022regmean" not in page


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize(
    ("licenses", "why"),
    [
        (("mit", None), "no license was given for math"),
        (("gpl-3.0", "llama3.1"), "code is under gpl-3.0 and math under llama3.1, and neither may go into the other"),
        (("mit", "home-made"), "math is under 'home-made', of which nothing is known here"),
    ],
)
def test_licenses_that_come_to_none_are_refused(
    registry: Registry, zoo: Zoo, hub: WritableHub, tmp_path: Path, licenses: tuple[str | None, ...], why: str
) -> None:
    for name, license_id in zip(("code", "math"), licenses, strict=True):
        registry.add_expert(name, zoo.experts[name], license=license_id)
    registry.compose(["code", "math"], tmp_path / "moe", Recipe(trunk="mean"))
    assert why in (tmp_path / "moe" / "README.md").read_text()
    assert "\nlicense:" not in (tmp_path / "moe" / "README.md").read_text()
    with pytest.raises(InvalidInputError, match="cannot be published") as caught:
        registry.push(tmp_path / "moe", "org/moe")
    assert why in caught.value.message
    assert "--license" in str(caught.value.hint)
    with pytest.raises(InvalidInputError, match="cannot be published"):
        registry.check_push(registry.plan(["code", "math"]), "org/moe")
    assert hub.repositories == {}
    registry.push(tmp_path / "moe", "org/moe", license="other")
    data: Any = ModelCard(hub.files("org/moe")["README.md"].decode()).data
    assert data.license == "other"


def test_a_license_that_was_chosen_stands_in_place_of_the_members(
    licensed: Registry, hub: WritableHub, tmp_path: Path
) -> None:
    licensed.compose(["code", "math"], tmp_path / "moe", Recipe(trunk="mean"))
    licensed.push(tmp_path / "moe", "org/moe", license="GPL-3.0")
    card = hub.files("org/moe")["README.md"]
    data: Any = ModelCard(card.decode()).data
    assert data.license == "gpl-3.0"
    assert without_additions(card) == (tmp_path / "moe" / "README.md").read_bytes()
    assert b"license: apache-2.0" in without_additions(card)


def test_what_is_no_unchanged_composition_is_refused(licensed: Registry, hub: WritableHub, tmp_path: Path) -> None:
    made = tmp_path / "moe"
    licensed.compose(["code", "math"], made, Recipe(trunk="mean"))

    def changed(name: str, change: Callable[[Path], object]) -> Path:
        folder = shutil.copytree(made, tmp_path / name)
        change(folder)
        return folder

    weights = "model.safetensors"
    cases = {
        "more": (lambda f: (f / "notes.txt").write_text("x"), "notes.txt is not a file of the composition"),
        "less": (lambda f: (f / weights).unlink(), f"{weights} is missing"),
        "other": (lambda f: (f / weights).write_bytes(b"x" + (f / weights).read_bytes()[1:]), "was changed since"),
        "card": (lambda f: (f / "README.md").write_text("---\nlicense: mit\n---\n"), "README.md was changed since"),
        "document": (
            lambda f: (f / MARKER).write_text((f / MARKER).read_text().replace('"top_k": 1', '"top_k": 2')),
            f"{MARKER} was changed since",
        ),
        "none": (lambda f: (f / MARKER).unlink(), f"has no {MARKER}"),
    }
    for name, (change, said) in cases.items():
        with pytest.raises(CheckpointError) as caught:
            licensed.push(changed(name, change), "org/moe")
        assert said in f"{caught.value.message} {caught.value.hint}", name
    assert hub.repositories == {}
    licensed.opt_out("math")
    with pytest.raises(ConflictError, match="math@1, which was opted out"):
        licensed.push(made, "org/moe")
    assert hub.repositories == {}


@pytest.mark.check
def test_a_push_is_noted_for_receipts(licensed: Registry, hub: WritableHub, tmp_path: Path) -> None:
    plan = licensed.compose(["code", "math"], tmp_path / "moe", Recipe(trunk="mean"))
    licensed.compose(["code"], tmp_path / "alone", Recipe(trunk="mean"))
    pushed = licensed.push(tmp_path / "moe", "org/moe")
    expert = licensed.push_expert("math", "org/math")
    licensed.push(tmp_path / "alone", "org/alone")
    hub.refusing = {"POST commit": (500, "down", None)}
    with pytest.raises(Exception, match="HTTP 500"):
        licensed.push(tmp_path / "moe", "org/later")
    assert [event.action for event in licensed.log(plan.digest)] == ["push", "push", "push", "compose"]
    licensed.opt_out("math", receipt=tmp_path / "receipt.json")
    places = json.loads((tmp_path / "receipt.json").read_bytes())["not_erased"]["pushed"]
    assert places == [
        {"repo": "org/moe", "revision": "main", "endpoint": hub.url, "commit": pushed.commit},
        {"repo": "org/math", "revision": "main", "endpoint": hub.url, "commit": expert.commit},
        {"repo": "org/later", "revision": "main", "endpoint": hub.url, "commit": None},
    ]
    assert licensed.verify_receipt(tmp_path / "receipt.json").problems == []
    document = json.loads((tmp_path / "receipt.json").read_bytes())
    document["not_erased"]["pushed"].pop(1)
    (tmp_path / "less.json").write_text(json.dumps(document))
    (problem,) = licensed.verify_receipt(tmp_path / "less.json").problems
    assert problem == "withdrawn versions were pushed to org/math, main, which is not in the receipt"


def test_targets_are_read() -> None:
    assert Target.parse("org/x") == Target.parse("hf://org/x") == Target("org/x")
    assert Target.parse("org/x@v1").branch == Target.parse("org/x", revision="v1").branch == "v1"
    for wrong in ("x", "org/x/y", "org/", "org/x@", "hf://"):
        with pytest.raises(InvalidInputError):
            Target.parse(wrong)
    with pytest.raises(InvalidInputError, match="two revisions"):
        Target.parse("org/x@v1", revision="v2")
