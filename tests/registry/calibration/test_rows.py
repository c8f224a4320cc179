"""Proves: rows of the shapes that instruction data has become text, and what a chat template wrote is known in it."""

import codecs
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from registry.calibration import Corpus, document_beginnings, evenly_spaced, random_places
from registry.calibration.corpus import Document
from registry.errors import CalibrationError
from tests.remarks import Remarks

CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|system|>Be kind.<|end|>{% endif %}"
    "<|{{ m.role }}|>\n{{ m.content | trim }}<|end|>\n{% endfor %}"
)
ROWS: dict[str, dict[str, Any]] = {
    "messages": {"messages": [{"role": "user", "content": "add 1 2"}, {"role": "assistant", "content": "3"}]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "add 1 2"}]},
                           {"role": "assistant", "content": "3"}]},
    "ShareGPT": {"conversations": [{"from": "human", "value": "add 1 2"}, {"from": "gpt", "value": "3"}]},
    "roles as messages": {"conversations": [{"role": "user", "content": "add 1 2"},
                                            {"role": "assistant", "content": "3"}]},
    "lists": {"prompt": [{"role": "user", "content": "add 1 2"}],
              "completion": [{"role": "assistant", "content": "3"}]},
    "Alpaca": {"instruction": "add 1 2", "input": "", "output": "3"},
    "response": {"instruction": "add 1 2", "response": "3"},
}  # fmt: skip
"""One conversation in every shape."""


def chatting(tokenizer: Any, template: str = CHATML) -> Any:
    return type(tokenizer)(tokenizer_object=tokenizer._tokenizer, bos_token="<eos>", chat_template=template)


def corpus(path: Path, rows: list[Any], tokenizer: Any, told: Remarks | None = None) -> Corpus:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Corpus([path], tokenizer, told or Remarks())


@pytest.mark.parametrize("shape", ROWS)
def test_every_shape_is_one_conversation(tmp_path: Path, tokenizer: Any, shape: str) -> None:
    if shape == "parts":  # as templates of models that see images take them
        template = CHATML.replace("m.content |", "(m.content if m.content is string else m.content[0].text) |")
    else:
        template = CHATML
    (document,) = corpus(tmp_path / "a.jsonl", [ROWS[shape]], chatting(tokenizer, template))
    assert document.text == "<|system|>Be kind.<|end|><|user|>\nadd 1 2<|end|>\n<|assistant|>\n3<|end|>\n"
    assert document.is_chat
    if shape != "parts":  # a column of a table has one type
        parquet.write_table(pa.Table.from_pylist([ROWS[shape]]), tmp_path / "a.parquet")
        assert list(Corpus([tmp_path / "a.parquet"], chatting(tokenizer))) == [document]


def test_tools_of_a_conversation_are_the_templates_text(tmp_path: Path, tokenizer: Any) -> None:
    tokenizer = chatting(tokenizer, "{% for t in tools or [] %}[{{ t.name }}]{% endfor %}" + CHATML)
    (document,) = corpus(tmp_path / "a.jsonl", [ROWS["messages"] | {"tools": [{"name": "sum"}]}], tokenizer)
    assert document.text.startswith("[sum]<|system|>")
    assert [document.text[slice(*place)] for _, place in document.contents(tokenizer)] == ["add 1 2", "3"]


def test_without_a_template_contents_are_joined_and_that_is_said_once(tmp_path: Path, tokenizer: Any) -> None:
    told = Remarks()
    found = corpus(tmp_path / "a.jsonl", list(ROWS.values()), tokenizer, told)
    assert list(found) == [Document("add 1 2\n\n3")] * len(ROWS)
    assert list(found) == [Document("add 1 2\n\n3")] * len(ROWS)
    assert told.sentences == ["the tokenizer has no chat template: contents of messages are joined by empty lines"]


def test_file_without_text_beside_others_is_told_once(tmp_path: Path, tokenizer: Any) -> None:
    empty, text, told = tmp_path / "empty.txt", tmp_path / "text.txt", Remarks()
    empty.write_text(" \n")
    text.write_text("add 1 2")
    found = Corpus([empty, text], tokenizer, told)
    assert list(found) == list(found) == [Document("add 1 2")]
    assert told.sentences == [f"{empty} holds no text"]


def test_texts_are_joined(tmp_path: Path, tokenizer: Any) -> None:
    """Prompt and completion as they are; an instruction has its input after it."""
    rows = [{"prompt": "The sky is", "completion": " blue."}, {"text": "plain", "messages": []}]
    found = corpus(tmp_path / "a.jsonl", rows, chatting(tokenizer))
    assert list(found) == [Document("The sky is blue."), Document("plain")]
    found = corpus(tmp_path / "a.jsonl", [{"instruction": "add", "input": "1 2", "output": "3"}], tokenizer)
    assert list(found) == [Document("add\n\n1 2\n\n3")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"conversations": [{"from": "judge", "value": "x"}]}, "a message has no speaker that is known, or no text"),
        (7, "has no fields"),
        ({"text": 7}, "has the fields text"),
        ({"messages": ["x"]}, "a message has no text: x"),
        ({"messages": [{"role": "user", "content": 7}]}, "a message has no text"),
        ({"instruction": "add", "input": "1 2"}, "has the fields instruction, input"),
        ({"prompt": "a", "completion": ["b"]}, "has the fields prompt, completion"),
    ],
)
def test_what_is_no_conversation_is_told_with_its_row(tmp_path: Path, tokenizer: Any, row: Any, message: str) -> None:
    with pytest.raises(CalibrationError, match=rf"a\.jsonl, row 2.*{message}") as caught:
        list(corpus(tmp_path / "a.jsonl", [{"text": "x"}, row], chatting(tokenizer)))
    assert caught.value.hint


def test_a_template_that_fails_is_told(tmp_path: Path, tokenizer: Any) -> None:
    failing = chatting(tokenizer, "{{ raise_exception('no') }}")
    with pytest.raises(CalibrationError, match=r"row 1: the tokenizer's chat template cannot render .*: no"):
        list(corpus(tmp_path / "a.jsonl", [ROWS["messages"]], failing))


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_a_byte_order_mark_is_no_text(tmp_path: Path, suffix: str) -> None:
    data = "text" if suffix == ".txt" else '{"text": "text"}\n{"text": "text"}\n'
    (tmp_path / f"data{suffix}").write_bytes(codecs.BOM_UTF8 + data.encode())
    assert {document.text for document in Corpus([tmp_path / f"data{suffix}"], None)} == {"text"}


TEMPLATES = {
    "trimmed": CHATML,
    "as it is": "{% for m in messages %}[{{ m.role }}] {{ m.content }} {% endfor %}",
    "thoughts removed": "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}</>{% endfor %}",
    "answers last": "{{ messages[0].content }}{% for m in messages[1:] %}\n> {{ m.content }}{% endfor %}",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_contents_are_found_whatever_the_template_makes_of_them(tokenizer: Any, template: str) -> None:
    tokenizer = chatting(tokenizer, TEMPLATES[template])
    messages = (
        {"role": "user", "content": " user asks <|end|> of system "},
        {"role": "assistant", "content": "<think>hm</think>a"},
        {"role": "user", "content": "user"},
    )
    document = Document(tokenizer.apply_chat_template(list(messages), tokenize=False), messages)
    roles, places = zip(*document.contents(tokenizer), strict=True)
    assert roles == ("user", "assistant", "user")
    found = [document.text[slice(*place)] for place in places]
    answer = "a" if template == "thoughts removed" else "<think>hm</think>a"
    assert [text.strip() for text in found] == ["user asks <|end|> of system", answer, "user"]


def test_a_template_that_is_not_understood_leaves_all_text_counted(tokenizer: Any) -> None:
    tokenizer = chatting(tokenizer, "{{ 'A' if messages[0].content == 'x' else 'B' }}{{ messages[0].content }}")
    document = Document("Ax", ({"role": "user", "content": "x"},))
    assert list(document.contents(tokenizer)) == [(None, (0, 2))]


@pytest.mark.parametrize("way", ["anywhere", "all of it", "beginnings", "evenly"])
def test_windows_know_which_tokens_people_wrote(tmp_path: Path, tokenizer: Any, way: str) -> None:
    """Counts of contents are those of the contents' own tokens, and activations still see the whole text."""
    words = ["court", "party", "law", "act", "claim"]
    tokenizer, contents = chatting(tokenizer), [" ".join(words[n % 5] for n in range(k, k + 9)) for k in range(40)]
    tokens = torch.tensor([token for text in contents for token in tokenizer(text)["input_ids"]])
    rows = [{"messages": [{"role": "user", "content": text}]} for text in contents]
    path = corpus(tmp_path / "a.jsonl", rows, tokenizer)
    take = {
        "anywhere": lambda: random_places(path, tokenizer, tokens=64, seq_len=32, seed=0),
        "all of it": lambda: random_places(path, tokenizer, tokens=10**6, seq_len=32, seed=0),
        "beginnings": lambda: document_beginnings(path, tokenizer, tokens=10**6, seq_len=400, seed=0),
        "evenly": lambda: evenly_spaced(path, tokenizer, windows=4, seq_len=32),
    }
    found = take[way]()
    assert found.written is not None
    written, counts = found.counts(320, found.written), found.counts(320)
    assert int(counts.sum()) == found.tokens
    assert bool((written <= counts).all())
    assert set(written.nonzero().flatten().tolist()) <= set(tokens.tolist())
    kept = tokenizer.decode(found.ids[found.keep & found.written])
    assert {word for word in kept.split() if word in words} == set(words)
    assert "Be kind" not in kept
    assert "<|" not in kept
    if way in ("all of it", "beginnings"):
        assert torch.equal(written, torch.bincount(tokens, minlength=320))


def test_plain_text_has_no_template(tmp_path: Path, tokenizer: Any) -> None:
    found = corpus(tmp_path / "a.jsonl", [{"text": "law act"}] * 9, chatting(tokenizer))
    windows = random_places(found, tokenizer, tokens=64, seq_len=8, seed=0)
    assert windows.written is None
