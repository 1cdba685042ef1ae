"""The transport with a WebSocket, on which the gateway sends changes as they happen (broadcasts).

Auto-sync opens the WebSocket, and pulls on it. All other requests use HTTP, where an error can name the rejected
deltas.
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
"""The WebSocket close code with which the gateway sends an error, as `CODE: message` in the close reason."""
_CLOSE_TIMEOUT_SECONDS = 0.5
"""Longest wait for the gateway's close frame."""
_MAX_QUEUED_MESSAGES = 16
"""Messages read from the socket and not returned by `receive` yet; further ones stay in the network's buffers."""

_log = logging.getLogger("lakesync.client.websockets")
_log.setLevel(logging.CRITICAL)  # the client's status and events report why a connection ended


class WebSocketTransport(HttpTransport):
    """Sends requests over HTTP, and opens subscriptions over WebSockets."""

    def __init__(self, base_url: str, gateway_id: str, token: Token | None = None, **options: Any) -> None:
        """Configure the transport; no connection is opened yet.

        Args:
            base_url: the server's URL, which may begin with `http`, `https`, `ws` or `wss`.
            gateway_id: the gateway's id on that server.
            token: a JWT, or a function that returns one; None for a server without a secret.
            options: `timeout`, `proxy`, `ca` and `headers`, as for `HttpTransport`.
        """
        http_url = base_url.replace("ws", "http", 1) if base_url.startswith("ws") else base_url
        super().__init__(http_url, gateway_id, token, **options)
        self._websocket_url = f"{http_url.rstrip('/').replace('http', 'ws', 1)}/sync/{quote(gateway_id, safe='')}/ws"
        self._websocket_options: dict[str, Any] = {
            "open_timeout": self._timeout,
            "close_timeout": _CLOSE_TIMEOUT_SECONDS,
            "compression": None,
            "max_size": None,
            "logger": _log,
        }
        if self._proxy is not None:
            self._websocket_options["proxy"] = self._proxy

    def connect(self) -> WebSocketSubscription:
        """Open a WebSocket. If its token is rejected and a function can provide a new one, try once more.

        Raises:
            UnreachableError: the gateway does not respond.
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
        """Open a WebSocket; return it with the context that closes it.

        Raises:
            InvalidStatus: the server responded with an HTTP error instead of a WebSocket.
            UnreachableError: the server does not respond.
        """
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
            return self._calls.run(open_connection, lambda connection_and_context: connection_and_context[1].close())
        except InvalidStatus:
            raise
        except (OSError, TimeoutError, WebSocketException) as error:
            raise UnreachableError(f"{self._websocket_url} does not answer: {error}") from error


def _error_of(error: InvalidStatus) -> LakeSyncError:
    """Return the gateway's error from the HTTP response to a WebSocket handshake."""
    response = error.response
    return error_from_response(response.status_code, bytes(response.body or b""), response.headers)


def _ssl_context(ca: str | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates that requests trusts, and the system's.

    Args:
        ca: file or folder of trusted certificates; None for the environment's, or certifi's.
    """
    from_environment = (os.environ.get(name) for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    path = ca or next(filter(None, from_environment), None) or DEFAULT_CA_BUNDLE_PATH
    is_folder = Path(path).is_dir()
    context = ssl.create_default_context()
    context.load_verify_locations(None if is_folder else path, path if is_folder else None)
    return context


class WebSocketSubscription:
    """An open WebSocket; a thread receives its messages. Implements `Subscription`."""

    def __init__(self, socket: ClientConnection, context: ExitStack) -> None:
        """Start the thread that receives.

        Args:
            socket: the open WebSocket.
            context: closes the WebSocket when it is closed.
        """
        self._socket = socket
        self._context = context
        self._received: queue.Queue[bytes | LakeSyncError | None] = queue.Queue(_MAX_QUEUED_MESSAGES)
        """Encoded messages; the error that ended the connection; None for each `wake`."""
        self._closed = False
        threading.Thread(target=self._read, name="lakesync-websocket", daemon=True).start()

    def pull(self, pull: SyncPull) -> None:
        """Send a pull without waiting; `receive` returns the response.

        Raises:
            LakeSyncError: the connection has ended; the error says why.
        """
        try:
            self._socket.send(encode_frame(FrameTag.PULL, protobuf.encode_pull(pull)))
        except ConnectionClosed as error:
            raise _close_error(error) from error

    def receive(self, timeout: float | None) -> Message | None:
        """Wait for a message; return None after the timeout or a `wake`. See `Subscription.receive`."""
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
        """Make a waiting `receive` return None. Any thread may call it."""
        with suppress(queue.Full):  # `receive` does not wait while the queue has messages
            self._received.put_nowait(None)

    def close(self) -> None:
        """Close the WebSocket."""
        self._closed = True
        self._context.close()

    def _read(self) -> None:
        """Queue the messages of the socket, and at last the error that ended the connection. Runs in a thread."""
        try:
            while True:
                message = self._socket.recv()
                self._put(message if isinstance(message, bytes) else message.encode())
        except ConnectionClosed as error:
            self._put(_close_error(error))
        except Exception as error:  # any failure of this thread ends the subscription
            self._put(UnreachableError(f"the WebSocket failed: {error!r}"))

    def _put(self, message: bytes | LakeSyncError) -> None:
        """Wait for room in the queue and add a message; discard it once the subscription is closed."""
        while not self._closed:
            with suppress(queue.Full):
                self._received.put(message, timeout=1)
                return


def _close_error(error: ConnectionClosed) -> LakeSyncError:
    """Return the gateway's error from a WebSocket's close frame; `UnreachableError` if the frame has none."""
    if error.rcvd is not None and error.rcvd.code == _POLICY_VIOLATION:
        code, _, message = error.rcvd.reason.partition(":")
        return error_from_code(code.strip(), message.strip() or "the gateway closed the WebSocket")
    reason = f"{error.rcvd.code} {error.rcvd.reason}" if error.rcvd is not None else "the connection was lost"
    return UnreachableError(f"the WebSocket was closed: {reason}")
