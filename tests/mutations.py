"""Inputs that are nearly right, or quite wrong: bytes and JSON documents changed at random, from a seeded draw."""

import copy
import json
import random
from typing import Any

Draw = random.Random

_NUMBERS = (-1, 0, 1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**39, 10**400, -(2**63) - 1)
_FLOATS = (0.5, -0.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf"))
_TEXTS = (
    *("", "x", "../x", "/etc/passwd", "a/b", "..", "x" * 300, "x" * 20_000, "\x00", "a\nb", "\x1b[31m"),
    *("'; DROP TABLE experts; --", "%s%n{0}", "ｃｏｄｅ", "соde", "\u202ecode", "e\u0301", "🙂", "\ud800"),
    *("NaN", "0" * 64, "NoneType", "__class__"),
)


def value(draw: Draw, depth: int = 0) -> Any:
    """Return any JSON value, the strange ones as likely as others."""
    kind = draw.randrange(9 if depth < 3 else 6)
    if kind == 0:
        return draw.choice((None, True, False))
    if kind in (1, 2):
        return draw.choice(_NUMBERS) if kind == 1 else draw.choice(_FLOATS)
    if kind in (3, 4):
        return draw.choice(_TEXTS)
    if kind == 5:
        return draw.choice(([], {}, [[]], {"": {}}))
    if kind == 6:
        return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    if kind == 7:
        return {str(draw.choice(_TEXTS)): value(draw, depth + 1) for _ in range(draw.randrange(4))}
    nested: Any = 0
    for _ in range(draw.choice((5, 60, 150))):
        nested = [nested] if draw.random() < 0.5 else {"a": nested}
    return nested


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of everything in a document."""
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        container = waiting.pop()
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, held in list(items)[:2000]:
            found.append((container, key))
            if isinstance(held, dict | list):
                waiting.append(held)
    return found


def changed_document(draw: Draw, document: Any) -> Any:
    """Return a document with a few changes: deleted, replaced, renamed, swapped, wrapped, repeated."""
    document = copy.deepcopy(document)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        if not isinstance(document, dict | list) or not (places := _places(document)):
            return value(draw)
        container, key = draw.choice(places)
        held, change = container[key], draw.randrange(8)
        if change == 0:
            del container[key]
        elif change in (1, 2):
            container[key] = value(draw)
        elif change == 3 and isinstance(container, dict):
            container[str(draw.choice(_TEXTS))] = container.pop(key)
        elif change == 4:
            other, place = draw.choice(places)
            if isinstance(other, dict) and isinstance(other.get(place), str | int | float):
                container[key] = other[place]
        elif change == 5:
            container[key] = [held] if draw.random() < 0.5 else {"a": held}
        elif change == 6 and isinstance(held, list):
            container[key] = held * draw.choice((2, 3, 1000))
        elif isinstance(held, int | float) and not isinstance(held, bool):
            real = float(held) if abs(held) < 2**1000 else 1e300  # a float holds no more
            container[key] = draw.choice((held + 1, held - 1, -held, held * 2, real, str(held), bool(held)))
        elif isinstance(held, str):
            container[key] = text(draw, held)
        else:
            container[key] = value(draw)
    return document


def text(draw: Draw, known: str) -> str:
    """Return a text like a known one, or one of the strange ones."""
    change = draw.randrange(6)
    if change == 0 or not known:
        return str(draw.choice(_TEXTS))
    at = draw.randrange(len(known))
    strange = chr(draw.choice((0, 9, 10, 27, 32, 47, 64, 92, 127, 160, 0x200B, 0x430, 0xFF41)))
    ways = (
        known[:at] + str(draw.choice(_TEXTS)) + known[at:],
        known[:at] + strange + known[at + 1 :],
        known[:at],
        known.upper() if draw.random() < 0.5 else known + known,
        "".join(draw.choices([*known, "@", "/", ".", " ", "=", "-", "0", "é"], k=draw.randrange(1, 130))),
    )
    return ways[change - 1]


def as_json(draw: Draw, document: Any) -> bytes:
    """Return a document as JSON, now and then with a key twice, another encoding or a number no parser likes."""
    plain = json.dumps(document, ensure_ascii=draw.random() < 0.5, indent=draw.choice((None, 2)))
    data, change = plain.encode("utf-8", "surrogatepass"), draw.randrange(20)
    if change == 0 and b'{"' in data:
        end = data.index(b'{"') + 2
        name = data[end : data.index(b'"', end)]
        return data.replace(b'{"', b'{"' + name + b'": 0, "', 1)
    if change == 1:
        other = draw.choice(("utf-16", "utf-8-sig", "latin-1", "utf-32"))
        return data.decode("utf-8", "replace").encode(other, "replace")
    if change == 2:
        return data.replace(b"1", draw.choice((b"1e999", b"1" * 5000, b"-", b"01", b"NaN", b"1E400")), 1)
    return data


def spam(draw: Draw) -> bytes:
    """Return what is small to write and large to parse."""
    return draw.choice(
        (
            lambda: b"[" * draw.choice((99, 101, 5000, 200_000)),
            lambda: b'{"a":' * draw.choice((99, 101, 5000, 100_000)),
            lambda: b"[" + b"[]," * draw.choice((1000, 2**20, 3 * 2**20)) + b"[]]",
            lambda: b'{"a":"' + b"x" * draw.choice((10**4, 10**7)) + b'"}',
            lambda: b'{"a":' + b"9" * draw.choice((41, 5000, 10**6)) + b"}",
            lambda: b'"' + b'\\"' * draw.choice((100, 10**6)),
            lambda: b" " * draw.choice((10, 2**24, 2**24 + 1)),
            lambda: b"\x00" * draw.choice((1, 10**6)),
            lambda: b'{"a":1,"a":2}',
            lambda: b"",
        )
    )()


def changed_bytes(draw: Draw, data: bytes) -> bytes:
    """Return bytes with some flipped, cut, doubled, inserted, or overwritten by a number."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 8))):
        if not changed:
            return draw.randbytes(draw.randrange(40))
        at = draw.randrange(len(changed)) if draw.random() < 0.5 else draw.randrange(min(len(changed), 4096))
        size = draw.choice((1, 4, 8, 64, 1000))
        change = draw.randrange(7)
        if change == 0:
            changed[at] ^= 1 << draw.randrange(8)
        elif change == 1:
            del changed[at:]
        elif change == 2:
            del changed[at : at + size]
        elif change == 3:
            changed[at:at] = changed[at : at + size]
        elif change == 4:
            changed[at:at] = draw.randbytes(size)
        elif change == 5:
            changed[at : at + 8] = draw.choice(_NUMBERS[:10]).to_bytes(8, "little", signed=True)
        else:
            other = draw.randrange(len(changed))
            changed[at : at + size] = changed[other : other + size]
    return bytes(changed)


def changed_json(draw: Draw, data: bytes) -> bytes:
    """Return a JSON file changed in one of all these ways."""
    way = draw.random()
    if way < 0.08:
        return spam(draw)
    if way < 0.3:
        return changed_bytes(draw, data)
    if way < 0.35:
        return as_json(draw, value(draw))
    return as_json(draw, changed_document(draw, json.loads(data)))


def changed_safetensors(draw: Draw, data: bytes) -> bytes:
    """Return a safetensors file whose header, its length, or whose tensors are others."""
    way = draw.random()
    length = int.from_bytes(data[:8], "little")
    header, tensors = data[8 : 8 + length], data[8 + length :]
    if way < 0.25:
        return changed_bytes(draw, data)
    if way < 0.35:
        claimed = draw.choice((2**63, 2**64 - 1, 10**8, 2**23 + 1, len(data), 0, 1, length + 1))
        return claimed.to_bytes(8, "little") + data[8:]
    if way < 0.4:
        header = spam(draw)
        return len(header).to_bytes(8, "little") + header + tensors
    edit = draw.choice((changed_document, lied, nested_metadata))
    header = as_json(draw, edit(draw, json.loads(header)))
    header += b" " * (-len(header) % 8)
    if draw.random() < 0.1:
        tensors = changed_bytes(draw, tensors)
    return len(header).to_bytes(8, "little") + header + tensors


def lied(draw: Draw, document: dict[str, Any]) -> dict[str, Any]:
    """Return a header that tells of another dtype, shape or place for one tensor, the rest of it being well-formed."""
    document = copy.deepcopy(document)
    names = [name for name in document if name != "__metadata__"]
    one, other = document[draw.choice(names)], document[draw.choice(names)]
    change = draw.randrange(6)
    if change == 0:
        one["data_offsets"] = list(other["data_offsets"])
    elif change == 1:
        one["data_offsets"] = one["data_offsets"][::-1]
    elif change == 2:
        one["data_offsets"][draw.randrange(2)] += draw.choice((-8, -1, 1, 8, 2**40, -(2**40)))
    elif change == 3:
        shapes: tuple[list[int], ...] = (
            [2**31, 2**31],
            [-1, -4],
            [0],
            [],
            one["shape"][::-1],
            [*one["shape"], 1],
            [10**30],
        )
        one["shape"] = draw.choice(shapes)
    elif change == 4:
        one["dtype"] = draw.choice(("F64", "F16", "BF16", "I8", "BOOL", "F8_E4M3", "object", "C64", ""))
    else:
        one["extra"] = 1
    return document


def nested_metadata(draw: Draw, document: dict[str, Any]) -> dict[str, Any]:
    """Return a header with other metadata: its JSON changed where it holds any."""
    document = copy.deepcopy(document)
    metadata = document.setdefault("__metadata__", {})
    for key, held in list(metadata.items()):
        if held.startswith("{"):
            metadata[key] = changed_json(draw, held.encode()).decode("utf-8", "replace")
        elif draw.random() < 0.5:
            metadata[key] = value(draw)
    return document
