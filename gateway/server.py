"""uvicorn, with a socket of ours and an end in which what is in flight is finished."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType

import structlog
import uvicorn
from fastapi import FastAPI

from gateway.live.files import allow_connections
from gateway.live.protocol import LiveProtocol
from gateway.protocol import BoundedHttp
from gateway.services import Services
from gateway.settings import GatewaySettings
from lakesync.model.errors import StartupError

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

    def __init__(self, app: FastAPI, settings: GatewaySettings, open_store: Callable[[], None] | None = None) -> None:
        """Args: open_store: run once the server answers, in a thread; work is turned away until it ends."""
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedHttp,
                ws=LiveProtocol,
                ws_max_size=settings.max_body_bytes + 1,  # the tag byte
                ws_per_message_deflate=False,  # a frame is made once for all who get it
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=max(1, round(settings.request_timeout)),
            )
        )
        allow_connections(settings.max_connections)
        services: Services = app.state.services
        self._drain = services.drain
        self._hub = services.hub
        self._patience = settings.request_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None
        self._verifier = services.verifier
        self._keys: asyncio.Task[None] | None = None
        self._open_store = open_store
        if open_store is not None:
            self._drain.starting()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, open the store, and say where work is taken.

        Raises:
            StagingUnavailableError, StagingVersionError: as the store's `open`.
        """
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._verifier is not None:
            self._keys = asyncio.create_task(self._verifier.keep_keys_fresh())
        if self._open_store is not None:
            for bound in sockets or ():
                log.info("starting", url=_url(bound))
            try:
                await asyncio.to_thread(self._open_store)
            except Exception:
                await self.lifespan.shutdown()  # or the application is cut off, and says so at length
                raise
            self._drain.started()
        for bound in sockets or ():
            log.info("listening", url=_url(bound))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 the signature is uvicorn's
        """Drain at the first signal; a further SIGINT ends at once."""
        if self._loop is None or (self._ending is not None and sig == signal.SIGINT):
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self._begin_to_end, sig)

    def _begin_to_end(self, sig: int) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end(sig))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, and hear no more of the store."""
        if self._keys is not None:
            self._keys.cancel()
        self._hub.close()
        await super().shutdown(sockets)

    async def _end(self, sig: int) -> None:
        log.info("draining", signal=signal.Signals(sig).name, in_flight=self._drain.in_flight)
        self._hub.drain()
        finished = await self._drain.finish(self._patience)
        log.info("drained", finished=finished, in_flight=self._drain.in_flight)
        self.should_exit = True


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
