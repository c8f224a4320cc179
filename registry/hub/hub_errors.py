"""What a user is told when the Hub, or the way to it, refuses a push: what failed, what is there now, what to type."""

import json
import re

from registry.checkpoint.hub_download import reason
from registry.errors import CheckpointError, ConflictError, InvalidInputError, NotFoundError, RegError, StorageError
from registry.hub.target import Target

LOGIN = "hf auth login, with a token that may write; or set HF_TOKEN"
ONLINE = "unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, then type the command again"
AGAIN = "type the command again: it goes on where this one ended"
_QUOTA = re.compile(r"quota|storage limit|storage (?:space )?exceeded|payment required|out of storage", re.IGNORECASE)


def endpoint() -> str:
    """Return the Hub's address, without a password that may be in it."""
    from huggingface_hub import constants

    return re.sub("//[^/]*@", "//", constants.ENDPOINT)


def translate_error(target: Target, error: Exception, state: str) -> RegError:
    """Return what a user is told of an error: nothing that was sent or received, for that may hold a token.

    Args:
        target: what was pushed to.
        error: what huggingface_hub, its HTTP client or hf_xet raised.
        state: what is at the target now.
    """
    from huggingface_hub import errors

    chain = _chain(error)
    if "Invalid metadata in README.md" in str(error):  # of create_commit; until then it was accepted
        return bad_card(str(error).partition("\n")[2], state)
    found = next((one for one in chain if getattr(one, "response", None) is not None), None)
    if found is None:
        return _without_answer(target, chain, state)
    status = found.response.status_code  # type: ignore[attr-defined]
    page = f"{endpoint()}/{target.repo_id}"
    if isinstance(found, errors.GatedRepoError):
        return StorageError(
            f"{target} is gated, and this account is not let in; {state}",
            f"accept its terms at {page}, then type the command again",
        )
    if isinstance(found, errors.RevisionNotFoundError):
        return NotFoundError(
            f"{target.repo_id} has no revision {target.branch!r}; {state}", f"choose a branch at {page}/tree/main"
        )
    if status == 402 or status in (413, 507) or (status in (400, 403) and _QUOTA.search(str(found))):
        return StorageError(
            f"{endpoint()} has no room left for {target} (HTTP {status}: storage quota); {state}",
            f"make room, or a larger plan, in the settings of {target.repo_id.partition('/')[0]}; then {AGAIN}",
        )
    if status == 401 and not isinstance(found, errors.RepositoryNotFoundError):
        return StorageError(f"{endpoint()} does not accept the token (HTTP 401); {state}", LOGIN)
    if status == 403:
        return StorageError(f"this account may not write to {target} (HTTP 403); {state}", f"{LOGIN} there")
    if isinstance(found, errors.RepositoryNotFoundError):
        return NotFoundError(
            f"{endpoint()} shows no model {target.repo_id!r} to this account; {state}",
            "check the spelling; if it is a private one: hf auth login",
        )
    if status == 409:
        return ConflictError(
            f"{target.repo_id} is taken, by a repository that this account is not shown; {state}",
            "choose another name, or log in as who may see it: hf auth login",
        )
    if status == 412:
        return ConflictError(f"somebody else pushed to {target} meanwhile; {state}", "look at it, then push again")
    if status == 429:
        return StorageError(f"{endpoint()} asks for patience (HTTP 429); {state}", f"wait some minutes, then {AGAIN}")
    return StorageError(f"{endpoint()} fails on {target} (HTTP {status}); {state}", f"wait a minute, then {AGAIN}")


def _without_answer(target: Target, chain: list[BaseException], state: str) -> RegError:
    """Return what is told of an error that no answer of the Hub came with."""
    text = " ".join(map(str, chain))
    if isinstance(chain[0], ValueError) and _QUOTA.search(text):
        return StorageError(
            f"{endpoint()} has no room left for {target}: storage quota; {state}", f"make room, then {AGAIN}"
        )
    return StorageError(
        f"the connection to {endpoint()} broke: {reason(chain[0])}; {state}",
        f"check it, HF_ENDPOINT and HF_TOKEN; then {AGAIN}",
    )


def bad_card(answer: str, state: str) -> RegError:
    """Return what is told where the Hub does not accept a card; `answer` is its own, JSON or lines."""
    try:
        said = str(json.loads(answer)["errors"][0]["message"])
    except (ValueError, KeyError, IndexError, TypeError):
        said = answer.removeprefix("- ").partition("\n")[0]
    plain = "".join(letter for letter in said if letter.isprintable())[:200] or "it does not say why"
    return CheckpointError(
        f"{endpoint()} does not accept the metadata of the card: {plain}; {state}",
        "give a license that it knows: --license ID, such as apache-2.0 or other",
    )


def offline(target: Target) -> RegError:
    """Return what is told where the Hub may not be asked."""
    return InvalidInputError(f"HF_HUB_OFFLINE is set, and pushing to {target} needs the Hub", ONLINE)


def _chain(error: Exception) -> list[BaseException]:
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in found:
        found.append(one)
        one = one.__cause__ or one.__context__
    return found
