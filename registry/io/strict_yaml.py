"""YAML that somebody else may have written: mappings, lists, text, numbers, true, false and null, with line numbers.

Words and numbers are read as in YAML 1.2, so that `no` is text and `1e-3` a number. Anchors, aliases, tags, directives,
several documents and a key that comes twice are refused, and no object is ever constructed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from registry.errors import InvalidInputError
from registry.io.limits import YAML_BYTES, YAML_DEPTH, YAML_VALUES

Scalar = str | int | float | bool | None

_WORDS: dict[str, Scalar] = {"": None, "~": None}
for _word, _value in (("null", None), ("true", True), ("false", False)):
    _WORDS |= dict.fromkeys((_word, _word.title(), _word.upper()), _value)
_WHOLE = re.compile(r"[-+]?[0-9]{1,40}")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]{1,40}|[0-9]{1,40}(?:\.[0-9]{0,40})?)(?:[eE][-+]?[0-9]{1,4})?")
_HINT = "docs/recipes has an example of every method"


@dataclass(frozen=True)
class Located:
    """A value and its line, from 1 on; of a value in a mapping, that of its key."""

    value: "Scalar | list[Located] | dict[str, Located]"
    line: int

    @property
    def plain(self) -> object:
        """The value without line numbers."""
        if isinstance(self.value, list):
            return [item.plain for item in self.value]
        if isinstance(self.value, dict):
            return {key: item.plain for key, item in self.value.items()}
        return self.value


def parse_yaml(data: bytes, where: str) -> Located:
    """Read one YAML document, of a file called `where` (InvalidInputError, with the line: it is none, or refused)."""
    if len(data) > YAML_BYTES:
        raise InvalidInputError(f"{where} has {len(data):,} bytes, the limit is {YAML_BYTES:,}", _HINT)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(f"{where}:{line}: it is not UTF-8", "save it as UTF-8") from error
    try:
        _check_events(yaml.parse(text, Loader=yaml.SafeLoader), where)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise InvalidInputError(
            f"{where}:{line}: it is not valid YAML: {error.problem or error.context}", _HINT
        ) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InvalidInputError(f"{where}:{line}: it has a character that YAML does not allow", _HINT) from error
    return Located(None, 1) if node is None else _located(node, where, node.start_mark.line + 1)


def _check_events(events: Iterator[yaml.Event], where: str) -> None:
    """Check the structure before a tree is built of it."""
    depth = values = documents = 0
    for event in events:
        refused = None
        if isinstance(event, yaml.AliasEvent):
            refused = f"an alias (*{event.anchor[:80]})"
        elif getattr(event, "anchor", None):
            refused = f"an anchor (&{event.anchor[:80]})"
        elif getattr(event, "tag", None):
            refused = f"a tag ({event.tag[:80]})"
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            refused = "a directive" if event.version or event.tags else "a second document" if documents > 1 else None
        if refused:
            raise InvalidInputError(f"{where}:{event.start_mark.line + 1}: it has {refused}", "write the values out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        values += isinstance(event, yaml.NodeEvent)
        if depth > YAML_DEPTH:
            message = f"{where}:{event.start_mark.line + 1}: it is nested deeper than {YAML_DEPTH} levels"
            raise InvalidInputError(message, _HINT)
        if values > YAML_VALUES:
            raise InvalidInputError(f"{where} holds more than {YAML_VALUES:,} values", _HINT)


def _located(node: yaml.Node, where: str, line: int) -> Located:
    if isinstance(node, yaml.SequenceNode):
        return Located([_located(item, where, item.start_mark.line + 1) for item in node.value], line)
    if not isinstance(node, yaml.MappingNode):
        return Located(_scalar(node), line)
    items: dict[str, Located] = {}
    for key_node, value_node in node.value:
        at = key_node.start_mark.line + 1
        key = _scalar(key_node) if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise InvalidInputError(f"{where}:{at}: a key is not text", "put it in quotes")
        if key in items:
            message = f"{where}:{at}: the key {key[:80]!r} appears twice, first in line {items[key].line}"
            raise InvalidInputError(message, "keep one of them")
        items[key] = _located(value_node, where, at)
    return Located(items, line)


def _scalar(node: yaml.Node) -> Scalar:
    text = str(node.value)
    if node.style is not None:  # quoted, or a block
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
