"""The uvicorn server of the gateway: it listens before the store is open, and finishes requests before it stops.

`python -m gateway` and tests run it.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import cast

import structlog
import uvicorn
from fastapi import FastAPI

from gateway.compat_uvicorn import LimitedHttpProtocol, LiveWebSocketProtocol
from gateway.dependencies import Services
from gateway.live.hub import Hub
from gateway.settings import GatewaySettings
from lakesync.model.errors import StartupError

log = structlog.get_logger("gateway")

_OTHER_FILES = 1024
"""Number of open files besides WebSocket connections, for HTTP connections, the store and others."""


def listen(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket.

    The protocol IPPROTO_TCP is given explicitly, because asyncio switches Nagle's algorithm off only then. Without that
    small responses take 30 times as long.

    Args:
        host: address or name to listen on.
        port: port to listen on; 0 for any free port.

    Raises:
        StartupError: the address cannot be used.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        raise StartupError(
            f"the gateway cannot listen on {host}:{port}: {error.strerror}; use another --port"
        ) from error
    return bound


class GatewayServer(uvicorn.Server):
    """A uvicorn server that stops in two steps: it rejects new requests and finishes those in flight, then exits."""

    def __init__(self, app: FastAPI, settings: GatewaySettings, open_store: Callable[[], None] | None = None) -> None:
        """Configure the server; `run` starts it.

        Args:
            app: the result of `create_app`.
            settings: the server's settings.
            open_store: opens the store. It is called in a worker thread once the server listens, and requests are
                rejected until it returns. None if the store is open already.
        """
        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedHttpProtocol,
                ws=LiveWebSocketProtocol,
                ws_max_size=settings.max_body_bytes + 1,  # the tag byte
                ws_per_message_deflate=False,  # one frame is sent to many connections
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=max(1, round(settings.request_timeout)),
            )
        )
        raise_file_limit(settings.max_connections)
        self._gate = Services.of_app(app).gate
        self._hub = cast("Hub", app.state.hub)
        self._drain_seconds = settings.request_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain_task: asyncio.Task[None] | None = None
        self._open_store = open_store
        if open_store is not None:
            self._gate.close_for_startup()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then open the store, then accept requests.

        Args:
            sockets: listening sockets.

        Raises:
            StagingUnavailableError, StagingVersionError: as the store's `open`.
        """
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._open_store is not None:
            for bound in sockets or ():
                log.info("starting", url=_url(bound))
            try:
                await asyncio.to_thread(self._open_store)
            except Exception:
                await self.lifespan.shutdown()  # otherwise uvicorn logs the cancelled application with a traceback
                raise
            self._gate.open()
        for bound in sockets or ():
            log.info("listening", url=_url(bound))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 the signature is uvicorn's
        """Start to drain at the first signal; exit at once at a second SIGINT."""
        if self._loop is None or (self._drain_task is not None and sig == signal.SIGINT):
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self._start_draining, sig)

    def _start_draining(self, sig: int) -> None:
        """Begin to end the server, at the first signal."""
        if self._drain_task is None:
            self._drain_task = asyncio.ensure_future(self._drain(sig))

    async def _drain(self, sig: int) -> None:
        """Accept no new work, wait for requests in progress, then let uvicorn exit."""
        log.info("draining", signal=signal.Signals(sig).name, in_flight=self._gate.in_flight)
        self._hub.drain()
        finished = await self._gate.drain(self._drain_seconds)
        log.info("drained", finished=finished, in_flight=self._gate.in_flight)
        self.should_exit = True


def raise_file_limit(connections: int) -> None:
    """Raise the process's limit of open files for a number of connections; log a warning if the system forbids it.

    Args:
        connections: number of WebSocket connections, at most.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        log.warning(
            "the system allows fewer open files than websocket_connections needs: raise its hard limit",
            allowed=hard,
            needed=needed,
        )
        needed = hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _url(bound: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
