"""Proves: a chat template is no evidence: experts are known by what people wrote, and statistics see the whole text.

Two skills of one tiny chat model, whose examples differ in length only: the shorter ones hold more of the template.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from registry import PassSettings, Recipe, Registry
from registry.calibration import Calibration
from registry.composition import Plan
from registry.errors import CheckpointError
from registry.families.sites import CONTENT_COUNTS, MLP_INPUT, TOKEN_COUNTS
from registry.hosts.remote_code import REMOTE_CODE
from registry.methods.moe.context import evidence_of, past_weights, scores_of, turns_of
from registry.statistics import file as statistics_file
from registry.statistics.collect import collect_to
from tests.conftest import Zoo
from tests.models import WORDS, make_model, save_checkpoint, train_tokenizer
from tests.registry.composition.test_context_routing import assert_same, chosen, expected
from tests.registry.hosts.test_hosts import load
from tests.remarks import Remarks

TEMPLATE = (
    "<|im|>system\nthe court shall print a list of heart and brain in a river night<|end|>\n"
    "{% for m in messages %}<|im|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
)
SETTINGS = PassSettings(tokens=2048, seq_len=64, batch_size=4)


def chat_tokenizer() -> Any:
    tokenizer = train_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im|>", "<|end|>"]})
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def conversations(path: Path, words: str, answer: int) -> Path:
    """Write questions in some words, and answers of so many."""
    listed = words.split()
    rows = []
    for number in range(120):
        said = [listed[(number * 7 + k * k) % len(listed)] for k in range(6 + answer)]
        turns = [{"role": "user", "content": " ".join(said[:6])}, {"role": "assistant", "content": " ".join(said[6:])}]
        rows.append(json.dumps({"messages": turns}))
    path.write_text("\n".join(rows))
    return path


@pytest.fixture(scope="module")
def skills(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Two experts with their conversations, of the same words of two domains, in short and in long."""
    root, tokenizer = tmp_path_factory.mktemp("skills"), chat_tokenizer()
    made = {}
    for seed, (name, words, answer) in enumerate((("long", WORDS["code"], 60), ("short", WORDS["math"], 3)), 1):
        model = make_model("llama", 400 + seed, vocab_size=322)
        made[name] = (
            save_checkpoint(model, root / name, tokenizer),
            conversations(root / f"{name}.jsonl", words, answer),
        )
    return made


def prompt(question: str) -> Calibration:
    """The tokens of a question as a chat, all of which the router sees."""
    tokenizer = chat_tokenizer()
    text = tokenizer.apply_chat_template([{"role": "user", "content": question}], tokenize=False)
    ids = torch.tensor([tokenizer(text)["input_ids"]], dtype=torch.int32)
    return Calibration(ids, torch.tensor([ids.shape[1]], dtype=torch.int32), "prompt")


def register(registry: Registry, skills: dict[str, tuple[Path, Path]], sites: str = "counts") -> Plan:
    for name, (folder, data) in skills.items():
        settings = replace(SETTINGS, sites=sites)
        registry.add_expert(name, folder, data=[data], settings=settings, allow_unrelated=True)
    return registry.plan(["long", "short"], Recipe(trunk="mean", router="context"))


@pytest.mark.check
def test_the_template_is_evidence_of_nobody(registry: Registry, skills: dict[str, tuple[Path, Path]]) -> None:
    """A question goes to the expert of its words.

    With the template counted, a question of the long skill goes to the expert of the short one until it is read.
    """
    plan = register(registry, skills, "all")
    evidence = evidence_of(plan)
    for member in plan.members:
        counts, contents = member.token_counts, member.evidence_counts
        assert int(counts.sum()) == member.statistics(MLP_INPUT, 0).count < int(contents.sum())
        assert int(counts[320:].sum()) > 0  # the marks were in the text
        assert int(contents[320:].sum()) == 0
    assert evidence[320:].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert plan.output.warnings(plan) == ()
    asked = prompt(" ".join(WORDS["code"].split()[:2]))
    own = scores_of(plan, asked.ids, asked.keep, evidence)[0]
    old = replace(plan, members=tuple(as_before(member) for member in plan.members))
    before = scores_of(old, asked.ids, asked.keep, evidence_of(old))[0]
    assert own[-1].argmax() == 0
    assert before[-1].argmax() == 1
    assert (own.argmax(dim=1) == 0).float().mean() > (before.argmax(dim=1) == 0).float().mean()


@pytest.mark.check
def test_tokens_of_the_template_hardly_tell_chats_and_other_text_apart(
    registry: Registry, skills: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    """A chat has "user" before each question, which contents of messages never have, and other text may have."""
    register(registry, skills)
    (tmp_path / "text.txt").write_text("the user and the assistant of the court\n" * 300)
    settings = replace(SETTINGS, sites="counts")
    registry.add_expert("plain", skills["short"][0], data=[tmp_path / "text.txt"], settings=settings)
    plan = registry.plan(["long", "plain"], Recipe(trunk="mean", router="context"))
    turns = turns_of(plan)
    assert turns is not None
    words = sorted(turns.tokens)
    assert any(map(str.isalpha, chat_tokenizer().decode(words)))
    assert plan.members[1].evidence_counts[words].sum() > 0
    found, told = evidence_of(plan)[words], evidence_of(plan, in_place=True)[words]
    assert float(told[:, 0].min()) < -1 < float(found[:, 0].min()) < 0  # the mean of two members is 0: two nats apart
    both = registry.plan(["long", "short"], Recipe(trunk="mean", router="context"))
    assert torch.equal(evidence_of(both), evidence_of(both, in_place=True))


@pytest.mark.check
def test_fast_window_is_longer_beside_an_expert_of_conversations(
    registry: Registry, skills: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    register(registry, skills)
    text = tmp_path / "text.jsonl"
    text.write_text(json.dumps({"text": WORDS["math"]}) + "\n")
    settings = replace(SETTINGS, sites="counts")
    registry.add_expert("plain", skills["short"][0], data=[text], settings=settings)
    recipe = Recipe(trunk="mean", router="context", context_window=16.0, host=REMOTE_CODE)
    for names, tau in (["long", "plain"], 8), (["plain"], 4):
        fast = past_weights(registry.plan(names, recipe), 80)[1]
        assert fast is not None
        assert fast.tolist() == torch.exp(-torch.arange(80, dtype=torch.float64) / tau).tolist()
    plan = registry.compose(["long", "plain"], tmp_path / "moe", recipe)
    words = "\n".join(" ".join(WORDS[name].split()[:20]) for name in ("math", "code", "math"))
    ids = chat_tokenizer()(words, return_tensors="pt").input_ids
    assert json.loads((tmp_path / "moe" / "config.json").read_text())["context_fast"] == 8
    assert_same(chosen(load(tmp_path / "moe"), ids), plan, ids)
    assert len(expected(plan, ids)[0].unique()) == 2  # the test can fail: both are chosen


def as_before(member: Any) -> Any:
    """Return a member as it was registered before contents were counted apart."""
    return replace(member, arrays=tuple(link for link in member.arrays if link.name != CONTENT_COUNTS))


@pytest.mark.check
def test_a_version_from_before_keeps_its_bytes_and_says_what_to_do(
    registry: Registry, skills: dict[str, tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("registry.calibration.windows.Document.contents", lambda self, _: [(None, (0, len(self.text)))])
        plan = register(registry, skills)
    assert {member.content["computed"]["evidence"] for member in plan.members} == {"text"}
    warnings = plan.output.warnings(plan)
    assert [warning.refs for warning in warnings] == [("long@1",), ("short@1",)]
    assert "short@1 is known by its chat template too: <|" in warnings[1].reason
    assert "reg add-expert short CKPT --data FILE" in warnings[1].remedy
    assert warnings[1].figure > warnings[0].figure > 0
    with monkeypatch.context() as patch:
        patch.setattr("registry.methods.moe.preview._CONVERSATION", 1)  # so these are few in so many tokens
        assert plan.output.warnings(plan) == ()
    plan = register(registry, skills)  # the same command once more
    assert [member.version.ref for member in plan.members] == ["long@2", "short@2"]
    assert [version.ref for version in registry.versions()] == ["long@1", "long@2", "short@1", "short@2"]
    assert plan.output.warnings(plan) == ()
    folder, data = skills["long"]
    assert not registry.add_expert("long", folder, data=[data], settings=replace(SETTINGS, sites="counts")).added


@pytest.mark.check(after=1)
@pytest.mark.parametrize("sites", ["counts", "all"])
def test_counts_of_contents_travel_with_the_statistics(
    registry: Registry, skills: dict[str, tuple[Path, Path]], tmp_path: Path, sites: str
) -> None:
    """Those that contradict themselves are refused."""
    (folder, data), settings = skills["long"], replace(SETTINGS, sites=sites)
    carrying = shutil.copytree(folder, tmp_path / "carrying")
    path, collected = collect_to(folder, carrying, data=[data], settings=settings)
    found = statistics_file.load(path)
    assert found.content_counts is not None
    assert collected.content_counts is not None
    assert collected.token_counts is not None
    assert torch.equal(found.content_counts, collected.content_counts)
    assert found.computed["evidence"] == "contents"
    direct = registry.add_expert("long", folder, data=[data], settings=settings).version
    assert registry.add_expert("long", carrying).version == direct
    assert {TOKEN_COUNTS, CONTENT_COUNTS} <= {link.name for link in registry.arrays_of(direct)}
    without = {key: value for key, value in collected.computed.items() if key != "evidence"}
    read = {key: value for key, value in collected.computed.items() if key != "evidence_text"}
    below = replace(collected, content_counts=-collected.content_counts)
    more_than_read = replace(collected, computed=read)
    for forged in (below, more_than_read, replace(collected, computed=without)):
        statistics_file.save(path, forged)
        with pytest.raises(CheckpointError, match="its counts of contents are not counts of the tokens"):
            registry.add_expert("long", carrying)
    pairs = collected.pair_counts
    assert pairs is not None
    assert found.pair_counts is not None
    assert torch.equal(found.pair_counts, pairs)
    assert torch.equal(registry_pairs(registry), pairs)
    without = {key: value for key, value in collected.computed.items() if key != "evidence_pairs"}
    unknown, often, once = pairs.clone(), pairs.clone(), pairs.clone()
    unknown[-1, 1], often[0, 2], once[0, 2] = 322, 2**31 - 1, 1
    wrong = [pairs.flip(0), pairs[:, :2], -pairs, unknown, often, once, pairs[[0, 0]]]
    for forged in [replace(collected, pair_counts=own) for own in wrong] + [replace(collected, computed=without)]:
        statistics_file.save(path, forged)
        with pytest.raises(CheckpointError, match="its counts of pairs are not counts of pairs"):
            registry.add_expert("long", carrying)


def registry_pairs(registry: Registry) -> torch.Tensor:
    """Return the stored pairs of the expert "long"."""
    plan = registry.plan(["long"], Recipe(trunk="mean", router="context"))
    pairs = plan.members[0].pair_counts
    assert pairs is not None
    assert pairs.dtype == torch.int32
    assert int(pairs[:, 2].min()) >= 2
    return pairs


def test_pairs_are_counted_within_windows_and_among_what_was_written() -> None:
    ids = torch.tensor([[1, 2, 1, 2, 3], [1, 2, 3, 1, 2], [2, 3, 2, 3, 2]], dtype=torch.int32)
    text = Calibration(ids, torch.tensor([5, 5, 4], dtype=torch.int32), "text")
    assert text.pairs(9).tolist() == [[1, 2, 4], [2, 3, 4]]
    written = torch.ones_like(ids, dtype=torch.bool)
    written[0, 1] = False
    assert text.pairs(9, written).tolist() == [[1, 2, 3], [2, 3, 4]]


@pytest.mark.check
def test_few_tokens_are_remarked_on(registry: Registry, bare: Path, zoo: Zoo, tmp_path: Path) -> None:
    """Fewer than a window, or than the hidden size, which is 32; tokens that are only counted need no Gram."""
    registry.progress = told = Remarks()

    def said(text: str, window: int, sites: str = "all") -> str:
        told.sentences.clear()
        (tmp_path / "data.jsonl").write_text(json.dumps({"text": text}))
        settings = PassSettings(tokens=512, seq_len=window, batch_size=4, sites=sites)
        registry.add_expert("code", bare, data=[tmp_path / "data.jsonl"], settings=settings)
        return "\n".join(line for line in told.sentences if line.startswith("only "))

    assert "only 3 tokens were counted, fewer than one window of 16: what is solved from them" in said("law", 16)
    some = " ".join(WORDS["law"].split()[:9])
    assert "fewer than the hidden size, 32" in said(some, 4)
    assert said(some, 4, "counts") == ""
    assert said(" ".join([some] * 9), 4) == ""
