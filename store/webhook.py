"""The webhook of a registry: events of its log, posted to a URL and signed as GitHub signs its own."""

import hashlib
import hmac
import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from urllib.parse import SplitResult, urlsplit

from store.catalog.records import EventRecord
from store.errors import InvalidInputError, first_line

URL_VARIABLE, SECRET_VARIABLE, PLAIN_VARIABLE = "REG_WEBHOOK", "REG_WEBHOOK_SECRET", "REG_WEBHOOK_PLAIN"
SIGNATURE = "X-Hub-Signature-256"
SECONDS = 5.0  # that a post may take, its answer included
LATE = "timed out"  # why a post failed that took longer

_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Webhook:
    """A URL that events are posted to, and the secret that signs them."""

    url: SplitResult = field(repr=False)
    secret: bytes = field(repr=False)

    @classmethod
    def configured(cls) -> "Webhook | None":
        """Return the webhook that the environment names, if any (InvalidInputError: it cannot be used as it is)."""
        if not (text := os.environ.get(URL_VARIABLE)):
            return None
        try:
            url = urlsplit(text)
            is_url = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        except ValueError:
            is_url = False
        if not is_url or not text.isascii() or not text.isprintable() or " " in text or "@" in url.netloc:
            raise InvalidInputError(
                f"{URL_VARIABLE} is not a URL to post to", f"export {URL_VARIABLE}=https://HOST/PATH"
            )
        if url.scheme == "http" and url.hostname not in _LOCAL and not os.environ.get(PLAIN_VARIABLE):
            raise InvalidInputError(
                f"{URL_VARIABLE} would send events to {url.hostname} unencrypted",
                f"name an https URL; where that network is trusted: export {PLAIN_VARIABLE}=1",
            )
        if not (secret := os.environ.get(SECRET_VARIABLE)):
            raise InvalidInputError(
                f"{URL_VARIABLE} is set, and {SECRET_VARIABLE}, which signs what is posted, is not",
                f"export {SECRET_VARIABLE}=SECRET, the one that the receiver knows",
            )
        return cls(url, os.fsencode(secret))

    @property
    def place(self) -> str:
        """Scheme and host of the URL, whose path may be a secret."""
        return f"{self.url.scheme}://{self.url.netloc}"

    def post(self, registry: str, event: EventRecord) -> str | None:
        """Post an event of the registry with an id; return why it failed, if it did. No redirect is followed."""
        from http.client import HTTPConnection, HTTPException, HTTPSConnection

        body = json.dumps({"registry": registry, **vars(event)}).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "expert-registry",
            SIGNATURE: f"sha256={hmac.new(self.secret, body, hashlib.sha256).hexdigest()}",
        }
        kind = HTTPSConnection if self.url.scheme == "https" else HTTPConnection
        connection = kind(str(self.url.hostname), self.url.port, timeout=SECONDS)
        path = self.url._replace(scheme="", netloc="", fragment="").geturl()
        failed: str | None = LATE

        def send() -> None:
            nonlocal failed
            try:
                connection.request("POST", path or "/", body, headers)
                status = connection.getresponse().status
            except TimeoutError:
                return
            except (OSError, HTTPException, ValueError) as error:
                failed = first_line(str(error), type(error).__name__)
            else:
                failed = None if 200 <= status < 300 else f"it answered {status}"
            finally:
                connection.close()

        # A timeout of the connection is that of each name, address and part of the answer.
        thread = Thread(target=send, daemon=True)
        thread.start()
        thread.join(SECONDS)
        why = failed
        if thread.is_alive() and isinstance(connection.sock, socket.socket):
            with suppress(OSError):
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)  # which ends the thread
        return why
