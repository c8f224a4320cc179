"""Proves: requests about unfinished uploads are signed as Amazon's own library signs them."""

from datetime import UTC, datetime

import pytest
from botocore.auth import S3SigV4Auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]

from store.multipart_uploads import Keys, canonical_query, signed_headers

KEYS = Keys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "", "eu-central-1")
TEMPORARY = Keys(KEYS.access, KEYS.secret, "FwoGZXIvYXdzEBYaD+/=token", "us-east-1")


@pytest.mark.parametrize("keys", [KEYS, TEMPORARY], ids=["keys", "temporary keys"])
@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("GET", "/bucket", {"uploads": "", "prefix": "team/moe + ü/"}),
        ("GET", "/bucket", {"uploads": "", "prefix": ""}),
        ("DELETE", "/bucket/team/moe%20%2B%20%C3%BC/model-00001.safetensors", {"uploadId": "a+b/c=~d_e-f.g"}),
    ],
)
def test_signature_is_that_of_amazons_library(keys: Keys, method: str, path: str, query: dict[str, str]) -> None:
    host, text = "s3.eu-central-1.amazonaws.com:9000", canonical_query(query)
    request = AWSRequest(method=method, url=f"https://{host}{path}?{text}")
    S3SigV4Auth(Credentials(keys.access, keys.secret, keys.token or None), "s3", keys.region).add_auth(request)
    at = datetime.strptime(request.context["timestamp"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    signed = signed_headers(method, host, path, text, keys, at)
    assert signed["Authorization"] == request.headers["Authorization"]
    assert signed["x-amz-content-sha256"] == request.headers["X-Amz-Content-SHA256"]
    assert signed.get("x-amz-security-token") == request.headers.get("X-Amz-Security-Token")
