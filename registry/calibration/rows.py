"""Rows of files as documents: plain text, conversations, and the shapes that instruction data has.

    {"text": …}                                            as it is
    {"messages": [{"role": …, "content": …}, …]}           a conversation; `tools` beside it describes what it may call
    {"conversations": [{"from": …, "value": …}, …]}        the same (ShareGPT)
    {"instruction": …, "input": …, "output": …}            a question and its answer (Alpaca; `input` may be missing)
    {"prompt": …, "completion": …}                         texts joined as they are, or two lists of messages (TRL)

A conversation becomes text by the tokenizer's chat template. Without one, its contents are joined by empty lines.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]

FIELDS = (
    *("text", "messages", "tools", "conversations", "instruction", "input", "output", "response"),
    *("prompt", "completion"),
)
"""Fields of a row that are read."""

SHAPES = "'text', 'messages', 'conversations', 'instruction' with 'output', or 'prompt' with 'completion'"

_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bot"), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "function", "observation", "function_response"), "tool"),
}
"""Speakers of ShareGPT's conversations → roles of a chat template."""

_MARK = "\ue000{}\ue001"
"""What stands for the content of a message where the template's own text is looked for: characters of no language."""


@dataclass(frozen=True)
class Document:
    """A text.

    Attributes:
        text: the text.
        messages: the conversation that a chat template made it of, with its own start token; None for other text.
        tools: descriptions of the tools of the conversation, which the template writes.
    """

    text: str
    messages: tuple[Message, ...] | None = None
    tools: Any = None

    @property
    def is_chat(self) -> bool:
        """True if a chat template made it."""
        return self.messages is not None

    def contents(self, tokenizer: Any) -> Iterator[tuple[int, int]]:
        """Yield where the contents of messages stand: the first character of each and the one after its last, in order.

        What stands between them is the template's. It is found by rendering the conversation once more, with marks in
        place of contents. A template whose own text depends on contents is not understood: all text then counts as
        content.
        """
        assert self.messages is not None
        marked = [{**message, "content": _MARK.format(number)} for number, message in enumerate(self.messages)]
        pieces = list[str]()
        try:
            rest = str(tokenizer.apply_chat_template(marked, tools=self.tools, tokenize=False))
            for one in marked:
                piece, mark, rest = rest.partition(one["content"])
                pieces += [piece] if mark else []
        except Exception:  # templates are programs of the checkpoint's author
            pieces = []
        if (
            not pieces
            or len(pieces) < len(marked)
            or not self.text.startswith(pieces[0])
            or not self.text.endswith(rest)
        ):
            yield 0, len(self.text)
            return
        end = len(pieces[0])
        for message, after in zip(self.messages, [*pieces[1:], rest], strict=True):
            begin, end = end, self._end(end, content_of(message), after)
            yield begin, end
            end += len(after)

    def _end(self, begin: int, content: str, after: str) -> int:
        """Return the character after a content that begins somewhere, before the template's text `after`."""
        for written in (content, content.strip()):
            if self.text.startswith(written + after, begin):
                return begin + len(written)
        found = self.text.find(after, begin) if after else -1  # the template changed the content
        return len(self.text) if found < 0 else found


def messages_of(row: Any) -> list[Any] | None:
    """Return the conversation in a row; None if it has none.

    Raises:
        ValueError: its messages are not a conversation; the message says why.
    """
    if not isinstance(row, dict):
        return None
    if isinstance(row.get("messages"), list):
        return list(row["messages"])
    if isinstance(row.get("conversations"), list):
        return [_spoken(message) for message in row["conversations"]]
    if all(isinstance(row.get(key), list) for key in ("prompt", "completion")):
        return [*row["prompt"], *row["completion"]]
    answer = next((row[key] for key in ("output", "response") if isinstance(row.get(key), str)), None)
    if isinstance(row.get("instruction"), str) and answer is not None:
        asked = [row["instruction"], *([row["input"]] if row.get("input") else [])]
        return [{"role": "user", "content": "\n\n".join(map(str, asked))}, {"role": "assistant", "content": answer}]
    return None


def text_of(row: Any) -> str | None:
    """Return the plain text in a row; None if it has none."""
    if isinstance(row, dict) and isinstance(row.get("text"), str):
        return str(row["text"])
    if isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("prompt", "completion")):
        return f"{row['prompt']}{row['completion']}"
    return None


def content_of(message: Any) -> str:
    """Return the text of a message, of which only text may be a part.

    Raises:
        ValueError: it has none.
    """
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "\n".join(str(part["text"]) for part in content if isinstance(part, Mapping) and "text" in part)
    if content is None and isinstance(message, Mapping) and "role" in message:
        return ""  # of a call of a tool
    if not isinstance(content, str):
        raise ValueError(f"a message has no text: {str(message)[:80]}")
    return content


def _spoken(message: Any) -> Message:
    """Return a message of ShareGPT's form as one of a chat template's."""
    if isinstance(message, Mapping) and "role" in message:
        return message
    speaker = message.get("from") if isinstance(message, Mapping) else None
    if speaker not in _ROLES or not isinstance(message.get("value"), str):
        raise ValueError(f"a message has no speaker that is known, or no text: {str(message)[:80]}")
    return {"role": _ROLES[speaker], "content": message["value"]}
