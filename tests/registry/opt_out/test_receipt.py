"""Proves: a receipt says what an opt-out did, holds as long as that is so, and fails at whatever contradicts it."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from registry import Recipe, Registry
from registry.errors import ConflictError, InvalidInputError, NotFoundError, OutputError
from registry.io.model_folder import MARKER
from registry.opt_out.receipt import NOT_ERASED, receipt_file
from store.arrays import FolderArrays
from tests.conftest import Zoo, array_folder, files_of


@pytest.fixture(scope="module")
def place(_filled_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with some compositions and math opted out, the compositions, and the receipt."""
    place = tmp_path_factory.mktemp("receipt")
    with Registry(shutil.copytree(_filled_home, place / "home")) as registry:
        one = {"code": 2.0}
        registry.compose(["math", "code", "law"], place / "moe", Recipe(top_k=3, weights=one, balance="tokens"))
        registry.compose(["math", "code"], place / "biased", Recipe(router="domain-embedding", bias={"math": 0.5}))
        registry.compose(["math", "law"], place / "dense", Recipe(to="dense", trunk="ties"))
        registry.compose(["math", "code"], place / "ensemble", Recipe(to="ensemble", routing="task-vector"))
        registry.compose(["math"], place / "alone")
        registry.compose(["code", "law"], place / "others")
        plan = registry.plan(["code", "math"])
        trained = plan.document | {"parent": plan.digest, "training": {"steps": 1}}
        registry.catalog.record_composition(
            "f" * 64, trained, [m.version for m in plan.members], str(place / "trained")
        )
        registry.opt_out("math", purge=True, receipt=place / "receipt.json")
    return place


@pytest.fixture
def withdrawn(place: Path, tmp_path: Path) -> Iterator[Registry]:
    """A registry of its own like that of `place`, with the other composition and the receipt beside it."""
    shutil.copytree(place / "others", tmp_path / "others")
    shutil.copy(place / "receipt.json", tmp_path)
    with Registry(shutil.copytree(place / "home", tmp_path / "home")) as opened:
        yield opened


@pytest.fixture
def made(place: Path) -> dict[str, Any]:
    """The receipt's document."""
    document: dict[str, Any] = json.loads((place / "receipt.json").read_bytes())
    return document


def rewrite(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


@pytest.mark.check
def test_receipt_says_what_was_done(withdrawn: Registry, made: dict[str, Any], place: Path) -> None:
    (version,) = [v for v in withdrawn.versions(everything=True) if v.name == "math"]
    assert made["versions"] == [
        {
            "ref": "math@1",
            "digest": version.digest,
            "withdrawn_at": version.withdrawn_at,
            "purged_at": version.purged_at,
        }
    ]
    assert (made["registry"], made["head"]) == (withdrawn.catalog.id, withdrawn.log(limit=1)[0].digest)
    assert len(made["deleted"]["arrays"]) > 10
    assert made["deleted"]["bytes"] == withdrawn.log(limit=1)[0].details["bytes"]
    assert not any(array_folder(withdrawn, digest).exists() for digest in made["deleted"]["arrays"])
    assert all(array_folder(withdrawn, one["digest"]).exists() and one["versions"] for one in made["shared"])
    folders = [str(place / name) for name in ("moe", "biased", "dense", "ensemble", "alone", "trained")]
    assert made["not_erased"] == {"folders": folders, "pushed": [], "copies": NOT_ERASED, "remains": []}
    expected: dict[str, Any] = {  # the same recipes without it, as anybody would ask for them
        "moe": withdrawn.plan(["code", "law"], Recipe(top_k=2, weights={"code": 2.0}, balance="tokens")),
        "biased": withdrawn.plan(["code"], Recipe(router="domain-embedding")),
        "dense": withdrawn.plan(["law"], Recipe(to="dense", trunk="ties")),
        "ensemble": withdrawn.plan(["code"], Recipe(to="ensemble", routing="task-vector")),
    }
    found = {Path(one["folders"][0]).name: one for one in made["compositions"]}
    for name, plan in expected.items():
        members = [{"name": m.name, "digest": m.version.digest} for m in plan.members]
        assert found[name]["recomposed"] == {"digest": plan.digest, "members": members}
    assert (found["alone"]["recomposed"], found["alone"]["why"]) == (None, "no member remains")
    assert found["trained"]["recomposed"] is None
    assert found["trained"]["why"].startswith("its weights were trained with all members together")
    text = (place / "receipt.json").read_text()
    assert text == json.dumps(made, indent=2, sort_keys=True) + "\n"
    assert [path.name for path in place.glob(".*")] == []


@pytest.mark.check
def test_receipt_holds_and_goes_on_holding(withdrawn: Registry, made: dict[str, Any], zoo: Zoo, tmp_path: Path) -> None:
    before = files_of(tmp_path / "others")
    check = withdrawn.verify_receipt(tmp_path / "receipt.json", [tmp_path / "others"])
    assert (check.problems, check.notes) == ([], [])
    assert json.loads(json.dumps(check.receipt.document())) == made
    withdrawn.alias("code", "good")
    withdrawn.compose(["code"], tmp_path / "later")
    withdrawn.opt_out("code", purge=True)
    check = withdrawn.verify_receipt(tmp_path / "receipt.json")
    assert check.problems == []
    assert len(check.notes) == 3
    assert "can no longer be recomposed: it holds code@1, which was opted out" in check.notes[0]
    for name in ("law", "german", "biomed", "base"):
        withdrawn.opt_out(name, purge=True)
    withdrawn.add_expert("law", zoo.experts["law"])  # brings back what is anybody's, such as the tokenizer
    assert withdrawn.verify_receipt(tmp_path / "receipt.json").problems == []
    assert files_of(tmp_path / "others") == before


@pytest.mark.check
def test_after_another_withdrawal_the_remedy_is_another_receipt(withdrawn: Registry, zoo: Zoo, tmp_path: Path) -> None:
    withdrawn.add_expert("math", zoo.experts["math"])
    withdrawn.compose(["math", "code"], tmp_path / "since", Recipe(to="ensemble", routing="task-vector"))
    withdrawn.opt_out("math", purge=True)
    check = withdrawn.verify_receipt(tmp_path / "receipt.json")
    assert check.problems
    assert all("write a new receipt: reg opt-out VERSION --receipt FILE" in remedy for remedy in check.remedies)


@pytest.mark.check
def test_without_purge_a_receipt_tells_of_the_withdrawal_of_a_base_model_too(filled: Registry, tmp_path: Path) -> None:
    filled.compose(["math", "code"], tmp_path / "ties", Recipe(trunk="ties"))
    filled.opt_out("base", receipt=tmp_path / "base.json")
    (one,) = json.loads((tmp_path / "base.json").read_bytes())["compositions"]
    assert one["recomposed"] is None  # the recipe needs it
    assert one["why"].startswith("it holds base@1, which was opted out at ")
    filled.opt_out("math", receipt=tmp_path / "first.json")
    first = json.loads((tmp_path / "first.json").read_bytes())
    assert (first["deleted"], first["versions"][0]["purged_at"]) == ({"arrays": [], "bytes": 0}, None)
    filled.opt_out("math", purge=True, receipt=tmp_path / "second.json")
    for name in ("base", "first", "second"):
        assert filled.verify_receipt(tmp_path / f"{name}.json").problems == []


@pytest.mark.check
@pytest.mark.trust(after=1)
@pytest.mark.parametrize("where", ["before", "amid", "after"])
def test_purge_that_was_interrupted_has_its_whole_receipt_when_repeated(
    filled: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    filled.compose(["math", "code"], tmp_path / "moe")
    links = {link.digest for link in filled.arrays_of(filled.resolve("math"))}
    sizes = {digest: filled.arrays.disk_bytes(digest) for digest in links}
    delete, left = FolderArrays.delete, {"before": 0, "amid": 5, "after": len(links)}[where]

    def interrupted(*words: Any) -> Any:
        raise KeyboardInterrupt

    def some(store: FolderArrays, digest: str) -> int:
        nonlocal left
        left -= 1
        return delete(store, digest) if left >= 0 else interrupted()

    with monkeypatch.context() as patch:
        patch.setattr(FolderArrays, "delete", some)
        patch.setattr("registry.opt_out.opting_out.make_receipt", interrupted)
        with pytest.raises(KeyboardInterrupt):
            filled.opt_out("math", purge=True, receipt=tmp_path / "receipt.json")
    assert not (tmp_path / "receipt.json").exists()
    for name in ("receipt", "again"):
        filled.opt_out("math", purge=True, receipt=tmp_path / f"{name}.json")
        made = json.loads((tmp_path / f"{name}.json").read_bytes())
        deleted, shared = set(made["deleted"]["arrays"]), {one["digest"] for one in made["shared"]}
        assert deleted | shared == links
        assert deleted & shared == set()
        assert shared == links & filled.catalog.referenced() != set()
        assert made["deleted"]["bytes"] == sum(sizes[digest] for digest in deleted)
        assert filled.verify_receipt(tmp_path / f"{name}.json").problems == []


def test_place_of_the_receipt_is_made_sure_of_before_anything_is_withdrawn(filled: Registry, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("x")
    for path, message in ((tmp_path / "taken", "never overwritten"), (tmp_path / "no" / "x", "is not a folder")):
        with pytest.raises(OutputError, match=message):
            filled.opt_out("math", purge=True, receipt=path)
    assert filled.resolve("math").state == "active"
    assert (tmp_path / "taken").read_text() == "x"


def test_two_receipts_in_one_file_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    with receipt_file(path, "math"):
        with pytest.raises(OutputError, match="another command is writing"), receipt_file(path, "code"):
            pytest.fail("both write it")
        assert (tmp_path / ".receipt.json.partial").exists()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".receipt.json.partial").write_text("{")  # of an interruption
    with receipt_file(path, "math"):
        pass
    assert list(tmp_path.iterdir()) == []


def assert_told(registry: Registry, file: Path, folder: Path, message: str) -> None:
    """Assert that a receipt is contradicted, and that no remedy is to delete what is another's."""
    check = registry.verify_receipt(file, [folder])
    assert any(message in problem for problem in check.problems), (message, check.problems)
    assert check.remedies, message
    assert not any(remedy.startswith("delete ") and "others" in remedy for remedy in check.remedies), message


OF_THE_REGISTRY = {
    "UPDATE versions SET state = 'active' WHERE state = 'purged'": "math@1 is not withdrawn",
    "UPDATE versions SET state = 'withdrawn' WHERE state = 'purged'": "math@1 is not purged",
    "UPDATE events SET at = '2020' WHERE action = 'opt-out'": "the log: event 14 (opt-out",
    "DELETE FROM events WHERE action = 'gc'": "the log has no event of digest",
}


@pytest.mark.check(after=1)
@pytest.mark.parametrize("statement", OF_THE_REGISTRY)
def test_catalog_that_contradicts_a_receipt_is_told(withdrawn: Registry, tmp_path: Path, statement: str) -> None:
    with withdrawn.catalog._writing() as session:
        session.execute(sqlalchemy.text(statement))
    assert_told(withdrawn, tmp_path / "receipt.json", tmp_path / "others", OF_THE_REGISTRY[statement])


Edit = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], object]
"""A change of a receipt, whose version and first composition are given too."""
OF_THE_RECEIPT: dict[str, Edit] = {
    "math@1 was withdrawn at 20": lambda made, version, first: version.update(withdrawn_at="2020"),
    "was withdrawn; the registry has math@1 of content": lambda made, version, first: version.update(digest="0" * 64),
    "the receipt names no version": lambda made, version, first: made["versions"].clear(),
    "was made from withdrawn versions, and is not in the": lambda made, version, first: made["compositions"].pop(0),
    "composition 000000000000 was not made from": lambda made, version, first: first.update(digest="0" * 64),
    "which is not in the receipt": lambda made, version, first: first.update(folders=[]),
    "the receipt says 000000000000": lambda made, version, first: first["recomposed"].update(digest="0" * 64),
    "its members are not the remaining ones": lambda made, version, first: first["recomposed"]["members"].append(
        {"name": "math", "digest": version["digest"]}
    ),
}


@pytest.mark.check
def test_receipt_that_was_changed_is_told(withdrawn: Registry, made: dict[str, Any], tmp_path: Path) -> None:
    early = withdrawn.log(limit=9)[-1].digest
    before: dict[str, Edit] = {"no opt-out of math@1 before the receipt": lambda made, *_: made.update(head=early)}
    for message, edit in {**OF_THE_RECEIPT, **before}.items():
        changed = deepcopy(made)
        edit(changed, changed["versions"][0], changed["compositions"][0])
        rewrite(tmp_path / "receipt.json", changed)
        assert_told(withdrawn, tmp_path / "receipt.json", tmp_path / "others", message)


def marker(before: str, after: str) -> Callable[[Path], object]:
    """Return a change of a folder's composition.json."""
    return lambda folder: (folder / MARKER).write_text((folder / MARKER).read_text().replace(before, after, 1))


OF_A_FOLDER: dict[str, Callable[[Path], object]] = {
    "config.json was changed": lambda folder: (folder / "config.json").write_text("{}"),
    "config.json is missing": lambda folder: (folder / "config.json").unlink(),
    "x is not a file of the composition": lambda folder: (folder / "x").write_text("x"),
    "others/composition.json: the recipe: weights is {'code': 1.0, 'law': 1.0}, this program would write": marker(
        '"law"', '"lax"'
    ),
    "composition.json was changed since it was written": marker('"temperature": 0.05', '"temperature": 0.5'),
    "was not composed by this program": lambda folder: (folder / MARKER).unlink(),
}


@pytest.mark.check
def test_folder_that_was_changed_and_an_array_that_is_back_are_told(
    withdrawn: Registry, made: dict[str, Any], place: Path, tmp_path: Path
) -> None:
    for number, (message, change) in enumerate(OF_A_FOLDER.items()):
        folder = shutil.copytree(place / "others", tmp_path / str(number) / "others")
        change(folder)
        assert_told(withdrawn, tmp_path / "receipt.json", folder, message)
    array_folder(withdrawn, made["deleted"]["arrays"][0]).mkdir(parents=True)
    assert_told(withdrawn, tmp_path / "receipt.json", tmp_path / "others", "exists, and no version uses it")


@pytest.mark.check
def test_folder_and_content_that_still_hold_it_are_told(
    withdrawn: Registry, made: dict[str, Any], place: Path, zoo: Zoo, tmp_path: Path
) -> None:
    digest = made["versions"][0]["digest"]
    check = withdrawn.verify_receipt(tmp_path / "receipt.json", [place / "moe"])
    (problem,) = check.problems
    assert check.remedies == [f"delete {place / 'moe'}, and every copy of it"]
    assert problem == f"{place / 'moe'} holds math@1: its {MARKER} names math {digest[:12]}"
    withdrawn.add_expert("math", zoo.experts["math"])
    problems = withdrawn.verify_receipt(tmp_path / "receipt.json").problems
    weights, text = problems
    assert re.fullmatch(r"6 deleted arrays exist again, such as \w{12}: math@2 uses them as mlp, such as .*", weights)
    assert re.fullmatch(r"the deleted array \w{12} exists again: math@2 uses it as calibration ids", text)


def test_what_is_no_receipt_of_this_registry_is_refused(
    withdrawn: Registry, made: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "receipt.json"
    with pytest.raises(NotFoundError, match="is not a file"):
        withdrawn.verify_receipt(tmp_path / "absent")
    with Registry(tmp_path / "elsewhere") as other, pytest.raises(ConflictError, match="belongs to the registry"):
        other.verify_receipt(path)
    for changes, message in (
        ({"format": 2}, "has format 2, this program reads 1"),
        ({"head": "x"}, "head is 'x', it must be a digest"),
        ({"more": 1}, "has a key 'more'"),
        ({"deleted": {"arrays": ["../x"], "bytes": 1}}, "arrays is ['../x'], it must be a list of which each is"),
        ({"versions": [dict(made["versions"][0], ref="math")]}, "math is not of the form NAME@NUMBER"),
        ({"compositions": [{}]}, "compositions has no key 'digest'"),
        ({"shared": [1]}, "shared is not a JSON object"),
    ):
        rewrite(path, made | changes)
        with pytest.raises(InvalidInputError) as told:
            withdrawn.verify_receipt(path)
        assert message in told.value.message
    path.write_text("[")
    with pytest.raises(InvalidInputError, match="is not JSON"):
        withdrawn.verify_receipt(path)
