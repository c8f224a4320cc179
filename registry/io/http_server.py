"""HTTP servers of ASGI applications, for browsers and programs on this machine or for a network."""

import errno
import os
import re
import socket
from typing import TYPE_CHECKING

from registry.errors import StorageError

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

ADDRESS = "127.0.0.1"
LOCAL_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
"""Host headers of this machine, with any port, since a tunnel (`ssh -L`) may use another one.

A page of another site that points its own name at 127.0.0.1 (DNS rebinding) sends that name.
"""
_BACKLOG = 64  # connections that wait to be accepted
_SHUTDOWN_SECONDS = 1  # that running requests may take after the server is asked to stop


def listen(port: int, address: str = ADDRESS) -> socket.socket:
    """Return a socket on an address of this machine; port 0 is any free one (StorageError: it cannot be used)."""
    try:
        made = socket.create_server((address, port), backlog=_BACKLOG)
        # With the protocol told, asyncio sends an answer's parts at once (TCP_NODELAY), not 40 ms apart.
        return socket.socket(made.family, made.type, socket.IPPROTO_TCP, made.detach())
    except OSError as error:
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used: {os.strerror(error.errno or 0)}"
        where = "" if address == ADDRESS else f" of {address}"
        raise StorageError(f"port {port}{where} {why}", "choose another one, or any free one: --port 0") from error


def server(app: "ASGIApp") -> "uvicorn.Server":
    """Return the server of `app`; run it with `server(app).run(sockets=[listen(port)])`."""
    import uvicorn

    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    return uvicorn.Server(config)
