"""A model card with what was added to it on its way to the Hub, and the same card without that again.

A composed folder follows from what was composed alone, its card too. What is said beside that (scores, languages, where
members are on the Hub, a license that was chosen) is put between marks when the folder is pushed, so that the card
of the folder can be told from it byte for byte.
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
    """Return a composition's card with metadata and a part of the page added.

    Args:
        card: as it was composed; additions of an earlier push are dropped.
        metadata: lines of YAML, each with its newline; where they have a license, it stands in the place of the card's.
        page: Markdown for the end of the page; empty for none.

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
    """Return a card without what was added to it; one without additions, or that is no text, as it is."""
    try:
        head, rest = _parts(card.decode())
    except (UnicodeDecodeError, CheckpointError):
        return card
    head = _FRONT.sub(lambda found: f"{found['line']}\n" if found["line"] else "", head, count=1)
    return (head + _PAGE.sub("", rest, count=1)).encode()


def license_of(card: bytes) -> str | None:
    """Return the license that a card's front matter says, or None."""
    try:
        head, _ = _parts(card.decode())
    except (UnicodeDecodeError, CheckpointError):
        return None
    found = _LICENSE.search(head)
    return found[0].removeprefix("license: ").strip() if found else None


def _parts(card: str) -> tuple[str, str]:
    """Return the front matter without the line that ends it, and everything from that line on."""
    end = card.find("\n---\n", 4)
    if not card.startswith("---\n") or end < 0:
        raise CheckpointError(f"{CARD} has no metadata", "compose the folder again")
    return card[: end + 1], card[end + 1 :]
