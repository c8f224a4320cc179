"""A version as the shared weights of a soup, checked without torch."""

from registry.errors import InvalidInputError
from store.catalog import VersionRecord


def check_soup(version: VersionRecord) -> None:
    """Check that a version holds the shared weights of a soup.

    Raises:
        InvalidInputError: it does not.
    """
    document = (version.content or {}).get("soup")
    if version.kind == "base" and document is not None:
        return
    is_expert = document is not None and f"name the soup: reg instantiate {version.name.rpartition('-')[0]} --out DIR"
    raise InvalidInputError(
        f"{version.ref} is no soup: it was not registered by reg train-soup as the shared weights of one",
        is_expert or "train one: reg train-soup NAME --base B --domains FILE …",
    )
