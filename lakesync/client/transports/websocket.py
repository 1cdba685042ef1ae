"""The transport with a WebSocket, on which the gateway server sends changes as they happen: broadcasts.

`AutoSync`, the client's thread that synchronises by itself, opens the WebSocket as a *subscription*. It sends *pulls*
on it, which request the changes after the client's cursor.
All other requests use HTTP, where an error can name the rejected deltas (changes of rows).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import threading
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.parse import quote

from requests.utils import DEFAULT_CA_BUNDLE_PATH
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from lakesync.client.errors import UnreachableError, error_from_code
from lakesync.client.transports.base import Message
from lakesync.client.transports.http import HttpTransport, error_from_response
from lakesync.client.transports.tokens import Token
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
        return self.tokens.send(self._open)

    def _open(self, token: str | None) -> WebSocketSubscription:
        """Open a WebSocket with a token; see `connect`."""
        options = {**self._websocket_options, "additional_headers": dict(self._headers)}
        if token is not None:
            options["additional_headers"]["Authorization"] = f"Bearer {token}"

        def open_subscription() -> WebSocketSubscription:
            if self._websocket_url.startswith("wss"):
                options["ssl"], options["ssl_handshake_timeout"] = _ssl_context(self._ca), self._timeout
            return WebSocketSubscription(self._websocket_url, options)

        try:
            return self._calls.run(open_subscription, WebSocketSubscription.close)
        except InvalidStatus as error:
            response = error.response  # an HTTP error instead of a WebSocket
            body = bytes(response.body or b"")
            raise error_from_response(response.status_code, body, response.headers) from None
        except (OSError, TimeoutError, WebSocketException) as error:
            raise UnreachableError(f"{self._websocket_url} does not answer: {error}") from error


class _EventLoop(asyncio.SelectorEventLoop):
    """An event loop that looks up addresses in its own thread instead of a thread pool.

    The thread has nothing else to do meanwhile. The pool would delay the interpreter's exit until a lookup ends, and
    starts no thread during the exit.
    """

    async def getaddrinfo(self, *args: Any, **options: Any) -> Any:
        """Return `socket.getaddrinfo` of the same arguments."""
        return socket.getaddrinfo(*args, **options)


class WebSocketSubscription:
    """An open WebSocket. Implements `Subscription`.

    Only one thread, which runs an event loop, uses the connection. OpenSSL corrupts a TLS connection that one thread
    reads while another one writes.
    """

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        """Start the thread, and open a WebSocket in it.

        Args:
            url: the WebSocket's URL.
            options: keyword arguments for `websockets.asyncio.client.connect`.

        Raises:
            OSError, TimeoutError, WebSocketException: the WebSocket cannot be opened.
        """
        self._changed = threading.Condition()
        """Guards the attributes below, and reports their changes to `receive`."""
        self._received: deque[bytes] = deque()
        """Encoded messages."""
        self._is_full = False
        """Whether the event loop waits for `_has_room`, because `_received` is full."""
        self._is_woken = False
        """Whether `wake` was called after `receive` last returned None for it."""
        self._error: LakeSyncError | None = None
        """Why the connection has ended."""
        self._is_closed = False
        """Whether `close` was called; then the event loop accepts no more calls."""
        opened: Future[None] = Future()
        arguments = (url, options, opened)
        self._thread = threading.Thread(target=self._run, args=arguments, name="lakesync-websocket", daemon=True)
        self._thread.start()
        opened.result()

    def pull(self, pull: SyncPull) -> None:
        """Send a pull without waiting; `receive` returns the response.

        Raises:
            LakeSyncError: the connection has ended; the error says why.
        """
        frame = encode_frame(FrameTag.PULL, protobuf.encode_pull(pull))
        with self._changed:
            if self._error is not None:
                raise self._error
            asyncio.run_coroutine_threadsafe(self._socket.send(frame), self._loop)  # `receive` raises its error

    def receive(self, timeout: float | None) -> Message | None:
        """Wait for a message; return None after the timeout or a `wake`.

        Args:
            timeout: seconds to wait; None for no limit.

        Raises:
            LakeSyncError: the connection has ended; the error says why. Messages that arrived before are returned
                first.
            UnreachableError: the message cannot be decoded.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_woken or self._received or self._error, timeout)
            if self._is_woken:
                self._is_woken = False
                return None
            if not self._received:
                if self._error is not None:
                    raise self._error
                return None
            message = self._received.popleft()
            if self._is_full and not self._received and not self._is_closed:
                self._is_full = False
                self._loop.call_soon_threadsafe(self._has_room.set)
        is_broadcast = message[:1] == bytes((FrameTag.BROADCAST,))  # a response to a pull has no such first byte
        try:
            return Message(is_broadcast, protobuf.decode_response(message[1:] if is_broadcast else message))
        except ValidationError as error:
            raise UnreachableError(f"a message on the WebSocket cannot be decoded: {error}") from error

    def wake(self) -> None:
        """Make a waiting `receive` return None. Any thread may call it."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def close(self) -> None:
        """Close the WebSocket. Any thread may call it."""
        self._end(UnreachableError("the WebSocket was closed by this client"))
        with self._changed:
            if not self._is_closed:
                self._is_closed = True
                self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self, url: str, options: dict[str, Any], opened: Future[None]) -> None:
        """Run the event loop until the WebSocket is closed. `opened` gets the outcome of opening it."""
        try:
            with asyncio.Runner(loop_factory=_EventLoop) as runner:
                runner.run(self._serve(url, options, opened))
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)

    async def _serve(self, url: str, options: dict[str, Any], opened: Future[None]) -> None:
        """Open the WebSocket, and receive until `close` is called, which sets `_closing`."""
        self._loop = asyncio.get_running_loop()
        self._closing, self._has_room = asyncio.Event(), asyncio.Event()
        self._socket = await connect(url, **options)
        reading = asyncio.create_task(self._read())
        opened.set_result(None)
        await self._closing.wait()
        reading.cancel()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_SECONDS):  # closing waits for unsent data without a limit
                await self._socket.close()
        except TimeoutError:
            self._socket.transport.abort()
            await self._socket.wait_closed()

    async def _read(self) -> None:
        """Queue messages, and store the error that ends the connection."""
        try:
            while True:
                message = await self._socket.recv(decode=False)
                with self._changed:
                    self._received.append(message)
                    self._changed.notify_all()
                    self._is_full = is_full = len(self._received) >= _MAX_QUEUED_MESSAGES
                if is_full:
                    await self._has_room.wait()
                    self._has_room.clear()
        except ConnectionClosed as error:
            self._end(_close_error(error))
        except Exception as error:  # any failure of this task ends the subscription
            self._end(UnreachableError(f"the WebSocket failed: {error!r}"))

    def _end(self, error: LakeSyncError) -> None:
        """Store why the connection has ended, unless that is known already, and report it to `receive`."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()


def _ssl_context(ca: str | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates that requests trusts, and the system's.

    Args:
        ca: file or folder of trusted certificates; None for the environment's, or certifi's.

    Raises:
        UnreachableError: the certificates cannot be read.
    """
    from_environment = (os.environ.get(name) for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    path = ca or next(filter(None, from_environment), None) or DEFAULT_CA_BUNDLE_PATH
    is_folder = Path(path).is_dir()
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(None if is_folder else path, path if is_folder else None)
    except OSError as error:
        raise UnreachableError(f"the trusted certificates in {path} cannot be read: {error}") from error
    return context


def _close_error(error: ConnectionClosed) -> LakeSyncError:
    """Return the gateway's error from a WebSocket's close frame; `UnreachableError` if the frame has none."""
    if error.rcvd is not None and error.rcvd.code == _POLICY_VIOLATION:
        code, _, message = error.rcvd.reason.partition(":")
        return error_from_code(code.strip(), message.strip() or "the gateway closed the WebSocket")
    reason = f"{error.rcvd.code} {error.rcvd.reason}" if error.rcvd is not None else "the connection was lost"
    return UnreachableError(f"the WebSocket was closed: {reason}")
