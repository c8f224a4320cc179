"""Unfinished uploads in parts, listed and aborted: a process that was killed leaves one behind.

The library that uploads cannot list them, so these two requests of S3 are signed here (AWS Signature Version 4), with
the keys of the environment. Without keys there (a role of the machine), and on Google's storage, a lifecycle rule of
the bucket does it; Azure deletes unfinished blocks after a week.
"""

import hashlib
import hmac
import os
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

SECONDS = 20.0  # seconds that a request may take
MOST_BYTES = 2**24  # bytes of an answer that are read at most: a list of 1,000 uploads has less
_EMPTY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Keys:
    """Keys that sign a request: `token` is that of temporary ones, else empty; `region` is the bucket's."""

    access: str
    secret: str
    token: str
    region: str

    @classmethod
    def of_environment(cls) -> "Keys | None":
        """Return the keys in the environment; None if there are none."""
        access, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
        if not access or not secret:
            return None
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        return cls(access, secret, os.environ.get("AWS_SESSION_TOKEN", ""), region)


def abort_uploads(url: str) -> int:
    """Abort the unfinished uploads below a URL, which only take space, and return how many; failures are not raised."""
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    keys = Keys.of_environment()
    if scheme != "s3" or keys is None:
        return 0
    aborted = 0
    with suppress(OSError, ElementTree.ParseError, ValueError):
        for key, upload in _unfinished(bucket, f"{prefix}/" if prefix else "", keys):
            _request("DELETE", bucket, key, {"uploadId": upload}, keys)
            aborted += 1
    return aborted


def _unfinished(bucket: str, prefix: str, keys: Keys) -> Iterator[tuple[str, str]]:
    """Yield key and id of each unfinished upload directly below a prefix (at most 1,000, the most of one answer)."""
    root = ElementTree.fromstring(_request("GET", bucket, "", {"uploads": "", "prefix": prefix}, keys))
    for upload in root.iterfind("{*}Upload"):
        key, number = upload.findtext("{*}Key") or "", upload.findtext("{*}UploadId") or ""
        if key.startswith(prefix) and "/" not in key.removeprefix(prefix) and number:
            yield key, number


def _request(method: str, bucket: str, key: str, query: Mapping[str, str], keys: Keys) -> bytes:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        parts = urlsplit(endpoint.rstrip("/"))
        scheme, host, path = parts.scheme, parts.netloc, f"{parts.path}/{bucket}"
    else:
        scheme, host, path = "https", f"s3.{keys.region}.amazonaws.com", f"/{bucket}"
    path = f"{path}/{quote(key, safe='/-_.~')}" if key else path
    text = canonical_query(query)
    headers = signed_headers(method, host, path, text, keys, datetime.now(UTC))
    request = urllib.request.Request(f"{scheme}://{host}{path}?{text}", method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        return bytes(answer.read(MOST_BYTES))


def canonical_query(query: Mapping[str, str]) -> str:
    """Return the parameters of a request as they are signed and sent."""
    return "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted(query.items()))


def signed_headers(method: str, host: str, path: str, query: str, keys: Keys, at: datetime) -> dict[str, str]:
    """Return the headers of a request without a body, with its signature; `host` has the port, `path` is encoded."""
    stamp, day = at.strftime("%Y%m%dT%H%M%SZ"), at.strftime("%Y%m%d")
    headers = {"host": host, "x-amz-content-sha256": _EMPTY, "x-amz-date": stamp}
    headers |= {"x-amz-security-token": keys.token} if keys.token else {}
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = "\n".join((method, path, query, lines, names, _EMPTY))
    scope = f"{day}/{keys.region}/s3/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{keys.secret}".encode()
    for part in (day, keys.region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    value = f"AWS4-HMAC-SHA256 Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
    return headers | {"Authorization": value}
