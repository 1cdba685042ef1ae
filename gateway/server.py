"""uvicorn, with a socket of ours and an end in which what is in flight is finished."""

from __future__ import annotations

import asyncio
import signal
import socket
from types import FrameType

import structlog
import uvicorn
from fastapi import FastAPI

from gateway.protocol import BoundedHttp
from gateway.services import Services
from gateway.settings import GatewaySettings
from lakesync.exceptions import StartupError

log = structlog.get_logger("gateway")


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Made as TCP by name: of a socket without the protocol asyncio does not switch Nagle off, which costs a factor of 30.

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
    """Ends in two steps: new requests are turned away while those in flight finish, then the server stops."""

    def __init__(self, app: FastAPI, settings: GatewaySettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedHttp,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=max(1, round(settings.request_timeout)),
            )
        )
        services: Services = app.state.services
        self._drain = services.drain
        self._patience = settings.request_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and say where."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        for bound in sockets or ():
            host, port = bound.getsockname()[:2]
            where = f"[{host}]" if ":" in host else host
            log.info("listening", url=f"http://{where}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 the signature is uvicorn's
        """Drain at the first signal; a further SIGINT ends at once."""
        if self._loop is None or (self._ending is not None and sig == signal.SIGINT):
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self._begin_to_end, sig)

    def _begin_to_end(self, sig: int) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end(sig))

    async def _end(self, sig: int) -> None:
        log.info("draining", signal=signal.Signals(sig).name, in_flight=self._drain.in_flight)
        finished = await self._drain.finish(self._patience)
        log.info("drained", finished=finished, in_flight=self._drain.in_flight)
        self.should_exit = True
