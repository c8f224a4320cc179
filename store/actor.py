"""The actor: the name of who acts, which every event of the log carries."""

import os

from store.errors import InvalidInputError

ACTOR_VARIABLE = "REG_ACTOR"
CHARACTERS = 100  # maximum length of an actor
UNKNOWN = "unknown"


def actor() -> str:
    """Return REG_ACTOR, else the name of the system's user, else `unknown` (InvalidInputError: it is no name)."""
    if named := os.environ.get(ACTOR_VARIABLE):
        if len(named) > CHARACTERS or not named.isprintable() or named != named.strip():
            raise InvalidInputError(
                f"{ACTOR_VARIABLE} is {named[: CHARACTERS + 1]!r}, which is no name: at most {CHARACTERS} printable "
                "characters, and no space at an end",
                f"export {ACTOR_VARIABLE}=ada",
            )
        return named
    from getpass import getuser

    try:
        found = getuser().strip()
    except (KeyError, OSError, ImportError):  # a container's number without a name
        return UNKNOWN
    return found if found and len(found) <= CHARACTERS and found.isprintable() else UNKNOWN
