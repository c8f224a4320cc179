"""Proves: a composed folder reaches the Hub byte for byte, in one commit, with a card that says what is known of it."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, snapshot_download

from registry import ExtractionSettings, Recipe, Registry, TestSettings
from registry.composition.card import without_additions
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


def fetched(repo_id: str, to: Path) -> Path:
    """Return a repository's folder as anybody fetches it."""
    return Path(snapshot_download(repo_id, local_dir=to))


def card_data(card: bytes) -> Any:
    """Return the metadata of a card that is valid."""
    read = ModelCard(card.decode())
    read.validate()
    return read.data


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
    licensed.push(back, "org/other", license="GPL-3.0")  # in place of the members'
    card = hub.files("org/other")["README.md"]
    assert card_data(card).license == "gpl-3.0"
    assert without_additions(card) == made["README.md"]
    assert b"license: apache-2.0" in made["README.md"]


@pytest.mark.check
def test_every_kind_of_composition_can_be_pushed(
    licensed: Registry, zoo: Zoo, hub: WritableHub, tmp_path: Path
) -> None:
    recipes: dict[str, tuple[Any, str]] = {
        "dense": (Recipe(to="dense"), "wortsman2022soups"),
        "ensemble": (Recipe(to="ensemble"), "li2022btm"),
        "bodies": (Recipe(to="hetero"), "zhou2025mergeme"),
        "remote": (Recipe(trunk="mean", host="remote-code", router="ridge"), "fani2026dume"),
        "default": (Recipe(), "fani2026dume"),
    }
    for name, (recipe, cited) in recipes.items():
        licensed.compose(["code", "math"], tmp_path / name, recipe)
        licensed.push(tmp_path / name, f"org/{name}")
        made, sent = files_of(tmp_path / name), hub.files(f"org/{name}")
        assert cited in made.pop("README.md").decode()
        card = sent.pop("README.md")
        card_data(card)
        assert b"fani2026dume" in card
        assert sent == made
    assert "vllm" not in (tmp_path / "remote" / "README.md").read_text()
    licensed.add_base("base", zoo.base, license="apache-2.0")
    licensed.check_push(licensed.plan([], from_base=4), "org/copies")
    licensed.compose([], tmp_path / "copies", from_base=4)
    licensed.push(tmp_path / "copies", "org/copies")
    assert "license: apache-2.0" in (tmp_path / "copies" / "README.md").read_text()
    assert licensed.reproduce(fetched("org/copies", tmp_path / "back")).is_same


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
    sent = hub.files("org/moe")["README.md"]
    data, page = card_data(sent), sent.decode()
    assert (data.license, data.base_model, data["base_model_relation"]) == (
        "cc-by-4.0",
        ["org/code-expert", "org/mathe"],
        "merge",
    )
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")
    assert data.language == ["code", "de", "en"]
    assert {"merge", "moe", "mixture-of-experts", "expert-registry", "mixtral"} <= set(data.tags)
    (evaluation,) = registry.evaluations(registry.compositions()[0])
    found = {(one.dataset_type, one.metric_type): one.metric_value for one in data.eval_results}
    for domain in ("code", "math"):
        assert found[domain, "perplexity"] == round(evaluation.document["figures"]["perplexity"][domain], 4)
        assert found[domain, "score"] == round(evaluation.document["figures"]["score"][domain], 4)
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
def test_licenses_that_come_to_none_are_refused_unless_one_is_chosen(
    registry: Registry, zoo: Zoo, hub: WritableHub, tmp_path: Path
) -> None:
    registry.add_expert("code", zoo.experts["code"], license="gpl-3.0")
    registry.add_expert("math", zoo.experts["math"], license="llama3.1")
    registry.compose(["code", "math"], tmp_path / "moe", Recipe(trunk="mean"))
    card, why = (tmp_path / "moe" / "README.md").read_text(), "code is under gpl-3.0 and math under llama3.1, and"
    assert why in card
    assert "\nlicense:" not in card
    for push in (
        lambda: registry.push(tmp_path / "moe", "org/moe"),
        lambda: registry.check_push(registry.plan(["code", "math"]), "org/moe"),
    ):
        with pytest.raises(InvalidInputError, match="cannot be published") as caught:
            push()
        assert why in caught.value.message
        assert "--license" in str(caught.value.hint)
    assert hub.repositories == {}
    registry.push(tmp_path / "moe", "org/moe", license="other")
    assert card_data(hub.files("org/moe")["README.md"]).license == "other"


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
