"""`hf://ORG/NAME[@REVISION]`: repositories of the Hugging Face Hub as checkpoint folders, downloaded to its own cache.

Only the files that a checkpoint consists of are fetched, each by its name: code and pickles never reach the disk.
"""

import glob
import re
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partialmethod
from pathlib import Path

from registry.checkpoint.joint_training import joint_trainings
from registry.checkpoint.model_files import COPIED_FILES, PICKLES, SINGLE, own_files
from registry.errors import CheckpointError, InvalidInputError, NotFoundError, RegError, StorageError
from registry.io.display import some
from registry.io.limits import JSON_BYTES, TOKENIZER_BYTES
from registry.io.model_folder import BUNDLE, INDEX, SIGNATURE
from registry.io.untrusted import json_object, read_small

HUB_PREFIX = "hf://"
CONFIG, ADAPTER_CONFIG, ADAPTER = "config.json", "adapter_config.json", "adapter_model.safetensors"
SMALL_FILES = (
    *(CONFIG, ADAPTER_CONFIG, INDEX, "statistics.safetensors", "expert.json", "tokenizer*.json"),
    *("expert.json.sig", SIGNATURE, BUNDLE),
    *COPIED_FILES,
    *("calibration.txt", "calibration.jsonl", "calibration.jsonl.gz", "calibration.parquet"),
)
"""Patterns of the files that are fetched before the weights, besides `own_files`."""

_AGAIN = "type the command again: it fetches what is missing"
_BOUNDED = (".json", ".model", ".txt", ".jinja", ".sig")
_ONLINE = "unset HF_HUB_OFFLINE and TRANSFORMERS_OFFLINE, then type the command again"
_OTHER = "name another repository or revision, one that save_pretrained wrote"
_PLAIN = re.compile(r"[\w.-]+")
_REVISION = re.compile(r"(?![/.-])(?!.*(\.\.|//))[^\s~^:?*\[\\]+(?<![/.])")
_SNAPSHOT = re.compile(r".*/models--[^/]+/snapshots/([0-9a-f]{40})(/|$)")


@dataclass(frozen=True)
class HubReference:
    """A repository of the Hub at a branch, tag, commit or pull request (`refs/pr/3`), None for its default branch.

    (InvalidInputError: the name of the repository or revision is not valid on the Hub.)
    """

    repo_id: str
    revision: str | None = None

    def __post_init__(self) -> None:
        from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

        revision = "main" if self.revision is None else self.revision
        try:
            validate_repo_id(self.repo_id)
            if not (self.repo_id.isascii() and str(self).isprintable() and _REVISION.fullmatch(revision)):
                raise ValueError(revision)
        except ValueError as error:
            raise InvalidInputError(
                f"expected {HUB_PREFIX}ORG/NAME or {HUB_PREFIX}ORG/NAME@REVISION, got {str(self)!r}",
                f"write the name as the repository's page does: {HUB_PREFIX}Qwen/Qwen3-0.6B",
            ) from error

    @classmethod
    def parse(cls, text: str) -> "HubReference":
        """Parse `hf://ORG/NAME` or `hf://NAME`, either with `@REVISION`."""
        repo_id, at, revision = text.removeprefix(HUB_PREFIX).partition("@")
        return cls(repo_id, revision if at else None)

    def __str__(self) -> str:
        return HUB_PREFIX + self.repo_id + ("" if self.revision is None else f"@{self.revision}")


def is_hub_reference(text: str) -> bool:
    """Return whether `text` names a repository of the Hub rather than a folder."""
    return text.startswith(HUB_PREFIX)


def commit_of(path: Path) -> str | None:
    """Return the commit that a snapshot folder of the Hub's cache holds, or None for any other path."""
    match = _SNAPSHOT.match(path.absolute().as_posix())
    return match[1] if match else None


def fetch_repository(reference: HubReference) -> Path:
    """Return a repository's folder in the Hub's cache, after fetching the files that the cache lacks.

    HF_ENDPOINT, HF_TOKEN and `hf auth login`, HF_HUB_CACHE, HF_HOME and HF_HUB_OFFLINE are honoured (NotFoundError:
    none matches, or the cache lacks it offline; CheckpointError: it has no model in safetensors files; StorageError:
    the Hub, the connection or the disk failed).
    """
    from huggingface_hub import constants, snapshot_download

    try:
        if not constants.HF_HUB_OFFLINE:
            return _download(reference)
        # With no pattern allowed, it finds the folder without looking for files.
        repo, revision = reference.repo_id, reference.revision
        folder = snapshot_download(repo, revision=revision, local_files_only=True, allow_patterns=[])
        return _whole(reference, Path(folder), _ONLINE)
    except RegError:
        raise
    except Exception as error:  # those of huggingface_hub, its HTTP client and hf_xet have no common root
        raise _translated(reference, error) from error


def _download(reference: HubReference) -> Path:
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.utils.tqdm import tqdm

    # disable=None shows a bar only on a terminal.
    bar = type("Bar", (tqdm,), {"__init__": partialmethod(tqdm.__init__, disable=None)})

    def fetch(revision: str | None, files: list[str]) -> Path:
        patterns = [glob.escape(name) for name in files if name in names]
        return Path(snapshot_download(reference.repo_id, revision=revision, allow_patterns=patterns, tqdm_class=bar))

    timeout = constants.HF_HUB_ETAG_TIMEOUT
    info = HfApi().model_info(reference.repo_id, revision=reference.revision, timeout=timeout, files_metadata=True)
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in info.siblings or ()}
    names = set(sizes)
    _check(reference, names, [INDEX if INDEX in names else SINGLE])  # before anything is fetched
    for name in _small(names):
        if name.endswith(_BOUNDED) and not name.startswith("calibration.") and sizes[name] > TOKENIZER_BYTES:
            raise CheckpointError(
                f"{reference}: {name} has {sizes[name]:,} bytes, the limit is {TOKENIZER_BYTES:,}", _OTHER
            )
    folder = fetch(reference.revision, _small(names))
    if folder.name != info.sha:  # the branch moved, or the Hub failed and the cache had an older commit
        raise StorageError(f"{reference}: expected commit {info.sha}, got {folder.name}", _AGAIN)
    weights = _weights(reference, folder)
    _check(reference, names, weights)  # before anything large is fetched
    fetch(info.sha, [*weights, ADAPTER, *(one.arrays for one in joint_trainings() if one.arrays)])
    return _whole(reference, folder, _AGAIN)


def _whole(reference: HubReference, folder: Path, hint: str) -> Path:
    """Return `folder` if it holds a complete model or adapter, and every small file known to be in the repository."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    names = {path.name for path in folder.iterdir() if path.is_file()}
    missing = _missing(names, _weights(reference, folder))
    with suppress(CachedRepoTreeNotFoundError):
        tree = get_cached_repo_tree(reference.repo_id, revision=folder.name)
        missing += [name for name in _small({file.path for file in tree}) if name not in {*names, *missing}]
    if missing:
        raise NotFoundError(f"{reference}: {some(missing)} missing from its folder in the cache, {folder}", hint)
    return folder


def _small(names: Set[str]) -> list[str]:
    """Return the files of a repository that are fetched before its weights."""
    plain = filter(_PLAIN.fullmatch, sorted(names))
    return [name for name in plain if any(fnmatchcase(name, pattern) for pattern in (*SMALL_FILES, *own_files()))]


def _weights(reference: HubReference, folder: Path) -> list[str]:
    """Return the names of a model's weight files: those in the index in `folder`, else the single file."""
    if not (folder / INDEX).is_file():
        return [SINGLE]
    listed = json_object(read_small(folder / INDEX, JSON_BYTES), f"{reference}/{INDEX}").get("weight_map")
    names = sorted(set(map(str, listed.values()))) if isinstance(listed, dict) else []
    if not names or not all(_PLAIN.fullmatch(name) and name.endswith(".safetensors") for name in names):
        raise CheckpointError(f"{reference}/{INDEX} does not list safetensors files beside it", _OTHER)
    return names


def _missing(names: Set[str], weights: list[str]) -> list[str]:
    """Return the files that `names` lacks for a model or an adapter: none if either is complete."""
    model = [name for name in (CONFIG, *weights) if name not in names]
    adapter = [name for name in (ADAPTER_CONFIG, ADAPTER) if name not in names]
    return [] if not model or not adapter else adapter if ADAPTER_CONFIG in names else model


def _check(reference: HubReference, names: Set[str], weights: list[str]) -> None:
    """Check that a repository's files include a complete model or a complete adapter."""
    if not (missing := _missing(names, weights)):
        return
    if not {CONFIG, ADAPTER_CONFIG} & names:
        raise CheckpointError(f"{reference} is not a checkpoint: it has neither {CONFIG} nor {ADAPTER_CONFIG}", _OTHER)
    pickles = sorted(name for name in names if any(fnmatchcase(name, pattern) for pattern in PICKLES))
    if pickles and not {SINGLE, INDEX, ADAPTER} & names:
        raise CheckpointError(
            f"{reference} has its weights in pickle files ({pickles[0]!r}), which run code when they are opened and so "
            f"are never read; it has neither {SINGLE} nor {ADAPTER}",
            "convert them where you trust them: AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)",
        )
    raise CheckpointError(f"{reference} is not whole: {some(missing)} missing from the repository", _OTHER)


def _translated(reference: HubReference, error: Exception) -> RegError:
    """Return the error to raise for one of the Hub's, without anything sent or received, which may hold a token."""
    from huggingface_hub import constants, errors

    cache, endpoint = constants.HF_HUB_CACHE, re.sub("//[^/]*@", "//", constants.ENDPOINT)
    model = HUB_PREFIX + reference.repo_id
    if isinstance(error, errors.LocalEntryNotFoundError):
        if constants.HF_HUB_OFFLINE:
            return NotFoundError(f"{reference} is not in the cache {cache}, and HF_HUB_OFFLINE is set", _ONLINE)
        error = error.__cause__ if isinstance(error.__cause__, Exception) else error
    status = getattr(getattr(error, "response", None), "status_code", None)
    full = "No space left on device" in str(error)
    page = f"{endpoint}/{reference.repo_id}"
    if isinstance(error, errors.GatedRepoError):
        hint = f"accept its terms at {page}, then: hf auth login"
        return StorageError(f"{reference} is gated, and this account is not let in", hint)
    if isinstance(error, errors.RevisionNotFoundError):
        hint = f"choose a branch, tag or commit at {page}/tree/main"
        return NotFoundError(f"{model} has no revision {reference.revision or 'main'!r}", hint)
    if isinstance(error, errors.RepositoryNotFoundError):
        hint = "check the spelling; if it is private: hf auth login"
        return NotFoundError(f"{endpoint} shows no model {reference.repo_id!r} to this account", hint)
    if status in (401, 403):
        hint = "hf auth login, with a token that may read it"
        return StorageError(f"{endpoint} refuses {reference} to this account (HTTP {status})", hint)
    if status == 404:
        hint = f"look at {page}, and check HF_ENDPOINT"
        return NotFoundError(f"{endpoint} has not all of {reference} (HTTP 404)", hint)
    if status is not None:
        hint = "wait a minute, then type the command again"
        return StorageError(f"{endpoint} fails on {reference} (HTTP {status})", hint)
    if full or (isinstance(error, OSError) and error.errno is not None):
        path = getattr(error, "filename", None) or cache
        hint = f"make room in {cache}, make it writable, or set HF_HUB_CACHE to another folder"
        return StorageError(f"{reference} cannot be stored: {'disk full' if full else reason(error)}: {path}", hint)
    hint = "check the connection, HF_ENDPOINT and HF_TOKEN; HF_HUB_OFFLINE=1 before the command uses the cache alone"
    return StorageError(f"{reference} cannot be fetched from {endpoint}: {reason(error)}", hint)


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what caused it, down to the root."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def reason(error: Exception) -> str:
    """Return the operating system's message at the root of an error, else the error's class."""
    own = (cause.strerror for cause in chain_of(error) if isinstance(cause, OSError) and cause.strerror)
    return next(own, type(error).__name__)
