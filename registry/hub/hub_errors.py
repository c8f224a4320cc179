"""Translation of the Hub's errors: what failed, the state of the repository, and the command to type next."""

import json
import re

from registry.checkpoint.hub_download import chain_of, reason
from registry.errors import CheckpointError, ConflictError, NotFoundError, RegError, StorageError
from registry.hub.target import Target

LOGIN = "hf auth login, with a token that may write; or set HF_TOKEN"
AGAIN = "type the command again: it resumes this upload"
_QUOTA = re.compile(r"quota|storage limit|storage (?:space )?exceeded|payment required|out of storage", re.IGNORECASE)


def endpoint() -> str:
    """Return the Hub's address without credentials."""
    from huggingface_hub import constants

    return re.sub("//[^/]*@", "//", constants.ENDPOINT)


def translate_error(target: Target, error: Exception, state: str) -> RegError:
    """Return the error for the user, with the target's state; it has nothing that was sent or received, as a token."""
    from huggingface_hub import errors

    chain = list(chain_of(error))
    if "Invalid metadata in README.md" in str(error):  # by create_commit, though a check accepted the card before
        return bad_card(str(error).partition("\n")[2], state)
    hub, text = endpoint(), " ".join(map(str, chain))
    answered = next((cause for cause in chain if getattr(cause, "response", None) is not None), None)
    if answered is None and isinstance(error, ValueError) and _QUOTA.search(text):
        return StorageError(f"{hub} has no room left for {target}: storage quota; {state}", f"make room, then {AGAIN}")
    if answered is None:
        return StorageError(
            f"the connection to {hub} broke: {reason(error)}; {state}",
            f"check it, HF_ENDPOINT and HF_TOKEN; then {AGAIN}",
        )
    status = answered.response.status_code  # type: ignore[attr-defined]
    page = f"{hub}/{target.repo_id}"
    if isinstance(answered, errors.GatedRepoError):
        return StorageError(
            f"{target} is gated, and this account has no access; {state}",
            f"accept its terms at {page}, then type the command again",
        )
    if isinstance(answered, errors.RevisionNotFoundError):
        return NotFoundError(
            f"{target.repo_id} has no revision {target.branch!r}; {state}", f"choose a branch at {page}/tree/main"
        )
    if status in (402, 413, 507) or (status in (400, 403) and _QUOTA.search(str(answered))):
        return StorageError(
            f"{hub} has no room left for {target} (HTTP {status}: storage quota); {state}",
            f"make room, or a larger plan, in the settings of {target.repo_id.partition('/')[0]}; then {AGAIN}",
        )
    if isinstance(answered, errors.RepositoryNotFoundError) and status != 403:
        return NotFoundError(
            f"{hub} shows no model {target.repo_id!r} to this account; {state}",
            "check the spelling; if it is a private one: hf auth login",
        )
    if status == 401:
        return StorageError(f"{hub} does not accept the token (HTTP 401); {state}", LOGIN)
    if status == 403:
        return StorageError(f"this account may not write to {target} (HTTP 403); {state}", f"{LOGIN} there")
    if status == 409:
        return ConflictError(
            f"{target.repo_id} is taken, by a repository that this account is not shown; {state}",
            "choose another name, or log in with an account that may see it: hf auth login",
        )
    if status == 412:
        return ConflictError(f"another push changed {target} in the meantime; {state}", "inspect it, then push again")
    if status == 429:
        return StorageError(
            f"{hub} limits the rate of requests (HTTP 429); {state}", f"wait some minutes, then {AGAIN}"
        )
    return StorageError(f"{hub} fails on {target} (HTTP {status}); {state}", f"wait a minute, then {AGAIN}")


def bad_card(answer: str, state: str) -> RegError:
    """Return the error for a card that the Hub rejects; `answer` is the Hub's, JSON or lines of text."""
    try:
        message = str(json.loads(answer)["errors"][0]["message"])
    except (ValueError, KeyError, IndexError, TypeError):
        message = answer.removeprefix("- ").partition("\n")[0]
    printable = "".join(letter for letter in message if letter.isprintable())[:200] or "it gives no reason"
    return CheckpointError(
        f"{endpoint()} does not accept the metadata of the card: {printable}; {state}",
        "choose a license that it knows: --license ID, such as apache-2.0 or other",
    )
