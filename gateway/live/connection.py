"""Serves one WebSocket connection of a client. The route in `gateway.live.hub` creates it and calls `run`.

The connection responds to the client's pushes (of its own changes) and pulls (of what it lacks) in order. Each is a
frame, one WebSocket message: a tag byte and a protobuf message. Between the responses the gateway's `Channel`, which
has all connections of one app, sends *broadcasts*: pages of changes by others, without a request. The connection's
*subscriber* says which client it is, and up to which change (its cursor) the client was sent everything. A *gateway* is
one app's stream of changes. A *bucket key* names a bucket of the sync rules with the claims (fields of tokens) that may
see it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from secrets import token_hex

import structlog
from starlette.types import Message

from gateway.compat_uvicorn import LiveWebSocketProtocol, websocket_frame
from gateway.dependencies import Caller, Services
from gateway.errors import (
    CLOSE_GOING_AWAY,
    CLOSE_REJECTED,
    CLOSE_TRY_LATER,
    STOPPING_REASON,
    BadFrameError,
    close_code_of,
    metric_label,
    note_error,
    status_of,
)
from gateway.futures import result_of
from gateway.request_body import decode_if_large, encode_protobuf
from gateway.request_log import RequestRecord
from gateway.sync_service import serve_pull, serve_push
from lakesync.auth.keys import Key
from lakesync.engine.subscribers import Subscriber, Subscription, SubscriptionState
from lakesync.model.errors import AuthError, LakeSyncError, StagingUnavailableError, TransientError, ValidationError
from lakesync.model.types import DEFAULT_MAX_DELTAS, SyncPull, SyncResponse
from lakesync.wire import protobuf
from lakesync.wire.frames import FrameTag, decode_frame, encode_response_frame

log = structlog.get_logger("gateway")

ROUTE = "/sync/{gateway}/ws"
"""Path template of the connections."""
_TIMED_OUT = "the message was not served in time and may still take effect: repeat it"
"""The message of the error with which a connection is closed when a push or pull takes too long."""
_LEAST_READ_BYTES = 64 << 10
"""Bytes that a client must read in `websocket_slow_reader_seconds` while more are queued for it."""
_RETRY_SECONDS = 1.0
"""Pause after the store failed."""
_METHODS = {FrameTag.PUSH: "PUSH", FrameTag.PULL: "PULL"}
"""Tag of a frame → its method in the request log and the metrics."""


class LiveConnection:
    """One client's connection. Use it from the event loop's thread."""

    def __init__(
        self,
        services: Services,
        wire: LiveWebSocketProtocol,
        caller: Caller,
        opening: RequestRecord,
        *,
        knows_resync: bool,
    ) -> None:
        """Create the connection; `run` serves it.

        Args:
            services: the server's shared objects.
            wire: the connection's protocol, which writes the frames.
            caller: the authenticated caller.
            opening: the record of the request that opened the connection.
            knows_resync: whether the client understands the error RESYNC_REQUIRED, by which the gateway makes it pull
                all rows again. Older clients do not.
        """
        self._services = services
        self._wire = wire
        self._caller = caller
        self._opening = opening
        self._knows_resync = knows_resync
        self._messages = 0
        """Number of messages that the client has sent."""
        self._pending_close: tuple[int, str] | None = None
        """Close code and reason with which the connection ends after the response in progress; None to go on."""
        self._expiry_timer: asyncio.TimerHandle | None = None
        """Ends when the token expires; None if it does not."""
        self._stall_timer: asyncio.TimerHandle | None = None
        """Closes the connection if the client reads too slowly; None while nothing is queued."""
        self._notify_ready: Callable[[], None] = _ignore
        """Called whenever broadcasts can be sent again; `run` sets it."""
        self.is_busy = False
        """Whether a message is being served; broadcasts wait for its response."""
        self.subscriber: Subscriber | None = None
        """The client, and how far it was sent changes; None until that is known, by a pull or from the store."""
        self._resuming: asyncio.Task[None] | None = None
        """Enables broadcasts before the first pull; None if it was never started."""
        self._page_timer: asyncio.TimerHandle | None = None
        """Ends the pause of broadcasts in which the client is expected to pull its next page; None without a pause."""
        self.connection_id = token_hex(8)
        """Random id, unique among the connections of all processes."""
        self.is_announced = False
        """Whether the channel has announced the connection to all processes of the gateway."""
        self.has_sibling = False
        """Whether the channel has learnt of a sibling at another process, or that the client pulls over HTTP too."""
        self._broadcasts = 0
        """Number of broadcasts that were sent."""
        self._bytes_in = self._bytes_out = 0
        """Bytes of all messages from and to the client."""

    @property
    def client_name(self) -> str:
        """The token's `sub`; empty if the server runs without a secret."""
        return self._opening.client or ""

    @property
    def _is_closing(self) -> bool:
        """Whether the server has ended the connection, or has a reason to which its client came first."""
        return self._wire.has_closed or self._pending_close is not None

    # -- the client's messages -----------------------------------------------------------------------------------

    async def run(self, receive: Callable[[], Awaitable[Message]], on_ready: Callable[[], None]) -> None:
        """Serve the client's messages until either side closes the connection.

        Args:
            receive: returns the next ASGI message.
            on_ready: called whenever the connection can receive broadcasts again, or its client has pulled.
        """
        self._notify_ready = on_ready
        self._wire.on_writable = self._on_writable
        self._watch_expiry()
        self._start_resuming()
        if self._services.gate.is_draining:  # the others were closed while this one was opening
            self.close(CLOSE_GOING_AWAY, STOPPING_REASON)
        try:
            while (message := await receive())["type"] != "websocket.disconnect":
                if self._is_closing:
                    continue  # a message that its client closed behind is served: it may be its last push
                self.is_busy = True
                self._services.gate.request_started()
                try:
                    await self._serve(message)
                finally:
                    self.is_busy = False
                    self._services.gate.request_ended()
                if self._pending_close is not None:
                    self.close(*self._pending_close)
                else:
                    self._notify_ready()
            self._record_end(message)
        finally:
            if self._resuming is not None:
                self._resuming.cancel()
            for timer in (self._expiry_timer, self._stall_timer, self._page_timer):
                if timer is not None:
                    timer.cancel()

    async def _serve(self, message: Message) -> None:
        """Serve one message and send the response. After an error, `run` closes the connection."""
        self._messages += 1
        record = RequestRecord(f"{self._opening.request_id}-{self._messages}", route=ROUTE)
        record.gateway, record.client = self._opening.gateway, self._opening.client
        frame = message.get("bytes")
        record.bytes_in = len(frame if frame is not None else message.get("text") or "")
        self._bytes_in += record.bytes_in
        method = "MESSAGE"
        try:
            async with asyncio.timeout(self._services.settings.limits.request_timeout_seconds) as deadline:
                tag, body = self._decode(record, frame)
                method = _METHODS[tag]
                response = await (self._push(record, body) if tag is FrameTag.PUSH else self._pull(record, body))
            record.status = 200
            response_frame = encode_response_frame(response)
            record.bytes_out = len(response_frame)
            await self._send(response_frame)
        except Exception as error:
            timed_out = isinstance(error, TimeoutError) and deadline.expired()
            self._reject(record, StagingUnavailableError(_TIMED_OUT) if timed_out else error)
        finally:
            record.finish(method, self._services.metrics)

    def _decode(self, record: RequestRecord, frame: bytes | None) -> tuple[FrameTag, bytes]:
        """Return the tag and the message of a frame, after the rate limit.

        Raises:
            RateLimitedError: the client is above its rate limit.
            BadFrameError: the frame is not one that a client may send.
        """
        if self._caller.token_claims is not None:
            self._services.live_rate.check(record.gateway or "", str(self._caller.token_claims["sub"]))
        if frame is None:
            raise BadFrameError("the frame is text: send binary ones, a tag byte and a protobuf message")
        with _bad_frames():
            tag, body = decode_frame(frame)
        if tag not in _METHODS:
            raise BadFrameError("a broadcast (0x03) is the server's to send: send 0x01 push or 0x02 pull")
        return tag, body

    async def _push(self, record: RequestRecord, body: bytes) -> bytes:
        """Commit a push, and return the encoded response."""
        with _bad_frames():
            message = (await decode_if_large(protobuf.decode_push, body))()
        subscriber = self.subscriber
        if subscriber is not None and subscriber.client_id != message.client_id:  # another client's push
            subscriber = None
        # the newest cursor that the client certainly has: the connection delivers pages in order
        confirmed = subscriber.state.cursor if subscriber is not None and not subscriber.state.has_not_pulled else None
        result = await serve_push(self._services, record, self._caller, lambda: (message, None), lambda _: confirmed)
        if subscriber is not None:
            subscriber.after_push(result.server_hlc)
        self._start_resuming()  # from its first push on, the store has a record of the client
        return protobuf.encode_response(SyncResponse(result.deltas, result.server_hlc))

    async def _pull(self, record: RequestRecord, body: bytes) -> bytes:
        """Serve a pull, and return the encoded response."""
        with _bad_frames():
            message = protobuf.decode_pull(body)
        page = await serve_pull(
            self._services, record, self._caller, message, knows_resync=self._knows_resync, live=True
        )
        response = await encode_protobuf(page)
        if message.source is None:
            self._follow(message, page.server_hlc, has_more=page.has_more)
            self._pause_broadcasts(until_next_pull=page.has_more)
        elif self.subscriber is not None:
            self.subscriber.after_source()
        return response

    def _follow(self, message: SyncPull, cursor: int, *, has_more: bool) -> None:
        """Record that a pull has sent the client all changes up to a cursor, from which broadcasts continue."""
        before, client = self.subscriber, message.client_id
        # its earlier bucket keys stay: a row that the client has may leave a bucket that it saw then
        is_same_client = before is not None and before.client_id == client
        subscription = before.state.subscription if before is not None and is_same_client else Subscription()
        state = SubscriptionState(
            cursor,
            message.max_deltas,
            has_more=has_more,
            subscription=subscription,
            knows_resync=self._knows_resync,
        )
        self.subscriber = Subscriber(client, self._caller.claims(client), state)

    def _start_resuming(self) -> None:
        """Begin to enable broadcasts to a client that has not pulled over this connection yet.

        A client that understands RESYNC_REQUIRED does not need this, because it pulls when it connects.
        """
        if self.subscriber is None and not self._knows_resync and self.client_name:
            if self._resuming is not None:
                self._resuming.cancel()  # it may have read the store before this push
            self._resuming = asyncio.create_task(self._resume())

    async def _resume(self) -> None:
        """Enable broadcasts before the first pull, if the store has a record of the client: from the cursor in it."""
        while self.subscriber is None and self._wire.is_open:
            claims = self._caller.claims(self.client_name)
            try:
                cursor = await result_of(self._caller.gateway.submit_resume(self.client_name, claims))
            except TransientError:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if cursor is not None and self.subscriber is None:
                # `has_more`: the client may lack changes since that cursor
                state = SubscriptionState(cursor, DEFAULT_MAX_DELTAS, has_more=True, has_not_pulled=True)
                self.subscriber = Subscriber(self.client_name, claims, state)
                self._notify_ready()
            return

    async def _send(self, response_frame: bytes) -> None:
        """Send a response once the client has read enough; the connection of one that does not read is closed."""
        self._watch_reader()
        await self._wire.wait_writable()
        self._wire.write_frame(websocket_frame(response_frame))
        self._bytes_out += len(response_frame)

    def _reject(self, record: RequestRecord, error: Exception) -> None:
        """Log an error; `run` then closes the connection with its code."""
        note_error(error, record)
        record.status = status_of(type(error)) if isinstance(error, LakeSyncError) else 500
        self._pending_close = close_code_of(error)

    # -- broadcasts ----------------------------------------------------------------------------------------------

    def check_ready(self) -> bool:
        """Return whether a broadcast can be sent now. If it has to wait for the client to read, watch the reader."""
        if self.is_busy or self.subscriber is None or self._page_timer is not None or not self._wire.is_open:
            return False
        self._watch_reader()
        return self._wire.is_writable

    def send_broadcast(self, frame: bytes) -> None:
        """Send a broadcast.

        Args:
            frame: the result of `websocket_frame`.
        """
        self._wire.write_frame(frame)
        self._broadcasts += 1
        self._bytes_out += len(frame)

    def _on_writable(self) -> None:
        """Continue broadcasts: the client has read what was queued for it."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self._notify_ready()

    def _pause_broadcasts(self, *, until_next_pull: bool) -> None:
        """End the pause of broadcasts, and begin one if the client will probably pull its next page itself."""
        if self._page_timer is not None:
            self._page_timer.cancel()
            self._page_timer = None
        if until_next_pull:
            self._page_timer = asyncio.get_running_loop().call_later(
                self._services.settings.page_wait_seconds, self._resume_broadcasts
            )

    def _resume_broadcasts(self) -> None:
        """Continue broadcasts to a client that has not pulled its next page in time."""
        self._page_timer = None
        self._notify_ready()

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self, code: int, reason: str) -> None:
        """Close the connection. If a message is being served, its response is sent first.

        Args:
            code: WebSocket close code.
            reason: the reason, which the client receives.
        """
        self._pending_close = self._pending_close or (code, reason)
        if not self.is_busy:
            self._wire.close(*self._pending_close)

    def close_signed_by(self, keys: frozenset[Key]) -> None:
        """Close the connection if one of these keys, which their issuer has withdrawn, signed its token."""
        if self._caller.key in keys:
            withdrawn = AuthError("the issuer has withdrawn the token's key: connect again with a new token")
            self.close(CLOSE_REJECTED, f"{withdrawn.code}: {withdrawn}")

    def _watch_reader(self) -> None:
        """While data is queued for the client, check regularly that it reads."""
        if self._stall_timer is None and not self._wire.is_writable:
            seconds = self._services.settings.limits.websocket_slow_reader_seconds
            self._stall_timer = asyncio.get_running_loop().call_later(
                seconds, self._check_stalled, self._wire.queued_bytes
            )

    def _check_stalled(self, queued: int) -> None:
        """Close the connection if the client has read too little since `queued` bytes waited for it."""
        self._stall_timer = None
        if self._wire.is_writable or queued - self._wire.queued_bytes >= _LEAST_READ_BYTES:
            self._watch_reader()
        else:
            self._close_slow_reader()

    def _close_slow_reader(self) -> None:
        """Close the connection of a client that does not read."""
        queued, seconds = self._wire.queued_bytes, self._services.settings.limits.websocket_slow_reader_seconds
        log.warning("slow reader", request_id=self._opening.request_id, client=self._opening.client, queued=queued)
        self._wire.close(
            CLOSE_TRY_LATER, f"SLOW_READER: {queued} bytes were not read in {seconds:g} s: connect and pull again"
        )

    def _watch_expiry(self) -> None:
        """Close the connection if its token's key was withdrawn or the token has expired, otherwise when it expires."""
        remaining_seconds = self._caller.expires - time.time()
        verifier, key = self._services.verifier, self._caller.key
        if verifier is not None and key is not None and not verifier.is_in_use(key):
            self.close_signed_by(frozenset({key}))
        elif remaining_seconds <= 0:
            expired = AuthError("the token has expired: connect again with a new one")
            self.close(CLOSE_REJECTED, f"{expired.code}: {expired}")
        elif remaining_seconds != float("inf"):
            self._expiry_timer = asyncio.get_running_loop().call_later(remaining_seconds, self._watch_expiry)

    def _record_end(self, message: Message) -> None:
        """Count and log the end of the connection."""
        code, reason = message.get("code", 1005), message.get("reason") or None
        self._services.metrics.connection_ends.labels(metric_label(code)).inc()
        entry = {
            "request_id": self._opening.request_id,
            "gateway": self._opening.gateway,
            "client": self._opening.client,
            "code": code,
            "reason": reason,
            "seconds": round(time.perf_counter() - self._opening.started, 3),
            "messages": self._messages,
            "broadcasts": self._broadcasts,
            "bytes_in": self._bytes_in,
            "bytes_out": self._bytes_out,
        }
        log.info("disconnected", **{name: value for name, value in entry.items() if value is not None})


def _ignore() -> None:
    """Do nothing; used until `run` is called."""


@contextmanager
def _bad_frames() -> Iterator[None]:
    """Raise BadFrameError instead of ValidationError, because it has a close code of its own."""
    try:
        yield
    except ValidationError as error:
        raise BadFrameError(str(error)) from error
