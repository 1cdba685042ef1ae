"""LakeSync's client core, driven step by step against a gateway in this process.

`CoreClient` has the interface of the oracle's plain client (`edit`, `push`, `ask`, `take`, `catch_up`, `reload`,
`rows`, `cursor`, `named`, `sent_ids`); `start`, `execute` and `finish` let a test act between a request, its execution
and its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import msgspec
from msgspec.structs import replace

from lakesync.client.core import (
    Broadcast,
    Changes,
    CheckpointEnd,
    CheckpointFrame,
    ClientCore,
    CoreLimits,
    ErrorResponse,
    LocalChange,
    MemoryStore,
    NoResponse,
    Wait,
)
from lakesync.client.core.messages import Request, Response
from lakesync.engine import SyncGateway
from lakesync.model.errors import LakeSyncError, RejectedError
from lakesync.model.types import Claims, Op, PushResult, RowDelta, SyncPull, SyncPush, SyncResponse

TABLE = "notes"
Row = dict[str, Any]
Checkpoints = Callable[[int, Claims], list[SyncResponse]]
"""Returns the visible frames of the checkpoint at an arrival, for a client with these claims."""


def no_checkpoints(arrival: int, claims: Claims) -> list[SyncResponse]:
    """For histories without published checkpoints."""
    raise AssertionError(f"a checkpoint at {arrival} was published without frames")


class CoreClient:
    """A client with `ClientCore` and a store that outlives it."""

    def __init__(self, name: str, group: str, skew: int, *, limits: CoreLimits | None = None) -> None:
        self.name = name
        self.skew = skew
        """Milliseconds by which its wall clock is ahead of the true time."""
        self.claims: Claims = {"sub": name, "group": group}
        self.store = MemoryStore()
        self.now = 0
        """The true time in milliseconds."""
        self.tables: dict[str, str] = {}
        """The tables of rows that are not in TABLE, by row id."""
        self.named: set[str] = set()
        self.sent_ids: set[str] = set()
        self.accepted: list[RowDelta] = []
        """The acknowledged deltas."""
        self.dropped = 0
        self._limits = limits or CoreLimits()
        self._seconds = count(step=1000)
        self._asked: Request | None = None
        self.core = self._open()

    @property
    def rows(self) -> dict[str, Row]:
        """The app's rows."""
        return {
            row_id: {column: msgspec.json.decode(text) for column, text in row.items()}
            for (_, row_id), row in self.store.rows.items()
        }

    @staticmethod
    def readable(rows: dict[str, Row]) -> dict[str, Row]:
        """The rows that the app can read: all of them."""
        return rows

    @property
    def cursor(self) -> int:
        """The core's cursor."""
        return self.core.cursor

    @property
    def outbox(self) -> list[RowDelta]:
        """The edits that the gateway is not known to have."""
        return [edit.delta for edit in self.core.edits()]

    def edit(self, op: Op, row_id: str, values: Row, now: int) -> None:
        """Change a row as an app does that reads before it writes."""
        self.now = now
        self.named.add(row_id)
        before = self.rows.get(row_id)
        after = None if op == "DELETE" else {**(before or {}), **values}
        self.core.record([LocalChange(self.tables.get(row_id, TABLE), row_id, before, after)])

    def start(self) -> Request | None:
        """Start the next request and return it; None if there is nothing to do."""
        asked = self.core.next_request()
        self._asked = None if isinstance(asked, Wait) else asked
        return self._asked

    def finish(self, answers: list[Response]) -> list[Changes]:
        """Pass the answer to the core."""
        changes = []
        for answer in answers:
            if isinstance(answer, SyncResponse):
                self._look(answer)
            elif isinstance(answer, CheckpointFrame | Broadcast):
                self._look(answer.page)
            changes.append(self.core.receive(answer))
            if isinstance(answer, PushResult) or (isinstance(answer, SyncResponse) and not answer.has_more):
                self.core.retry_drifted(self.skew / 1000)
        return changes

    def execute(
        self, gateway: SyncGateway, asked: Request, checkpoints: Checkpoints = no_checkpoints
    ) -> Iterator[Response]:
        """Execute a request in the gateway and return the answer."""
        try:
            if isinstance(asked, SyncPush):
                yield gateway.handle_push(asked, self.claims)
            elif isinstance(asked, SyncPull):
                yield gateway.submit_pull(asked, self.claims, knows_resync=True).result().decoded()
            else:
                cut = gateway.submit_checkpoint(self.name, self.claims).result()
                yield from map(CheckpointFrame, checkpoints(cut.arrival, self.claims))
                yield CheckpointEnd(cut.arrival)
        except RejectedError as error:
            yield ErrorResponse(error.code, str(error), error.rejected)
        except LakeSyncError as error:
            yield ErrorResponse(error.code, str(error))

    def restart(self) -> None:
        """Restart the process; only the store remains."""
        self._asked = None
        self.core = self._open()

    def reload(self) -> None:
        """Like the plain client's, but this client's store has its cursor."""
        self.restart()

    def push(self, gateway: SyncGateway) -> tuple[RowDelta, ...]:
        """Push until no edit is unsent; return the accepted deltas. A client that is still unknown pulls first."""
        taken: list[RowDelta] = []
        while asked := self.start():
            if isinstance(asked, SyncPull) and not self.store.edits("waiting", 1):
                self.finish([NoResponse("not wanted")])
                break
            taken += self._do(gateway, asked)
        return tuple(taken)

    def send(self, gateway: SyncGateway, deltas: tuple[RowDelta, ...]) -> None:
        """A push request that the network repeats; its answer is lost."""
        gateway.handle_push(SyncPush(self.name, deltas, self.cursor), self.claims)

    def ask(self, gateway: SyncGateway, limit: int) -> SyncResponse:
        """Return a page without applying it; it counts as lost unless the next call is `take`."""
        self.push(gateway)
        self.core.request_pull()
        while not isinstance(asked := self.start(), SyncPull):
            assert asked is not None
            self._do(gateway, asked)
        asked = replace(asked, max_deltas=limit)
        answer = next(self.execute(gateway, asked))
        if isinstance(answer, ErrorResponse):
            self.finish([answer])
            return self.ask(gateway, limit)
        assert isinstance(answer, SyncResponse)
        self.sent_ids |= {delta.row_id for delta in answer.deltas}
        self.core.receive(NoResponse("not yet taken"))
        self._asked = asked
        return answer

    def take(self, page: SyncResponse) -> None:
        """Apply the page that `ask` returned last."""
        asked = self._asked
        self.core.request_pull()
        assert asked is not None
        again = self.start()
        assert isinstance(again, SyncPull)
        assert isinstance(asked, SyncPull)
        assert again.since_hlc == asked.since_hlc
        self.finish([page])

    def catch_up(self, gateway: SyncGateway, limit: int) -> None:
        """Push and pull until nothing is left."""
        for _ in range(1000):
            page = self.ask(gateway, limit)
            self.take(page)
            if not page.has_more:
                return
        raise AssertionError("paging does not end")

    def _do(self, gateway: SyncGateway, asked: Request) -> tuple[RowDelta, ...]:
        answers = list(self.execute(gateway, asked))
        self.finish(answers)
        if isinstance(asked, SyncPush) and isinstance(answers[0], PushResult):
            self.accepted += asked.deltas
            return asked.deltas
        return ()

    def _look(self, page: SyncResponse) -> None:
        """Record the clients that a page names, and check that it has no UPDATE of a row that this client lacks."""
        self.sent_ids |= {delta.row_id for delta in page.deltas}
        known = self.store.known({delta.key for delta in page.deltas})
        here = {key for key, row in known.items() if row.state.visible}
        for delta in page.deltas:
            if delta.op == "UPDATE":
                assert delta.key in here, f"{self.name} was sent UPDATE of {delta.row_id}, which it lacks"
            elif delta.op == "INSERT":
                here.add(delta.key)
            else:
                here.discard(delta.key)

    def _open(self) -> ClientCore:
        return ClientCore(
            self.store,
            self.name,
            limits=self._limits,
            wall=lambda: self.now + self.skew,
            monotonic=lambda: float(next(self._seconds)),
            jitter=lambda: 0.0,
        )
