"""Layout of tables as lines of text, of any width or at most that of a terminal."""

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest

GAP = "  "  # what stands between two columns
ELLIPSIS = "…"
LEAST = 12  # characters that a column of text keeps before columns are moved to a table of their own

_NUMBER = re.compile(r"[-+]?[\d,]+(\.\d+)?(e[-+]?\d+)?( ± [\d.]+)?( ?%| [kMGT]?B)?")
_RIGID = re.compile(r"[\d\W]*\dT?[\d\W]*Z?")  # numbers and times, which are kept whole
_BLANK = ("", "-")  # cells that stand for a missing number


def layout(header: Sequence[str], rows: Iterable[Sequence[str]], width: int | None = None) -> list[list[str]]:
    """Return the lines of a table; those of several tables, each with the first column, where one would be too wide.

    Columns of numbers are aligned at the right. Where the width is limited, the text of the last of two columns and
    lists with commas are wrapped, and other text is shortened in the middle; columns without any content are left out.
    """
    table = [list(header)]
    table += [[" ".join(cell.splitlines()) if "\n" in cell else cell for cell in row] for row in rows]
    if width is None or _length(_widths(table)) <= width:
        return [_lines(table, _widths(table))]
    width = max(width, 3 * LEAST)
    if len(header) > 2:
        filled = [column for column in range(len(header)) if not column or any(row[column] for row in table[1:])]
        table = _only(table, filled)
    if _length(_widths(table)) <= width:
        return [_lines(table, _widths(table))]
    if len(table[0]) == 2 and not _has_numbers(table, 1):
        return [_wrapped(table, width)]
    parts = [_only(table, columns) for columns in _parts(table, width)]
    return [_lines(part, _fitting(part, width)) for part in parts]


def shorten(text: str, width: int) -> str:
    """Return a text of at most `width` characters; what is left out in the middle is an ellipsis."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return text[: width - 1 - end] + ELLIPSIS + (text[-end:] if end else "")


def _only(table: Sequence[Sequence[str]], columns: Sequence[int]) -> list[list[str]]:
    return [[row[column] for column in columns] for row in table]


def _has_numbers(table: Sequence[Sequence[str]], column: int) -> bool:
    cells = [row[column] for row in table[1:] if row[column] not in _BLANK]
    return bool(cells) and all(_NUMBER.fullmatch(cell) for cell in cells)


def _widths(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, cells)) for cells in zip(*table, strict=True)]


def _length(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _lines(table: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    at_right = [_has_numbers(table, column) for column in range(len(widths))]
    lines = []
    for row in table:
        parts = [_in_column(cell, width) for cell, width in zip(row, widths, strict=True)]
        for cells in zip_longest(*parts, fillvalue=""):
            placed = [
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(cells, widths, at_right, strict=True)
            ]
            lines.append(GAP.join(placed).rstrip())
    return lines


def _in_column(cell: str, width: int) -> list[str]:
    """Return the lines of a cell: a list with commas is wrapped behind them, other text shortened."""
    if len(cell) <= width or "," not in cell or _NUMBER.fullmatch(cell):
        return [shorten(cell, width)]
    return [shorten(line, width) for line in _filled(re.findall("[^,]*,|[^,]+", cell), width)]


def wrap(text: str, width: int) -> list[str]:
    """Return lines of at most `width` characters; longer words are broken behind a slash or comma, not a hyphen."""
    pieces: list[str] = []
    for word in re.findall(r"\S+\s*", text):
        parts = [word] if len(word.rstrip()) <= width else re.findall("[^/,]*[/,]+|[^/,]+", word)
        pieces += [part[at : at + width] for part in parts for at in range(0, len(part.rstrip()), width)]
    return _filled(pieces, width) or [""]


def _filled(pieces: Iterable[str], width: int) -> list[str]:
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + len(piece.rstrip()) <= width:
            lines[-1] += piece
        else:
            lines.append(piece)
    return [line.rstrip() for line in lines]


def _wrapped(table: Sequence[Sequence[str]], width: int) -> list[str]:
    first = min(_widths(table)[0], max(width // 3, _rigid(table, 0)))
    lines = []
    for name, value in table:
        parts = wrap(value, width - first - len(GAP))
        names = [shorten(name, first), *[""] * (len(parts) - 1)]
        lines += [f"{own:<{first}}{GAP}{part}".rstrip() for own, part in zip(names, parts, strict=True)]
    return lines


def _parts(table: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Return the columns of each table: as many as fit beside the first one, each with `LEAST` characters or more."""
    first, *others = [min(own, max(LEAST, width // 3)) for own in _widths(table)]
    first = min(first, LEAST)
    parts: list[list[int]] = []
    left = 0
    for column, own in enumerate(others, 1):
        needed = len(GAP) + min(own, max(LEAST, _rigid(table, column)))
        if not parts or needed > left:
            parts.append([0])
            left = width - first
        parts[-1].append(column)
        left -= needed
    return parts or [[0]]


def _rigid(table: Sequence[Sequence[str]], column: int) -> int:
    """Return the length of the longest number or time of a column."""
    return max((len(row[column]) for row in table[1:] if _RIGID.fullmatch(row[column])), default=0)


def _fitting(table: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return widths of columns that fit; the widest are made equally narrow, and none narrower than it must be."""
    widths = _widths(table)
    kept = [min(own, max(LEAST, _rigid(table, column))) for column, own in enumerate(widths)]
    while _length(widths) > width:
        column = max(range(len(widths)), key=lambda one: (widths[one] > kept[one], widths[one]))
        if widths[column] <= kept[column]:  # a table of one cell that is wider than the terminal
            column = max(range(len(widths)), key=widths.__getitem__)
        widths[column] -= 1
    return widths
