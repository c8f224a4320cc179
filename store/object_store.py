"""Buckets: object stores opened by URL with retries and timeouts, and their failures as errors for the user.

    s3://bucket/prefix         Amazon S3, and servers that speak its protocol (AWS_ENDPOINT_URL)
    gs://bucket/prefix         Google Cloud Storage
    az://container/prefix      Azure Blob Storage
    memory://name/prefix       this process's memory, for tests

Credentials, region and endpoint come from the environment, as for the tools of each provider: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL; GOOGLE_APPLICATION_CREDENTIALS;
AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY. Requests that fail for the moment (500, 503, a lost connection)
are repeated with growing pauses, at most `RETRIES` times and for `RETRY_SECONDS`.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

from store.errors import InvalidInputError, StorageError, first_line

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az", "memory")
RETRIES = 8  # repetitions of a request that failed for the moment
RETRY_SECONDS = 60.0  # seconds after which a request is not repeated
REQUEST_SECONDS = 120.0  # seconds that one request may take, with its body; `REG_STORAGE_TIMEOUT` sets another number
CONNECT_SECONDS = 5.0
INSTALL = "pip install 'expert-registry[s3]'"
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://([^/?#\s]+)((?:/[^?#\s]*)?)")
_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY",
    "memory": "",
}

_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_NO_CREDENTIALS = (
    *("169.254.", "metadata.google.internal"),  # addresses that give a machine's own credentials
    *("CredentialsNotLoaded", "no credential", "Missing AccessKeyId", "Missing SecretAccessKey"),
)
_DENIALS = ("PermissionDeniedError", "UnauthenticatedError")
_DENIED = ("403 Forbidden", "401 Unauthorized", "AccessDenied")
_CAUSES = (
    (_NO_BUCKET, "there is no bucket {bucket}", "create the bucket, or name another URL"),
    (_NO_CREDENTIALS, "no credentials were found", "set them in the environment{variables}"),
    (_DENIED, "the bucket's server denies it{in_brackets}", "check the credentials and their permissions{variables}"),
    (
        ("Connect", "connection", "error sending request", "dns error", "timed out", "TimedOut", "Timeout"),
        "the network or the bucket's server does not answer",
        "check the network and the endpoint, then repeat the command",
    ),
    (
        ("SlowDown", "429 Too Many", "500 Internal", "502 Bad", "503 Service Unavailable", "504 Gateway"),
        "the bucket's server is overloaded or fails ({code})",
        "repeat the command later",
    ),
)
"""Parts of a library's messages, what they mean, and what to do."""


def is_url(place: object) -> bool:
    """Tell whether a place is the URL of a bucket, and not a path."""
    return isinstance(place, str) and "://" in place


def parse_url(url: str) -> tuple[str, str, str]:
    """Return scheme, bucket and prefix of a URL; the prefix has no slash at either end, and may be empty.

    Raises InvalidInputError if the URL is of no bucket, or its prefix has an empty part, `.` or `..`.
    """
    found = _URL.fullmatch(url)
    if found is None or found[1] not in SCHEMES:
        raise InvalidInputError(
            f"{url!r} is not the URL of a bucket",
            "name a folder, or a URL such as s3://bucket/prefix (also gs://, az://)",
        )
    prefix = found[3].strip("/")
    if prefix and any(part in ("", ".", "..") for part in prefix.split("/")):
        raise InvalidInputError(f"{url!r} has an empty part, . or .. in its prefix", "name the prefix without it")
    return found[1], found[2], prefix


def normal_url(url: str) -> str:
    """Return a URL in the form that is recorded: without a slash at the end (errors as `parse_url`)."""
    scheme, bucket, prefix = parse_url(url)
    return f"{scheme}://{bucket}/{prefix}" if prefix else f"{scheme}://{bucket}"


def open_store(url: str) -> "ObjectStore":
    """Return the object store of a URL, whose keys begin at the URL's prefix. No request is made.

    Raises:
        InvalidInputError: it is not the URL of a bucket, or the library is not installed.
        StorageError: the settings in the environment are not valid.
    """
    scheme = parse_url(url)[0]
    url = normal_url(url)
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError as error:
        raise InvalidInputError(f"{url} needs the library obstore, which is not installed", INSTALL) from error
    if scheme == "memory":
        return _memory_store(url)
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    seconds = _seconds(os.environ.get("REG_STORAGE_TIMEOUT"), REQUEST_SECONDS)
    try:
        return from_url(
            url,
            client_options={
                "timeout": timedelta(seconds=seconds),
                "connect_timeout": timedelta(seconds=min(CONNECT_SECONDS, seconds)),
                "allow_http": endpoint.startswith("http://"),
            },
            retry_config={
                "max_retries": RETRIES,
                "retry_timeout": timedelta(seconds=min(RETRY_SECONDS, 4 * seconds)),
                "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 2},
            },
        )
    except (BaseError, ValueError) as error:
        raise _storage_error(error, url, "cannot be opened") from error


@contextmanager
def storage_errors(url: str, doing: str = "cannot be reached", key: str = "") -> Iterator[None]:
    """Raise failures of an object store as StorageErrors for the user; `doing` is what failed: "cannot be read".

    An object that is absent (FileNotFoundError) and one that a conditional request found (AlreadyExistsError,
    PreconditionError of obstore) pass unchanged: they are answers. The same answer for a bucket that does not exist is
    a failure.
    """
    from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

    try:
        yield
    except (AlreadyExistsError, PreconditionError):
        raise
    except FileNotFoundError as error:
        if _has(str(error), _NO_BUCKET):
            raise _storage_error(error, url, doing, key) from error
        raise
    except (BaseError, PermissionError, TimeoutError, ConnectionError) as error:
        raise _storage_error(error, url, doing, key) from error


def _storage_error(error: Exception, url: str, doing: str, key: str = "") -> StorageError:
    """Return a failure as an error for the user, with its cause in one line."""
    scheme, bucket, _ = parse_url(url)
    text = str(error)
    failed = f"{normal_url(url)}/{key} {doing}" if key else f"{url} {doing}"
    found = re.search(r"<Code>(\w+)</Code>", text) or re.search(r"status code: (\d{3} [A-Za-z ]+)", text)
    code = found[1].strip() if found else ""
    values = {
        "bucket": bucket,
        "variables": f": {_VARIABLES[scheme]}" if _VARIABLES[scheme] else "",
        "in_brackets": f" ({code})" if code else "",
        "code": code or "after several attempts",
    }
    is_denied = isinstance(error, PermissionError) or type(error).__name__ in _DENIALS
    for parts, meaning, hint in _CAUSES:
        if _has(text, parts) or (parts is _DENIED and is_denied):
            return StorageError(f"{failed}: {meaning.format(**values)}", hint.format(**values))
    line = first_line(text, "it failed")
    line = line if len(line) <= 300 else f"{line[:300]}…"
    return StorageError(f"{failed}: {line}", "check the bucket, then repeat the command")


def _has(text: str, parts: Iterable[str]) -> bool:
    return any(part in text for part in parts)


def _seconds(text: str | None, default: float) -> float:
    """Return a number of seconds from the environment, or the default (InvalidInputError: it is not positive)."""
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise InvalidInputError(f"REG_STORAGE_TIMEOUT is {text!r}", "set it to a number of seconds, such as 120")
    return seconds


@cache
def _memory_store(url: str) -> "ObjectStore":
    """Return the store in memory of a URL, the same one for as long as the process lives."""
    from obstore.store import MemoryStore

    return MemoryStore()
