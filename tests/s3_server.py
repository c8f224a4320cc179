"""A real server of the S3 protocol (moto) in a process of its own, started once for each process of tests.

Use the fixture `s3` (in conftest.py: `from tests.s3_server import s3 as s3`); it sets the environment that reg reads.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from sqlalchemy import make_url

from registry.home import Home

KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}

_SERVER = """
import sys
from moto.core import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
# Without these moto looks at hundreds of services for each request, and closes each connection.
DomainDispatcherApplication.get_backend_for_host = lambda _, host: "moto_api" if host == "moto_api" else "s3"
MotoRequestHandler.protocol_version = "HTTP/1.1"
MotoRequestHandler.log_request = lambda *_: None
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
for line in sys.stdin:  # until its parent has ended
    bucket, source, target = line.split()
    s3 = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    for key in [*s3.get_bucket(bucket).keys]:
        if key.startswith(source):
            s3.copy_object(s3.get_object(bucket, key), bucket, target + key.removeprefix(source))
    print("copied", flush=True)
"""

_numbers = count()


@dataclass(frozen=True)
class S3Server:
    """A running server, its address and its process."""

    endpoint: str
    process: "subprocess.Popen[str]"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that uses it."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.endpoint}

    def client(self) -> Any:
        """Return a client of boto3, which shares no code with reg."""
        import boto3  # type: ignore[import-untyped]

        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return boto3.client("s3", endpoint_url=self.endpoint, region_name=KEYS["AWS_REGION"], **keys)

    def new_bucket(self, *, versioned: bool = False) -> str:
        """Create an empty bucket of a new name, and return the name."""
        name = f"bucket-{os.getpid()}-{next(_numbers)}"
        client = self.client()
        client.create_bucket(Bucket=name)
        if versioned:
            client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        return name

    def objects(self, bucket: str, prefix: str = "") -> dict[str, bytes]:
        """Return key → content of the objects below a prefix, with the keys relative to it."""
        client, found = self.client(), {}
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            for entry in page.get("Contents", []):
                body = client.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read()
                found[entry["Key"].removeprefix(prefix).lstrip("/")] = body
        return found

    def copy(self, bucket: str, source: str, target: str) -> None:
        """Copy the objects below a prefix to another, faster than requests could."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{bucket} {source}/ {target}/\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "copied\n"

    def uploads(self, bucket: str) -> list[str]:
        """Return the keys of multipart uploads that were neither completed nor aborted."""
        return [entry["Key"] for entry in self.client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])]


def start_s3() -> S3Server:
    """Start a server; it ends with this process, or when `process.stdin` is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LD_PRELOAD"))}
        | {"MOTO_DISABLE_GLOBAL_CORS": "true"},
    )
    assert process.stdout is not None
    server = S3Server(f"http://127.0.0.1:{process.stdout.readline().strip()}", process)
    for _ in range(200):
        try:
            with urlopen(f"{server.endpoint}/moto-api/", timeout=5):
                return server
        except URLError:
            time.sleep(0.05)
    raise AssertionError("the S3 server does not answer")


def stop_s3(server: S3Server) -> None:
    """Stop a server and wait for its end."""
    server.process.communicate(timeout=30)


@contextmanager
def in_storage(kind: str) -> Iterator[None]:
    """Let homes have their arrays in a kind of storage: `folder`, or `s3`, a bucket of a server of its own.

    Homes below a folder `fresh` keep theirs, so that what is composed from a bucket is compared with what is not. The
    server is never asked from this process, so that processes may be forked.
    """
    if kind == "folder":
        yield
        return
    server = start_s3()
    bucket, locate = server.new_bucket(), Home.locate

    def located(*arguments: Any, **named: Any) -> Home:
        home = locate(*arguments, **named)
        if home.arrays_elsewhere is not None or "fresh" in home.path.parts:
            return home
        url = make_url(home.database)
        if url.get_backend_name() == "postgresql":  # one that is named, and not the home's own file
            url = url.update_query_dict({"connect_timeout": "60"})
        place = f"s3://{bucket}/{sha256(str(home.path).encode()).hexdigest()[:16]}"
        return replace(home, database=url.render_as_string(hide_password=False), arrays_elsewhere=place)

    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        patch.setattr(Home, "locate", located)
        try:
            yield
        finally:
            stop_s3(server)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One server for this process of tests."""
    server = start_s3()
    yield server
    stop_s3(server)


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with the environment of this process set to it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server
