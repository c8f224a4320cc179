"""Proves: a base model that counted text of its own takes the text that no adapter knows, and changes nothing there."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from registry import PassSettings, Recipe, Registry
from registry.calibration.calibration import Turns, sample_conversations
from registry.composition.route import route
from registry.errors import CalibrationError, IncompatibleError
from registry.methods import adapters
from registry.methods.adapters.plan import FEW_TOKENS, _before_user
from registry.progress import silent
from registry.runtime.gates import force_expert, record_routing
from registry.runtime.loading import load_model, load_tokenizer
from tests.conftest import Zoo, files_of
from tests.registry.checkpoint.test_adapter import train
from tests.registry.methods.adapters.test_compose_adapters import TO, logits

COUNTS = PassSettings(tokens=512, seq_len=32, batch_size=1, sites="counts")
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def chat_base(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zoo's base model with a chat template."""
    folder = tmp_path_factory.mktemp("chat") / "base"
    folder.mkdir()
    for name, data in files_of(zoo.base).items():
        (folder / name).write_bytes(data)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    config = json.loads((folder / "tokenizer_config.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def sampled(base: Path, **changed: int) -> Any:
    tokenizer, model = load_tokenizer(base), load_model(base, "float32", "cpu")
    turns = Turns.of(tokenizer)
    assert turns is not None
    sizes = {"tokens": 300, "seq_len": 48, "batch_size": 4} | changed
    return turns, sample_conversations(model, turns, [2], **sizes, progress=silent)


def test_conversations_are_framed_by_the_template_and_only_messages_are_written(chat_base: Path) -> None:
    turns, text = sampled(chat_base)
    assert text.tokens == 300
    tokenizer = load_tokenizer(chat_base)
    whole = tokenizer.apply_chat_template(
        [{"role": "user", "content": "the court"}], tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(turns.before) + "the court" + tokenizer.decode(turns.between) == whole
    for row, length, written in zip(text.ids.tolist(), text.lengths.tolist(), text.written.tolist(), strict=True):
        ids, own = row[:length], written[:length]
        assert ids[: len(turns.before)] == list(turns.before)[:length]
        assert not any(own[: len(turns.before)])
        assert not any(written[length:])
        if length == 300 % 48 or length < len(turns.before) + len(turns.between) + 2:
            continue  # the last one, cut
        start = own.index(True)
        stop = own.index(False, start) if False in own[start:] else length
        assert ids[stop : stop + len(turns.between)] == list(turns.between)[: length - stop]
    again = sampled(chat_base)[1]
    assert again.digest == text.digest


def test_windows_without_room_are_refused(chat_base: Path) -> None:
    with pytest.raises(CalibrationError, match="a conversation needs"):
        sampled(chat_base, seq_len=8)


def test_base_model_takes_what_no_expert_knows(chat_base: Path, zoo: Zoo, tmp_path: Path) -> None:
    names = ["law", "math"]
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", chat_base)
        for name in names:
            adapter = train(zoo.base, tmp_path / name, target_modules=["q_proj", "up_proj"])
            registry.add_expert(name, adapter, base="base", data=[zoo.train[name]], settings=COUNTS)
        without = registry.compose(names, tmp_path / "without", TO)
        assert any("--own-text" in note for note in without.notes)
        assert not any("few tokens" in note for note in without.notes)
        registered = registry.add_base("base", chat_base, own_text=600)  # later, and the adapters are of it too
        assert registered.added
        assert registered.version.number == 2
        assert [one.site for one in registered.version.statistics] == ["token_counts"]
        plan = registry.compose(names, tmp_path / "with", TO)
        assert not any("--own-text" in note for note in plan.notes)
        few = [note for note in plan.notes if note.startswith("few tokens were counted of ")]
        sizes = {member.version.ref: int(member.evidence_counts.sum()) for member in plan.members}
        assert min(sizes.values()) < FEW_TOKENS <= max(sizes.values())
        assert [f"{ref} (" in few[0] for ref in sizes] == [size < FEW_TOKENS for size in sizes.values()]
        assert plan.document["base"]["digest"] == registered.version.digest
        assert [member["name"] for member in plan.document["members"]] == names
        assert "$ reg add-base base CKPT --own-text 600    #" in (tmp_path / "with" / "README.md").read_text()
        assert registry.reproduce(tmp_path / "with").is_same
        registry.add_base("other", chat_base, own_text=1)  # the same weights under another name, which knows less
        assert registry.plan(names, TO).digest == plan.digest
        registry.add_base("another", chat_base, own_text=900)
        assert registry.plan(names, TO).document["base"]["name"] == "another"
        registry.opt_out("another")
        with pytest.raises(IncompatibleError, match="base@2 is a base model, which takes what no expert knows"):
            registry.plan(["base", *names], TO)
        ranked = registry.plan(names, TO.replace(rank=3))
        assert [note for note in ranked.notes if note not in plan.notes] == [
            "rank changes nothing: adapters keep their ranks, and no matrix was trained in full"
        ]
        left = registry.compose(names, tmp_path / "left", TO.replace(no_base_member=True))
        assert not any("--own-text" in note for note in left.notes)
        assert (
            load_file(tmp_path / "left" / "model.safetensors").keys()
            == load_file(tmp_path / "without" / "model.safetensors").keys()
        )
        told, untold = (json.loads((tmp_path / name / "config.json").read_bytes()) for name in ("left", "without"))
        assert told == untold
    model = load_model(tmp_path / "with", "float32", "cpu")
    assert model.config.members == ["law", "math", "base"]
    assert model.config.context_pairs == len(model.pairs) > 0
    with force_expert(model, 2):
        assert torch.equal(logits(model), logits(load_model(zoo.base, "float32", "cpu")))
    assert_template_is_no_evidence(tmp_path / "with", model)
    own = torch.tensor([model.evidence[:, 2].topk(20).indices.tolist()])
    text = load_tokenizer(chat_base).decode(own[0])
    assert route(tmp_path / "with", text, "cpu").experts == ("law", "math", "base")


def experts(model: Any, ids: list[int], parts: int = 1, padding: int = 0) -> list[int]:
    """Return the expert of each token, which come in so many parts, after tokens that are masked."""
    found, cache, ids = list[int](), None, [0] * padding + ids
    mask = torch.tensor([[0] * padding + [1] * (len(ids) - padding)])
    size = -(-len(ids) // parts)
    for start in range(0, len(ids), size):
        part = torch.tensor([ids[start : start + size]])
        with torch.no_grad(), record_routing(model) as routings:
            given = {"input_ids": part, "attention_mask": mask[:, : start + part.shape[1]], "use_cache": True}
            cache = model(**given, cache=cache).cache
        found += routings[0].chosen[0][:, 0].tolist()
    return found[padding:]


def assert_template_is_no_evidence(folder: Path, model: Any) -> None:
    """Check that the words of a template go to the base model, and those after them where they go without it."""
    turns = Turns.of(load_tokenizer(folder))
    assert turns is not None
    before = list(turns.before)
    assert model.config.context_prefix == before
    assert len(before) > 2
    words = [int(token) for expert in (0, 1) for token in model.evidence[:, expert].topk(9).indices]
    alone = experts(model, words)
    assert set(alone) == {0, 1}
    for parts, padding in ((1, 0), (1, 5), (len(before + words), 0), (4, 3)):
        assert experts(model, before + words, parts, padding) == [2] * len(before) + alone, (parts, padding)
    held, model.thresholds[0, 0] = float(model.thresholds[0, 0]), -1.0  # nothing is no less than -1, and says nothing
    assert experts(model, before) == [2] * len(before)
    model.thresholds[0, 0] = held
    model.config.context_prefix = []
    assert experts(model, before + words) != [2] * len(before) + alone  # the test can fail
    model.config.context_prefix = before
    between = [list(turns.between), list(turns.after)]
    assert model.config.context_turns == between
    assert model.config.context_next == between[1]
    assert min(map(len, between)) > 2
    spans = [(before, False), (words[:9], True), (between[0], False), (words[:9], True), (between[1], False)]
    spans.append((words[9:], True))
    talk = [token for span, _ in spans for token in span]
    own = [number for number, written in enumerate(w for span, w in spans for _ in span) if written]
    alone = experts(model, [*words[:9], *words])
    model.config.context_next = []
    for parts, padding in ((1, 0), (1, 5), (len(talk), 0), (4, 3)):
        found = experts(model, talk, parts, padding)
        assert [found[number] for number in own] == alone, (parts, padding)
    model.config.context_turns = []
    found = experts(model, talk)
    assert [found[number] for number in own] != alone  # the test can fail
    model.config.context_turns = between
    assert_question_counts_more(model, turns, words)
    config = json.loads((folder / "config.json").read_text())
    pick = adapters.AdapterPicker(folder, config)
    for ids in (before + words, talk):
        for number in range(1, len(ids) + 1):
            assert pick(ids[:number]).number == experts(model, ids[:number])[-1]


def assert_question_counts_more(model: Any, turns: Turns, words: list[int]) -> None:
    """Check that the mean of a question after an answer is of a window further: what was before counts 1 / e."""
    usual = [*turns.before, *words[:9] * 2, *turns.between, *words[:9], *turns.after, *words[9:]]
    fast, model.config.context_fast = model.config.context_fast, 0.0
    without = experts(model, usual)
    model.config.context_next = list(turns.after)
    found = experts(model, usual)
    assert sum(found) > sum(without)  # the question's expert is number 1
    assert found[: -len(words[9:])] == without[: -len(words[9:])]
    for parts, padding in ((1, 5), (len(usual), 0), (4, 3)):
        assert experts(model, usual, parts, padding) == found, (parts, padding)
    model.config.context_fast = fast


def test_base_model_without_a_template_writes_plain_text(zoo: Zoo, tmp_path: Path) -> None:
    with Registry(tmp_path / "home") as registry:
        registered = registry.add_base("base", zoo.base, own_text=200)
        assert registered.self_sampled
        assert registered.version.statistics[0].tokens == 200
        assert not registry.add_base("base", zoo.base, own_text=200).added
        assert Recipe(to="adapters").output.name == "adapters"


def test_experts_of_conversations_are_behind_in_documents(zoo: Zoo, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    for name, data in files_of(zoo.base).items():
        (base / name).write_bytes(data)
    (base / "chat_template.jinja").write_text(TEMPLATE.replace("<{{", "{{ bos_token }}<{{"))
    rows = [json.loads(line)["text"] for line in zoo.train["math"].read_text().splitlines()[:40]]
    texts = [json.loads(line)["text"] for line in zoo.train["law"].read_text().splitlines()]
    talks = [{"messages": [{"role": "user", "content": row}, {"role": "assistant", "content": row}]} for row in rows]
    (tmp_path / "math.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    with Registry(tmp_path / "home") as registry:
        registry.add_base("base", base)
        for name, text in {"law": zoo.train["law"], "math": tmp_path / "math.jsonl"}.items():
            adapter = train(zoo.base, tmp_path / name, target_modules=["q_proj"])
            registry.add_expert(name, adapter, base="base", data=[text], settings=COUNTS)
        registry.compose(["law", "math"], tmp_path / "out", TO)
        both = [zoo.train["law"], tmp_path / "math.jsonl"]
        both_added = registry.add_expert("both", tmp_path / "law", base="base", data=both, settings=COUNTS)
        assert both_added.version.content is not None
        documents = both_added.version.content["computed"]["evidence_documents"]
        whole = [load_tokenizer(base).apply_chat_template(talk["messages"], tokenize=False) for talk in talks]
        plain, framed = (sum(map(len, told)) for told in (texts, whole))
        assert documents == math.ceil(1000 * plain / (plain + framed))
        registry.compose(["both", "law", "math"], tmp_path / "three", TO)
        form = json.loads((tmp_path / "three" / "config.json").read_bytes())["context_form"]
        assert form == [-math.log(documents / 1000), 0.0, 5.0]
    model, tokenizer = load_model(tmp_path / "out", "float32", "cpu"), load_tokenizer(base)
    turns = Turns.of(tokenizer)
    assert turns is not None
    user = list(turns.before)
    assert (model.config.context_form, model.config.context_user) == ([0.0, 5.0], user)
    ahead = model.evidence[:, 1] - model.evidence[:, 0]  # by less than the form tells, of a text of nine tokens
    words = (((ahead > 0.1) & (ahead < 2)).nonzero()[:, 0].tolist() * 9)[:9]
    after = [*words[:5], *user, *words[5:]]

    def scores(ids: list[int]) -> torch.Tensor:
        """What the experts of tokens are chosen by, (S, E)."""
        found, model.adapter_gate.top_k = list[torch.Tensor](), 1
        hook = model.adapter_gate.register_forward_hook(lambda gate, args, output: found.append(output))
        model(input_ids=torch.tensor([ids]), use_cache=False)
        hook.remove()
        model.adapter_gate.top_k = 2
        return found[0].view(len(ids), -1)

    with torch.no_grad():
        found = scores(after)
        chosen = experts(model, after, len(after)), experts(model, after, 3, 2), experts(model, after)
        model.config.context_form = []
        usual, window, count = scores(after), model.config.context_window, 0.0
        model.config.context_form = [0.0, 5.0]
    for place in range(5):
        count = count * math.exp(-1 / window) + 1
        less = torch.tensor([0.0, 5.0 * (0.8 + 0.2 * count) / count]).to(found)
        torch.testing.assert_close(usual[place] - found[place], less, rtol=1e-6, atol=1e-9)  # of sums in another order
    begun = 5 + len(user) - 1  # the last token of what begins a message
    assert torch.equal(usual[begun:], found[begun:])
    assert not torch.equal(usual[begun - 1], found[begun - 1])
    assert chosen[0] == chosen[1] == chosen[2]
    pick = adapters.AdapterPicker(tmp_path / "out", json.loads((tmp_path / "out" / "config.json").read_bytes()))
    assert [pick(after[: number + 1]).number for number in range(len(after))] == chosen[0]
    assert chosen[0] != experts(model, [*user, *after])[len(user) :]  # with a user's message before them


def test_tokens_before_a_users_message_begin_with_a_special_one() -> None:
    special = frozenset({1, 2})
    assert _before_user(Turns((1, 8, 2, 1, 9, 7), (2, 5), (2, 1, 9, 7), special)) == [1, 9, 7]
    assert _before_user(Turns((1, 9, 7), (2, 5), (), special)) == [1, 9, 7]
    assert _before_user(Turns((9, 7), (2, 5), (2, 9, 7), special)) == []
    assert _before_user(Turns((1, 9), (2, 5), (2, 7), special)) == []
