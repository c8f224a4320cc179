"""Settings that commands take from the environment, with their sources: folders, database, Hub, device."""

import os
import re
import sys
from dataclasses import dataclass
from importlib import metadata

from registry.errors import InvalidInputError
from registry.home import ARRAYS_VARIABLE, DATABASE_VARIABLE, HOME_VARIABLE, Home
from registry.hub.hub_errors import endpoint
from registry.runtime.loading import device_name
from store.actor import ACTOR_VARIABLE, actor
from store.arrays.chunk_cache import BYTES_VARIABLE, cache_bytes
from store.object_store import is_url
from store.webhook import URL_VARIABLE, Webhook

DEFAULT = "default"
PACKAGES = (
    *("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "zarr", "sqlalchemy", "alembic"),
    "click",
)
"""Packages whose versions affect results."""


@dataclass(frozen=True)
class Setting:
    """One setting: its value for display, never a secret, and the option, variable or file that it comes from."""

    name: str
    value: str
    source: str


def configuration(
    home: str | os.PathLike[str] | None = None,
    database: str | None = None,
    arrays: str | os.PathLike[str] | None = None,
    *,
    given: frozenset[str] = frozenset(),
) -> list[Setting]:
    """Return every setting with its source; nothing is created or fetched.

    `given` are those of `home`, `database` and `arrays` that an option named; the others come from the environment.
    """
    location = Home.locate(home, database, arrays)

    def source(option: str, variable: str) -> str:
        return f"option --{option}" if option in given else _source(variable)

    return [
        Setting("home", str(location.path), source("home", HOME_VARIABLE)),
        Setting("database", _without_password(location.database), source("database", DATABASE_VARIABLE)),
        Setting("arrays", location.arrays_place, source("arrays", ARRAYS_VARIABLE)),
        *_copies(location),
        Setting("cache", str(location.cache), "in the home"),
        Setting("actor", actor(), _source(ACTOR_VARIABLE)),
        Setting("webhook", _webhook(), _source(URL_VARIABLE)),
        *_hub(),
        *_machine(),
        Setting("tracebacks", "yes" if os.environ.get("REG_DEBUG") else "no", _source("REG_DEBUG")),
        Setting("colours", *_colours()),
    ]


def versions() -> dict[str, str]:
    """Return the versions of this program, of Python and of the packages that results depend on."""
    own = {"reg": _version("expert-registry"), "python": ".".join(map(str, sys.version_info[:3]))}
    return own | {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _source(*variables: str) -> str:
    """Return the first of some environment variables that is set, else `default`."""
    variable = next((name for name in variables if os.environ.get(name)), None)
    return DEFAULT if variable is None else f"environment variable {variable}"


def _without_password(url: str) -> str:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        shown = make_url(url)
    except (ArgumentError, ValueError):
        return "(not a database URL)"
    hidden = {key: "***" for key in shown.query if re.search("pass|secret|token|key", key, re.IGNORECASE)}
    return shown.update_query_dict(hidden).render_as_string(hide_password=True)


def _copies(home: Home) -> list[Setting]:
    """Return where copies of chunks are kept, and how many bytes of them, where the arrays are in a bucket."""
    if not is_url(home.arrays_place):
        return []
    try:
        limit = f"{cache_bytes():,} bytes"
    except InvalidInputError as error:
        limit = error.message
    return [Setting("chunk cache", f"{home.chunks}, at most {limit}", _source(BYTES_VARIABLE))]


def _webhook() -> str:
    try:
        found = Webhook.configured()
    except InvalidInputError as error:
        return error.message
    return "none" if found is None else found.place


def _hub() -> list[Setting]:
    from huggingface_hub import constants, get_token

    folder = _source("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")
    offline = _source("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    token = _source("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    try:
        has_token = bool(get_token())
    except OSError:
        has_token = False
    if has_token and token == DEFAULT:
        token = f"file {constants.HF_TOKEN_PATH}"
    return [
        Setting("Hub", endpoint(), _source("HF_ENDPOINT")),
        Setting("Hub token", "present" if has_token else "none", token),
        Setting("Hub cache", str(constants.HF_HUB_CACHE), folder),
        Setting("Hub offline", "yes" if constants.HF_HUB_OFFLINE else "no", offline),
    ]


def _machine() -> list[Setting]:
    import torch

    name = device_name(None)
    shown = f"{name} ({torch.cuda.get_device_name()})" if name == "cuda" else name
    return [
        Setting("device", shown, _source("CUDA_VISIBLE_DEVICES")),
        Setting("threads", str(torch.get_num_threads()), _source("OMP_NUM_THREADS", "MKL_NUM_THREADS")),
    ]


def _colours() -> tuple[str, str]:
    if os.environ.get("NO_COLOR"):
        return "no", _source("NO_COLOR")
    if os.environ.get("TERM") == "dumb":
        return "no", _source("TERM")
    return "on a terminal", DEFAULT
