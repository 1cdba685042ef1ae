"""A gateway over a WebSocket: changes come by themselves.

Pulls and broadcasts travel on the line; pushes, checkpoints, schemas and actions over HTTP beside it, where a refusal
can name the deltas at fault.
"""

from __future__ import annotations

import logging
import os
import queue
import ssl
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from requests.utils import DEFAULT_CA_BUNDLE_PATH
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from lakesync.client.errors import UnreachableError, answered
from lakesync.client.transports.base import Token
from lakesync.client.transports.http import HttpTransport, refusal
from lakesync.model.errors import LakeSyncError, ValidationError
from lakesync.model.types import SyncPull, SyncResponse
from lakesync.wire import protobuf
from lakesync.wire.frames import FrameTag, encode_frame

_POLICY = 1008
_TAG = FrameTag.BROADCAST
_PARTING = 0.5
"""Seconds that a line waits for the gateway's goodbye."""
_HELD = 16
"""Messages held for who is busy; the gateway waits with what comes after them."""

_log = logging.getLogger("lakesync.client.websockets")
_log.setLevel(logging.CRITICAL)  # what ends a line is told by the client's status and events


class WebSocketTransport(HttpTransport):
    """HTTP, and lines on which the gateway speaks unasked."""

    def __init__(self, base_url: str, gateway_id: str, token: Token | None = None, **options: Any) -> None:
        """As `HttpTransport`; `base_url` may begin with ws or http."""
        http = base_url.replace("ws", "http", 1) if base_url.startswith("ws") else base_url
        super().__init__(http, gateway_id, token, **options)
        self._line_url = f"{http.rstrip('/').replace('http', 'ws', 1)}/sync/{quote(gateway_id, safe='')}/ws"
        self._options: dict[str, Any] = {
            "open_timeout": self._timeout,
            "close_timeout": _PARTING,
            "compression": None,
            "max_size": None,
            "logger": _log,
        }
        if self._proxy is not None:
            self._options["proxy"] = self._proxy

    def connect(self) -> WebSocketLine:
        """A new line.

        Raises:
            UnreachableError: nobody answers.
            AuthError, ForbiddenError, NotFoundError, BackpressureError: the gateway does not let this client in.
        """
        token = self.tokens.current()
        try:
            return WebSocketLine(*self._open(token))
        except InvalidStatus as error:
            refused = refusal(error.response.status_code, bytes(error.response.body or b""), error.response.headers)
            if refused.code != "AUTH_ERROR" or not self.tokens.renewable:
                raise refused from None
            self.tokens.renew(token)
        try:
            return WebSocketLine(*self._open(self.tokens.current()))
        except InvalidStatus as error:
            raise refusal(
                error.response.status_code, bytes(error.response.body or b""), error.response.headers
            ) from None

    def _open(self, token: str | None) -> tuple[ClientConnection, ExitStack]:
        headers = dict(self._headers)
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"

        def opened() -> tuple[ClientConnection, ExitStack]:
            held = ExitStack()
            trusted = _context(self._ca) if self._line_url.startswith("wss") else None
            opening = connect(self._line_url, additional_headers=headers, ssl=trusted, **self._options)
            return held.enter_context(opening), held

        try:
            return self._aside.run(opened, lambda line: line[1].close())
        except InvalidStatus:
            raise
        except (OSError, TimeoutError, WebSocketException) as error:
            raise UnreachableError(f"{self._line_url} does not answer: {error}") from error


def _context(ca: str | None) -> ssl.SSLContext:
    """Whom to believe: what requests believes, and what the system does."""
    named = (os.environ.get(name) for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    place = ca or next(filter(None, named), None) or DEFAULT_CA_BUNDLE_PATH
    folder = Path(place).is_dir()
    context = ssl.create_default_context()
    context.load_verify_locations(None if folder else place, place if folder else None)
    return context


class WebSocketLine:
    """An open WebSocket; a thread of its own takes what comes."""

    def __init__(self, socket: ClientConnection, held: ExitStack) -> None:
        """Args: held: closed to hang up."""
        self._socket = socket
        self._held = held
        self._came: queue.Queue[bytes | LakeSyncError | None] = queue.Queue(_HELD)
        self._closed = False
        threading.Thread(target=self._read, name="lakesync-line", daemon=True).start()

    def pull(self, pull: SyncPull) -> None:
        """Ask; the answer comes by `receive`."""
        try:
            self._socket.send(encode_frame(FrameTag.PULL, protobuf.encode_pull(pull)))
        except ConnectionClosed as error:
            raise _ended(error) from error

    def receive(self, timeout: float | None) -> tuple[bool, SyncResponse] | None:
        """Whether it is a broadcast, and the page."""
        try:
            came = self._came.get(timeout=None if timeout is None else max(0.0, timeout))
        except queue.Empty:
            return None
        if isinstance(came, LakeSyncError):
            raise came
        if came is None:
            return None
        unasked = came[:1] == bytes((_TAG,))
        try:
            return unasked, protobuf.decode_response(came[1:] if unasked else came)
        except ValidationError as error:
            raise UnreachableError(f"a message on the WebSocket cannot be read: {error}") from error

    def wake(self) -> None:
        """Let `receive` return."""
        with suppress(queue.Full):  # then there is enough to return for
            self._came.put_nowait(None)

    def close(self) -> None:
        """Hang up."""
        self._closed = True
        self._held.close()

    def _read(self) -> None:
        try:
            while True:
                message = self._socket.recv()
                self._put(message if isinstance(message, bytes) else message.encode())
        except ConnectionClosed as error:
            self._put(_ended(error))
        except Exception as error:  # whatever ends this thread ends the line
            self._put(UnreachableError(f"the WebSocket failed: {error!r}"))

    def _put(self, came: bytes | LakeSyncError) -> None:
        while not self._closed:
            with suppress(queue.Full):
                self._came.put(came, timeout=1)
                return


def _ended(error: ConnectionClosed) -> LakeSyncError:
    """Why a connection has ended, as its close frame says."""
    if error.rcvd is not None and error.rcvd.code == _POLICY:
        code, _, message = error.rcvd.reason.partition(":")
        return answered(code.strip(), message.strip() or "the gateway ended the connection")
    why = f"{error.rcvd.code} {error.rcvd.reason}" if error.rcvd is not None else "the line broke"
    return UnreachableError(f"the WebSocket was closed: {why}")
