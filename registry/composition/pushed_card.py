"""Additions of a push to a model card, and their removal.

A composed folder is a function of its members and its recipe, and so is its card. Further facts (scores, languages, the
members' addresses on the Hub, a chosen license) are added between marks when the folder is pushed, so that the card as
it was composed can be recovered byte for byte.
"""

import re

from registry.errors import CheckpointError

CARD = "README.md"
_BEGIN, _END = "# reg push: begin", "# reg push: end"
_PAGE_BEGIN, _PAGE_END = "<!-- reg push: begin -->", "<!-- reg push: end -->"
_INSTEAD = "# instead of "
_FRONT = re.compile(rf"^{_BEGIN}\n(?:{_INSTEAD}(?P<line>license: .*)\n)?(?s:.*?)^{_END}\n", re.MULTILINE)
_PAGE = re.compile(rf"^{_PAGE_BEGIN}\n(?s:.*?)^{_PAGE_END}\n", re.MULTILINE)
_LICENSE = re.compile(r"^license: .*\n", re.MULTILINE)


def with_additions(card: bytes, metadata: str, page: str) -> bytes:
    """Add metadata and a section to a composition's card.

    Args:
        card: the card; additions of an earlier push are replaced.
        metadata: lines of YAML, each with its newline; a license in them replaces that of the card.
        page: Markdown for the end of the page, or an empty string.

    Raises:
        CheckpointError: the card has no front matter.
    """
    head, rest = _parts(without_additions(card).decode())
    own = _LICENSE.search(head)
    if own and _LICENSE.search(metadata):
        block = f"{_BEGIN}\n{_INSTEAD}{own[0]}{metadata}{_END}\n"
        head = head[: own.start()] + block + head[own.end() :]
    elif metadata:
        head += f"{_BEGIN}\n{metadata}{_END}\n"
    if page:
        rest += f"{_PAGE_BEGIN}\n{page.strip()}\n{_PAGE_END}\n"
    return (head + rest).encode()


def without_additions(card: bytes) -> bytes:
    """Remove additions from a card; a card without additions, or that is not text, is returned unchanged."""
    try:
        head, rest = _parts(card.decode())
    except (UnicodeDecodeError, CheckpointError):
        return card
    head = _FRONT.sub(lambda match: f"{match['line']}\n" if match["line"] else "", head, count=1)
    return (head + _PAGE.sub("", rest, count=1)).encode()


def license_of(card: bytes) -> str | None:
    """Return the license in a card's front matter, or None."""
    try:
        head, _ = _parts(card.decode())
    except (UnicodeDecodeError, CheckpointError):
        return None
    match = _LICENSE.search(head)
    return match[0].removeprefix("license: ").strip() if match else None


def _parts(card: str) -> tuple[str, str]:
    """Return the front matter without the line that ends it, and everything from that line on."""
    end = card.find("\n---\n", 4)
    if not card.startswith("---\n") or end < 0:
        raise CheckpointError(f"{CARD} has no metadata", "compose the folder again")
    return card[: end + 1], card[end + 1 :]
