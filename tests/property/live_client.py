"""A WebSocket client that behaves like the reference's (spec section 5), one step after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from websockets.frames import Frame
from websockets.streams import StreamReader

from lakesync.model import hlc
from lakesync.model.delta import delta_id
from lakesync.model.types import (
    Claims,
    ColumnValue,
    Op,
    PushResult,
    RowDelta,
    SyncPage,
    SyncPull,
    SyncPush,
    SyncResponse,
)
from lakesync.wire import protobuf
from lakesync.wire.frames import FrameTag, encode_frame
from tests.property.feed_model import TABLE, Row, apply_page


@dataclass
class Frames:
    """The frames in transit on a connection."""

    up: deque[bytes] = field(default_factory=deque)
    down: deque[bytes] = field(default_factory=deque)
    reason: str = ""
    """The server's reason to close the connection; the client reads it after the frames."""
    cut: bool = False
    """The client reads no more of it, whether or not the server has noticed."""


class LiveClient:
    """Runs the steps of its script one after another; applies frames in the order of the connection.

    If a page names a row with an edit that may be unpushed, it drops the page, the connection and all later frames;
    then it pushes its edits before the next pull. The answer to a `stray` pull, with the token of another group,
    is lost.
    """

    def __init__(self, name: str, group: str, page: int = 3, batch: int = 2, clock: int = 0) -> None:
        """Args: clock: how far its clock is ahead of the others, in ticks."""
        self.name = name
        self.claims: Claims = {"sub": name, "group": group}
        self.page, self.batch = page, batch
        self.script: deque[tuple[Any, ...]] = deque()
        self.rows: dict[str, Row] = {}
        self.tables: Mapping[str, str] = {}
        """The tables of rows that are not in TABLE, by row id."""
        self.cursor = 0
        self.outbox: list[RowDelta] = []
        self.pushed: dict[str, RowDelta] = {}
        """Deltas that may have reached the gateway, by id."""
        self.sent_ids: set[str] = set()
        self.named: set[str] = set()
        self.frames: Frames | None = None
        self.has_pulled = False
        """Whether it has applied the answer to a pull on this connection."""
        self.stuck = False
        self.last: SyncResponse | None = None
        """The answer to its last pull."""
        self.requests: deque[tuple[SyncPull | SyncPush, Claims]] = deque()
        """HTTP requests that have not arrived at the server, each with the claims of its token."""
        self.awaited: SyncPull | SyncPush | None = None
        """The HTTP request whose answer it waits for."""
        self._asked: list[RowDelta] | None = None
        """The deltas of an unanswered push; empty for a pull."""
        self._stamp = hlc.encode(1_600_000_000_000, 0) + clock

    # -- its own steps -------------------------------------------------------------------------------------------

    @property
    def wants_line(self) -> bool:
        """Whether its next step needs a connection."""
        return bool(self.script) and self.script[0][0] in ("pull", "push")

    @property
    def can_act(self) -> bool:
        """Whether it has a step to run."""
        return bool(self.script) and (self._asked is None or self.script[0][0] in ("edit", "stray", "cut", "reload"))

    def act(self) -> None:
        """Run the next step of the script."""
        kind, *detail = self.script.popleft()
        match kind:
            case "edit":
                self._edit(*detail)
            case "pull":
                self._ask([] if not self.stuck else self.outbox[: self.batch])
            case "push":
                if self.outbox:
                    self._ask(self.outbox[: self.batch])
            case "get":
                self._request([] if not self.stuck else self.outbox[: self.batch])
            case "post":
                if self.outbox:
                    self._request(self.outbox[: self.batch])
            case "stray":
                group = "b" if self.claims["group"] == "a" else "a"
                self.requests.append((SyncPull(self.name, self.cursor, self.page), {**self.claims, "group": group}))
            case "cut":
                self.cut()
            case "reload":
                self.cut()
                self.cursor = 0

    def cut(self) -> None:
        """Close the connection, and lose its frames."""
        if self.frames is not None:
            self.frames.cut = True
        self.frames, self._asked, self.awaited, self.has_pulled = None, None, None, False

    def _ask(self, part: Sequence[RowDelta]) -> None:
        assert self.frames is not None
        message = self._message(part)
        if isinstance(message, SyncPush):
            frame = encode_frame(FrameTag.PUSH, protobuf.encode_push(message))
        else:
            frame = encode_frame(FrameTag.PULL, protobuf.encode_pull(message))
        self.frames.up.append(frame)

    def _request(self, part: Sequence[RowDelta]) -> None:
        """Send a request over HTTP; it may arrive late, when the client no longer waits for the answer."""
        self.cut()
        self.awaited = self._message(part)
        self.requests.append((self.awaited, self.claims))

    def _message(self, part: Sequence[RowDelta]) -> SyncPull | SyncPush:
        self._asked = list(part)
        self.pushed |= {delta.delta_id: delta for delta in part}
        return SyncPush(self.name, tuple(part)) if part else SyncPull(self.name, self.cursor, self.page)

    def _edit(self, op: Op, row_id: str, values: Row) -> None:
        """Change the local row, as far as plain SQL can."""
        if op == "INSERT" and (row_id in self.rows or any(edit.row_id == row_id for edit in self.outbox)):
            op = "UPDATE"
        if op != "INSERT" and row_id not in self.rows:
            return
        self.named.add(row_id)
        self._stamp += 1
        if op == "DELETE":
            values = {}
            del self.rows[row_id]
        elif op == "INSERT":
            self.rows[row_id] = dict(values)
        else:
            self.rows[row_id].update(values)
        columns = tuple(ColumnValue.of(column, value) for column, value in values.items())
        table = self.tables.get(row_id, TABLE)
        identity = delta_id(client_id=self.name, hlc=self._stamp, table=table, row_id=row_id, columns=columns)
        self.outbox.append(RowDelta(op, table, row_id, self.name, columns, self._stamp, identity))

    # -- frames from the server ----------------------------------------------------------------------------------

    def take(self) -> None:
        """Apply the oldest frame of the connection, or notice that the connection has ended."""
        assert self.frames is not None
        if not self.frames.down:
            raise AssertionError(f"the server closed {self.name}'s connection: {self.frames.reason}")
        frame = _message(self.frames.down.popleft())
        assert len(frame) > 1, f"{self.name} would ignore this answer, and wait for ever"
        if frame[:1] == bytes((FrameTag.BROADCAST,)):
            page = protobuf.decode_response(frame[1:])
            if self._apply(page):
                self.cursor = max(self.cursor, page.server_hlc)
            elif page.server_hlc:  # one without a cursor comes again with the next pull
                self.cut()
            return
        self._answered(protobuf.decode_response(frame), live=True)

    def receive(self, answer: SyncPage | PushResult) -> None:
        """Take the answer to the request that it waits for."""
        self.awaited = None
        deltas, more = tuple(answer.deltas), isinstance(answer, SyncPage) and answer.has_more
        self._answered(SyncResponse(deltas, answer.server_hlc, more), live=False)

    def _answered(self, answer: SyncResponse, *, live: bool) -> None:
        asked, self._asked = self._asked, None
        if asked:
            assert answer.server_hlc > 0, "L8: a client with cursor 0 asks for a checkpoint again"
            done = {delta.delta_id for delta in asked}
            self.outbox = [delta for delta in self.outbox if delta.delta_id not in done]
            self.cursor = answer.server_hlc
            self.stuck = self.stuck and bool(self.outbox)
        elif self._apply(answer):
            self.last, self.has_pulled = answer, live
            if answer.deltas:
                self.cursor = answer.server_hlc
        else:
            self.stuck = True
            self.cut()

    def hear(self, page: SyncPage) -> None:
        """Apply a page that did not come over the connection."""
        assert self._apply(SyncResponse(tuple(page.deltas), page.server_hlc, page.has_more))
        self.cursor = page.server_hlc

    def _apply(self, page: SyncResponse) -> bool:
        self.sent_ids |= {delta.row_id for delta in page.deltas}
        if {edit.row_id for edit in self.outbox} & {delta.row_id for delta in page.deltas}:
            return False
        apply_page(self.rows, page, self.name)
        return True


def _message(frame: bytes) -> bytes:
    """Decode a frame of the server."""
    reader = StreamReader()
    reader.feed_data(frame)
    parsing = Frame.parse(reader.read_exact, mask=False, max_size=None)
    try:
        while True:
            next(parsing)
    except StopIteration as ended:
        message: bytes = ended.value.data
        return message
