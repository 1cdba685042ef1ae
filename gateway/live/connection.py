"""One WebSocket connection: its frames are served in order, broadcasts go out in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from secrets import token_hex
from typing import TYPE_CHECKING

import structlog
from starlette.types import Message

from gateway.admission import Caller
from gateway.bodies import decoded_push
from gateway.errors import status_of
from gateway.exchange import Exchange
from gateway.live.closing import GOING_AWAY, REFUSED, STOPPING, TRY_LATER, BadFrameError, close_of, label_of
from gateway.live.protocol import LiveProtocol, framed
from gateway.services import Services
from gateway.serving import serve_pull, serve_push
from gateway.waiting import outcome
from lakesync.auth.keys import Key
from lakesync.engine.following import Follower, Interest, Standing
from lakesync.model.errors import AuthError, LakeSyncError, StagingUnavailableError, TransientError, ValidationError
from lakesync.model.types import SyncPull, SyncResponse
from lakesync.wire import protobuf
from lakesync.wire.frames import FrameTag, decode_frame, encode_answer

if TYPE_CHECKING:
    from gateway.live.room import Room

log = structlog.get_logger("gateway")

ROUTE = "/sync/{gateway}/ws"
_LATE = "the message was not served in time and may still take effect: repeat it"
_DAY = 86_400.0
_AGAIN_SECONDS = 1.0
"""After the store failed."""
_WORKS = {FrameTag.PUSH: "PUSH", FrameTag.PULL: "PULL"}


class LiveConnection:
    """What one client asks over its connection, and what it is told. Belongs to the event loop's thread."""

    def __init__(
        self, services: Services, wire: LiveProtocol, caller: Caller, opening: Exchange, *, knows_resync: bool
    ) -> None:
        """Args: opening: the request by which the connection began; knows_resync: the client understands that code."""
        self._services = services
        self._wire = wire
        self._caller = caller
        self._opening = opening
        self._knows_resync = knows_resync
        self._messages = 0
        self._last: tuple[int, str] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._changed: Callable[[], None] = _nobody
        self.busy = False
        """A message is being served: what is told meanwhile has to wait for its answer."""
        self.follower: Follower | None = None
        """Where the client stands; None until that is known."""
        self._resting: asyncio.TimerHandle | None = None
        self.line = token_hex(8)
        """Names this connection among those of all processes."""
        self.greeted = False
        """Every process was told of it."""
        self.doubled = False
        """Its client has another connection to another process, or pulls over HTTP too, or did."""
        self.broadcasts = 0
        self.bytes_in = self.bytes_out = 0

    @property
    def name(self) -> str:
        """Whose it is; empty where the server runs without a secret."""
        return self._opening.client or ""

    # -- the client asks -----------------------------------------------------------------------------------------

    async def run(self, receive: Callable[[], Awaitable[Message]], room: Room) -> None:
        """Serve until either side ends the connection."""
        self._changed = lambda: room.changed(self)
        self._wire.on_writable = self._keeps_up_again
        self._wire.begin()
        self._watch_expiry()
        resuming = asyncio.create_task(self._resume())
        if self._services.drain.draining:  # it was on its way in when the others were told
            self.close(GOING_AWAY, STOPPING)
        try:
            while (message := await receive())["type"] != "websocket.disconnect":
                if not self._wire.open:
                    continue
                self.busy = True
                self._services.drain.enter()
                try:
                    await self._serve(message)
                finally:
                    self.busy = False
                    self._services.drain.leave()
                if self._last is not None:
                    self.close(*self._last)
                else:
                    self._changed()
            self._note_end(message)
        finally:
            resuming.cancel()
            for timer in (self._expiry, self._stalled, self._resting):
                if timer is not None:
                    timer.cancel()

    async def _serve(self, message: Message) -> None:
        """Serve one message, and send its answer."""
        self._messages += 1
        exchange = Exchange(f"{self._opening.request_id}-{self._messages}", route=ROUTE)
        exchange.gateway, exchange.client = self._opening.gateway, self._opening.client
        frame = message.get("bytes")
        exchange.bytes_in = len(frame if frame is not None else message.get("text") or "")
        self.bytes_in += exchange.bytes_in
        work = "MESSAGE"
        try:
            async with asyncio.timeout(self._services.settings.request_timeout) as deadline:
                tag, body = self._opened(exchange, frame)
                work = _WORKS[tag]
                answer = await (self._push(exchange, body) if tag is FrameTag.PUSH else self._pull(exchange, body))
            exchange.status = 200
            frame = encode_answer(answer)
            exchange.bytes_out = len(frame)
            await self._send(frame)
        except Exception as error:  # every error has to be answered, whatever it is
            late = isinstance(error, TimeoutError) and deadline.expired()
            self._refuse(exchange, StagingUnavailableError(_LATE) if late else error)
        finally:
            exchange.record(work, self._services.metrics)

    def _opened(self, exchange: Exchange, frame: bytes | None) -> tuple[FrameTag, bytes]:
        """The tag and the message of a frame that a client may send."""
        if self._caller.token_claims is not None:
            self._services.live_rate.check(exchange.gateway or "", str(self._caller.token_claims["sub"]))
        if frame is None:
            raise BadFrameError("the frame is text: send binary ones, a tag byte and a protobuf message")
        with _decoding():
            tag, body = decode_frame(frame)
        if tag not in _WORKS:
            raise BadFrameError("a broadcast (0x03) is the server's to send: send 0x01 push or 0x02 pull")
        return tag, body

    async def _push(self, exchange: Exchange, body: bytes) -> bytes:
        with _decoding():
            message = await decoded_push(protobuf.decode_push, body)
        follower = self.follower
        if follower is not None and follower.client_id != message.client_id:
            follower = None
        seen = follower.cursor if follower is not None and not follower.standing.unplaced else None
        result = await serve_push(self._services, exchange, self._caller, message, seen)
        if follower is not None:
            follower.after_push(result.server_hlc)
        return protobuf.encode_response(SyncResponse(result.deltas, result.server_hlc))

    async def _pull(self, exchange: Exchange, body: bytes) -> bytes:
        with _decoding():
            message = protobuf.decode_pull(body)
        page = await serve_pull(
            self._services, exchange, self._caller, message, knows_resync=self._knows_resync, live=True
        )
        if message.source is None:
            self._follow(message, page.server_hlc, more=page.has_more)
            if page.has_more:
                self._rest()
        elif self.follower is not None:
            self.follower.after_source()
        return protobuf.encode_response(page)

    def _follow(self, message: SyncPull, cursor: int, *, more: bool) -> None:
        before, client = self.follower, message.client_id
        same = before is not None and before.client_id == client
        interest = before.standing.interest if before is not None and same else Interest()
        standing = Standing(cursor, message.max_deltas, more=more, interest=interest, knows_resync=self._knows_resync)
        self.follower = Follower(client, self._caller.claims(client), standing)

    async def _resume(self) -> None:
        """Tell a client that was here before of what is new at once, although it has not pulled on this connection.

        One that knows what a cursor is worth pulls when it connects.
        """
        if self._knows_resync or not self.name:
            return
        while self.follower is None and self._wire.open:
            try:
                cursor = await outcome(self._caller.gateway.submit_resume(self.name))
            except TransientError:
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            if cursor is not None and self.follower is None:
                standing = Standing(cursor, protobuf.DEFAULT_MAX_DELTAS, more=True, unplaced=True)
                self.follower = Follower(self.name, self._caller.claims(self.name), standing)
                self._changed()
            return

    async def _send(self, answer: bytes) -> None:
        """Send an answer as soon as the client reads; a client that does not is closed."""
        try:
            async with asyncio.timeout(self._services.settings.slow_reader_seconds):
                await self._wire.taken()
        except TimeoutError:
            self._stall()
            return
        self._wire.put(framed(answer))
        self.bytes_out += len(answer)

    def _refuse(self, exchange: Exchange, error: Exception) -> None:
        known = isinstance(error, LakeSyncError)
        exchange.code = error.code if isinstance(error, LakeSyncError) else LakeSyncError.code
        exchange.status = status_of(type(error)) if isinstance(error, LakeSyncError) else 500
        if not known:
            log.error("message failed", request_id=exchange.request_id, exc_info=error)
        self._last = close_of(error)

    # -- the server tells ----------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether a broadcast can be sent now; one whose client does not read is closed after a while."""
        if self.busy or self.follower is None or self._resting is not None or not self._wire.open:
            return False
        if self._wire.keeps_up:
            return True
        if self._stalled is None:
            patience = self._services.settings.slow_reader_seconds
            self._stalled = asyncio.get_running_loop().call_later(patience, self._check_stalled)
        return False

    def tell(self, frame: bytes) -> None:
        """Send a broadcast, a frame made by `framed`."""
        self._wire.put(frame)
        self.broadcasts += 1
        self.bytes_out += len(frame)

    def _keeps_up_again(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        self._changed()

    def _rest(self) -> None:
        """Leave a client in the middle of its pages to pull by itself, for a while."""
        if self._resting is not None:
            self._resting.cancel()
        self._resting = asyncio.get_running_loop().call_later(self._services.settings.page_patience, self._rested)

    def _rested(self) -> None:
        self._resting = None
        self._changed()

    # -- the end -------------------------------------------------------------------------------------------------

    def close(self, code: int, reason: str) -> None:
        """End the connection; while a message is served, after its answer."""
        if self.busy:
            self._last = self._last or (code, reason)
        else:
            self._wire.end(code, reason)

    def close_signed_by(self, keys: frozenset[Key]) -> None:
        """End the connection if one of these keys has signed its token: their issuer has withdrawn them."""
        if self._caller.key in keys:
            withdrawn = AuthError("the issuer has withdrawn the token's key: connect again with a new token")
            self.close(REFUSED, f"{withdrawn.code}: {withdrawn}")

    def _check_stalled(self) -> None:
        self._stalled = None
        if not self._wire.keeps_up:
            self._stall()

    def _stall(self) -> None:
        queued, patience = self._wire.queued, self._services.settings.slow_reader_seconds
        log.warning("slow reader", request_id=self._opening.request_id, client=self._opening.client, queued=queued)
        self._wire.end(
            TRY_LATER, f"SLOW_READER: {queued} bytes were not read for {patience:g} s: connect and pull again"
        )

    def _watch_expiry(self) -> None:
        """Close when the token expires, by the system's clock, and when its key was withdrawn on the way in."""
        left = self._caller.expires - time.time()
        verifier, key = self._services.verifier, self._caller.key
        if verifier is not None and key is not None and not verifier.is_in_use(key):
            self.close_signed_by(frozenset({key}))
        elif left <= 0:
            expired = AuthError("the token has expired: connect again with a new one")
            self.close(REFUSED, f"{expired.code}: {expired}")
        elif left != float("inf"):
            self._expiry = asyncio.get_running_loop().call_later(min(left, _DAY), self._watch_expiry)

    def _note_end(self, message: Message) -> None:
        code, reason = message.get("code", 1005), message.get("reason") or None
        self._services.metrics.connection_ends.labels(label_of(code)).inc()
        entry = {
            "request_id": self._opening.request_id,
            "gateway": self._opening.gateway,
            "client": self._opening.client,
            "code": code,
            "reason": reason,
            "seconds": round(time.perf_counter() - self._opening.started, 3),
            "messages": self._messages,
            "broadcasts": self.broadcasts,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
        }
        log.info("disconnected", **{name: value for name, value in entry.items() if value is not None})


def _nobody() -> None:
    """Before the connection is in a room."""


@contextmanager
def _decoding() -> Iterator[None]:
    """Raise BadFrameError where a frame is not what its tag says."""
    try:
        yield
    except ValidationError as error:
        raise BadFrameError(str(error)) from error
