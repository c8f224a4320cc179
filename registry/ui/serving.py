"""The HTTP server of the pages, on this machine's loopback address."""

import errno
import os
import socket
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from registry.errors import StorageError

if TYPE_CHECKING:
    import uvicorn

ADDRESS = "127.0.0.1"
SHUTDOWN_SECONDS = 1
"""Seconds that running requests may take after the server is asked to stop."""


def listen(port: int) -> socket.socket:
    """Return a socket that listens on this machine's loopback address.

    Args:
        port: the port; 0 for any free one.

    Raises:
        StorageError: the port is taken, or may not be used.
    """
    try:
        return socket.create_server((ADDRESS, port), backlog=64)
    except OSError as error:
        why = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used: {os.strerror(error.errno or 0)}"
        raise StorageError(f"port {port} {why}", "choose another one, or any free one: reg ui --port 0") from error


def server(app: ASGIApp) -> "uvicorn.Server":
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
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return uvicorn.Server(config)
