"""The reference's client over WebSocket, by spec section 5, with a connection that breaks at random."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from lakesync.model import hlc
from lakesync.model.delta import delta_id
from lakesync.model.types import Claims, ColumnValue, Op, RowDelta, SyncPull, SyncPush, SyncResponse
from lakesync.wire import protobuf
from lakesync.wire.frames import FrameTag, encode_frame
from tests.integration.gateway_support import DEADLINE, Client, wall_ms
from tests.integration.live.live_crowd import dial
from tests.integration.live.live_support import OVERLOOKED
from tests.property.feed_model import Row, apply_page

TABLE = "notes"
PAGE, BATCH = 3, 2
"""Deltas of a page and of a push; small, so that there are many of them."""


class StockClient:
    """Pulls before it pushes, one page a cycle; applies pages as plain SQL; applies broadcasts as they arrive.

    It applies answers and broadcasts in the order of the connection. If a page names a row with an unacknowledged edit
    of the client, it drops the page, the connection, and all later frames of the connection.
    """

    def __init__(self, client: Client, group: str, chance: random.Random) -> None:
        self.client = client
        self.claims: Claims = {"group": group}
        self.name = client.client_id
        self.chance = chance
        self.rows: dict[str, Row] = {}
        self.cursor = 0
        self.outbox: list[RowDelta] = []
        self.sent: dict[str, RowDelta] = {}
        """Deltas that may have reached the gateway, by id."""
        self.sent_ids: set[str] = set()
        self.named: set[str] = set()
        self.broadcasts = 0
        self.stuck = False
        """Whether the last page could not be applied; then no page can be before the edits are pushed."""
        self._clock = hlc.encode(wall_ms() - 60_000, 0)
        self.line: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._answers: asyncio.Queue[SyncResponse | BaseException] = asyncio.Queue()
        self._take: Callable[[SyncResponse], bool] = self._take_broadcast
        """Applies the answer to the last request; returns whether that was possible."""

    # -- the line ------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Open a connection."""
        if self._reader is not None and self._reader.done():
            await self.cut()
        if self.line is None:
            self.line, self._answers = await dial(self.client), asyncio.Queue()
            self._reader = asyncio.create_task(self._read(self.line, self._answers))

    async def cut(self) -> None:
        """Close the connection immediately."""
        if self.line is not None and self._reader is not None:
            self.line.transport.abort()
            await self._reader
            self.line = self._reader = None

    def reload(self) -> None:
        """Lose the cursor; keep the database and the outbox."""
        self.cursor = 0

    async def _read(self, line: ClientConnection, answers: asyncio.Queue[SyncResponse | BaseException]) -> None:
        try:
            while self._takes(await line.recv(), answers):
                pass
            line.transport.abort()
            while True:
                await line.recv()
        except BaseException as end:
            answers.put_nowait(end)
            if not isinstance(end, ConnectionClosed):
                raise

    def _takes(self, frame: bytes | str, answers: asyncio.Queue[SyncResponse | BaseException]) -> bool:
        """Apply a frame before the next one is read; return whether that was possible."""
        assert isinstance(frame, bytes)
        assert len(frame) >= OVERLOOKED, "this answer is awaited"
        if frame[:1] == bytes((FrameTag.BROADCAST,)):
            return self._take_broadcast(protobuf.decode_response(frame[1:]))
        answer = protobuf.decode_response(frame)
        taken = self._take(answer)
        answers.put_nowait(answer)
        return taken

    async def _ask(self, tag: FrameTag, message: bytes, take: Callable[[SyncResponse], bool]) -> SyncResponse:
        assert self.line is not None
        self._take = take
        await self.line.send(encode_frame(tag, message))
        async with asyncio.timeout(DEADLINE):
            answer = await self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    # -- a cycle -------------------------------------------------------------------------------------------------

    async def pull(self) -> SyncResponse:
        """Pull one page."""
        message = protobuf.encode_pull(SyncPull(self.name, self.cursor, PAGE))
        return await self._ask(FrameTag.PULL, message, self._take_page)

    async def push(self) -> None:
        """Push a part of the outbox; return the answer's cursor."""
        part = self.outbox[:BATCH]
        if not part:
            return
        self.sent |= {delta.delta_id: delta for delta in part}

        def take(answer: SyncResponse) -> bool:
            assert answer.server_hlc > 0, "L8: a client with cursor 0 asks for a checkpoint again"
            del self.outbox[: len(part)]
            self.cursor = answer.server_hlc
            return True

        await self._ask(FrameTag.PUSH, protobuf.encode_push(SyncPush(self.name, tuple(part))), take)

    async def cycle(self) -> None:
        """Pull, then push; the connection may break at any time."""
        await self.connect()
        work = asyncio.gather(self._cycle())
        if self.chance.random() < 0.3:
            for _ in range(self.chance.randrange(12)):
                await asyncio.sleep(0)
            await self.cut()
        with suppress(ConnectionClosed):
            await work
        if self._reader is not None and self._reader.done():
            self._reader.result()

    async def _cycle(self) -> None:
        if self.stuck:
            await self.push()
        await self.pull()
        if self.stuck:
            await self.cut()
        else:
            await self.push()

    async def settle(self) -> None:
        """Push everything over a new connection."""
        await self.cut()
        while self.outbox:
            await self.connect()
            with suppress(ConnectionClosed):
                await self.push()

    async def catch_up(self) -> None:
        """Pull until nothing is left."""
        for _ in range(1000):
            if not (await self.pull()).deltas:
                return
        raise AssertionError("paging does not end")

    # -- pages ---------------------------------------------------------------------------------------------------

    def _take_page(self, page: SyncResponse) -> bool:
        """Apply the answer to a pull; an empty one leaves the cursor."""
        self.stuck = not self._apply(page)
        if page.deltas and not self.stuck:
            self.cursor = page.server_hlc
        return not self.stuck

    def _take_broadcast(self, page: SyncResponse) -> bool:
        if not self._apply(page):
            return page.server_hlc == 0  # one without a cursor comes again with the next pull
        self.broadcasts += 1
        self.cursor = max(self.cursor, page.server_hlc)
        return True

    # -- rows ----------------------------------------------------------------------------------------------------

    def edit(self, op: Op, row_id: str, values: Row) -> None:
        """Change the local row, and queue the delta."""
        self.named.add(row_id)
        self._clock = max(self._clock + 1, hlc.encode(wall_ms() - 60_000, 0))
        columns = tuple(ColumnValue.of(column, value) for column, value in values.items())
        identity = delta_id(client_id=self.name, hlc=self._clock, table=TABLE, row_id=row_id, columns=columns)
        self.outbox.append(RowDelta(op, TABLE, row_id, self.name, columns, self._clock, identity))
        if op == "DELETE":
            self.rows.pop(row_id, None)
        elif op == "INSERT":
            self.rows[row_id] = dict(values)
        else:
            self.rows[row_id].update(values)

    def _apply(self, page: SyncResponse) -> bool:
        """Apply a whole page; reject one that names a row with an edit that may be unpushed."""
        self.sent_ids |= {delta.row_id for delta in page.deltas}
        if {edit.row_id for edit in self.outbox} & {delta.row_id for delta in page.deltas}:
            return False
        apply_page(self.rows, page, self.name)
        return True


def merged(log: Iterable[RowDelta]) -> dict[str, Row]:
    """The visible rows that result from deltas, by M1 to M3."""
    rows: dict[str, Row] = {}
    by_row: dict[str, list[RowDelta]] = defaultdict(list)
    for delta in log:
        by_row[delta.row_id].append(delta)
    for row_id, deltas in by_row.items():
        dead = max((delta.stamp for delta in deltas if delta.op == "DELETE"), default=(-1, ""))
        alive = sorted((delta for delta in deltas if delta.stamp > dead), key=lambda delta: delta.stamp)
        row = {part.column: part.decoded() for delta in alive for part in delta.columns}
        if row or any(delta.op == "INSERT" for delta in alive):
            rows[row_id] = row
    return rows
