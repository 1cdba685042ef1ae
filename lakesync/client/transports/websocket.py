"""The transport over a WebSocket, on which the gateway sends changes as they happen.

Pulls and broadcasts travel on the WebSocket. Pushes, checkpoints, schemas and actions use HTTP, where an error can name
the rejected deltas.
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

from lakesync.client.errors import UnreachableError, error_from_code
from lakesync.client.transports.base import Message, Token
from lakesync.client.transports.http import HttpTransport, error_from_response
from lakesync.model.errors import LakeSyncError, ValidationError
from lakesync.model.types import SyncPull
from lakesync.wire import protobuf
from lakesync.wire.frames import FrameTag, encode_frame

_POLICY_VIOLATION = 1008
"""The WebSocket close code with which the gateway sends an error."""
_CLOSE_TIMEOUT = 0.5
"""Seconds to wait for the gateway's close frame."""
_QUEUED_MESSAGES = 16
"""Messages that wait to be received, at most; the gateway waits with further ones."""

_log = logging.getLogger("lakesync.client.websockets")
_log.setLevel(logging.CRITICAL)  # the client's status and events report why a connection ended


class WebSocketTransport(HttpTransport):
    """HTTP, and subscriptions over WebSockets."""

    def __init__(self, base_url: str, gateway_id: str, token: Token | None = None, **options: Any) -> None:
        """Configure the transport; no connection is opened yet.

        Args:
            base_url: as for `HttpTransport`; it may begin with ws or http.
            gateway_id: the gateway's id there.
            token: as for `HttpTransport`.
            options: as for `HttpTransport`.
        """
        http = base_url.replace("ws", "http", 1) if base_url.startswith("ws") else base_url
        super().__init__(http, gateway_id, token, **options)
        self._websocket_url = f"{http.rstrip('/').replace('http', 'ws', 1)}/sync/{quote(gateway_id, safe='')}/ws"
        self._websocket_options: dict[str, Any] = {
            "open_timeout": self._timeout,
            "close_timeout": _CLOSE_TIMEOUT,
            "compression": None,
            "max_size": None,
            "logger": _log,
        }
        if self._proxy is not None:
            self._websocket_options["proxy"] = self._proxy

    def connect(self) -> WebSocketSubscription:
        """Open a subscription.

        Raises:
            UnreachableError: the gateway does not answer.
            AuthError, ForbiddenError, NotFoundError, BackpressureError: the gateway rejects this client.
        """
        token = self.tokens.current()
        try:
            return WebSocketSubscription(*self._open(token))
        except InvalidStatus as error:
            rejection = _error_of(error)
            if rejection.code != "AUTH_ERROR" or not self.tokens.renewable:
                raise rejection from None
            self.tokens.renew(token)
        try:
            return WebSocketSubscription(*self._open(self.tokens.current()))
        except InvalidStatus as error:
            raise _error_of(error) from None

    def _open(self, token: str | None) -> tuple[ClientConnection, ExitStack]:
        """Open a WebSocket; return it with the context that closes it."""
        headers = dict(self._headers)
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"

        def open_connection() -> tuple[ClientConnection, ExitStack]:
            context = ExitStack()
            ssl_context = _ssl_context(self._ca) if self._websocket_url.startswith("wss") else None
            options = self._websocket_options
            connection = connect(self._websocket_url, additional_headers=headers, ssl=ssl_context, **options)
            return context.enter_context(connection), context

        try:
            return self._calls.run(open_connection, lambda opened: opened[1].close())
        except InvalidStatus:
            raise
        except (OSError, TimeoutError, WebSocketException) as error:
            raise UnreachableError(f"{self._websocket_url} does not answer: {error}") from error


def _error_of(error: InvalidStatus) -> LakeSyncError:
    response = error.response
    return error_from_response(response.status_code, bytes(response.body or b""), response.headers)


def _ssl_context(ca: str | None) -> ssl.SSLContext:
    """Return a context that trusts the certificates that requests trusts, and the system's."""
    from_environment = (os.environ.get(name) for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    path = ca or next(filter(None, from_environment), None) or DEFAULT_CA_BUNDLE_PATH
    is_folder = Path(path).is_dir()
    context = ssl.create_default_context()
    context.load_verify_locations(None if is_folder else path, path if is_folder else None)
    return context


class WebSocketSubscription:
    """An open WebSocket; a thread receives its messages. Implements `Subscription`."""

    def __init__(self, socket: ClientConnection, context: ExitStack) -> None:
        """Start to receive.

        Args:
            socket: the WebSocket.
            context: closes it.
        """
        self._socket = socket
        self._context = context
        self._received: queue.Queue[bytes | LakeSyncError | None] = queue.Queue(_QUEUED_MESSAGES)
        """Messages, the error that ended the connection, and None from `wake`."""
        self._closed = False
        threading.Thread(target=self._read, name="lakesync-websocket", daemon=True).start()

    def pull(self, pull: SyncPull) -> None:
        """Send a pull; `receive` returns the answer.

        Raises:
            LakeSyncError: why the connection has ended.
        """
        try:
            self._socket.send(encode_frame(FrameTag.PULL, protobuf.encode_pull(pull)))
        except ConnectionClosed as error:
            raise _close_error(error) from error

    def receive(self, timeout: float | None) -> Message | None:
        """See `Subscription.receive`."""
        try:
            received = self._received.get(timeout=None if timeout is None else max(0.0, timeout))
        except queue.Empty:
            return None
        if isinstance(received, LakeSyncError):
            raise received
        if received is None:
            return None
        is_broadcast = received[:1] == bytes((FrameTag.BROADCAST,))
        try:
            return Message(is_broadcast, protobuf.decode_response(received[1:] if is_broadcast else received))
        except ValidationError as error:
            raise UnreachableError(f"a message on the WebSocket cannot be decoded: {error}") from error

    def wake(self) -> None:
        """Make `receive` return."""
        with suppress(queue.Full):  # then it returns anyway
            self._received.put_nowait(None)

    def close(self) -> None:
        """Close the WebSocket."""
        self._closed = True
        self._context.close()

    def _read(self) -> None:
        try:
            while True:
                message = self._socket.recv()
                self._put(message if isinstance(message, bytes) else message.encode())
        except ConnectionClosed as error:
            self._put(_close_error(error))
        except Exception as error:  # any failure of this thread ends the subscription
            self._put(UnreachableError(f"the WebSocket failed: {error!r}"))

    def _put(self, message: bytes | LakeSyncError) -> None:
        while not self._closed:
            with suppress(queue.Full):
                self._received.put(message, timeout=1)
                return


def _close_error(error: ConnectionClosed) -> LakeSyncError:
    """Return the error in a WebSocket's close frame."""
    if error.rcvd is not None and error.rcvd.code == _POLICY_VIOLATION:
        code, _, message = error.rcvd.reason.partition(":")
        return error_from_code(code.strip(), message.strip() or "the gateway closed the WebSocket")
    reason = f"{error.rcvd.code} {error.rcvd.reason}" if error.rcvd is not None else "the connection was lost"
    return UnreachableError(f"the WebSocket was closed: {reason}")
