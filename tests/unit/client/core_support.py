"""Clients for the unit tests of the core, on clocks by hand."""

from typing import Any

import msgspec

from lakesync.client.core import ClientCore, LocalChange, MemoryStore, Refused
from lakesync.model import hlc
from lakesync.model.delta import delta_id
from lakesync.model.errors import Rejection
from lakesync.model.types import ColumnValue, Op, PushResult, RowDelta, SyncResponse
from lakesync.testing.clock import ManualClock

START = 1_700_000_000_000
"""Where manual clocks start, in milliseconds."""


class Handle:
    """A client, its store and its clocks."""

    def __init__(self, store=None, client_id="me", **options):
        self.store = store or MemoryStore()
        self.wall = ManualClock(START)
        self.seconds = 0.0
        self.core = ClientCore(
            self.store, client_id, wall=self.wall, monotonic=lambda: self.seconds, spread=lambda: 1.0, **options
        )

    def restarted(self):
        """The same client after a crash: only what its store has is left."""
        return Handle(self.store)

    def greeted(self, cursor=1000, *deltas):
        """Do the first sync: no checkpoint, then one page."""
        self.core.sync()
        self.core.next_request()
        self.core.receive(refused("NOT_FOUND"))
        self.core.next_request()
        self.core.receive(page(cursor, *deltas))
        return self

    def edit(self, row_id, before=None, after=None):
        """Record one change of table `t`; the edit, or None."""
        changes = self.core.record([LocalChange("t", row_id, before, after)])
        return next(iter(changes.edits.values()), None)

    def push_ok(self, server_hlc=1):
        """Push the next batch and have it accepted; the request."""
        request = self.core.next_request()
        self.core.receive(PushResult(server_hlc, len(request.deltas)))
        return request

    def push_later(self):
        """Have the next push refused for now, so that edits stay while pages come."""
        self.core.next_request()
        self.core.receive(refused("BACKPRESSURE_ERROR", retry_after=1e9))
        return self

    def pull_ok(self, cursor, *deltas, more=False):
        """Pull and be given a page; what it changed."""
        self.core.sync()
        self.core.next_request()
        return self.core.receive(page(cursor, *deltas, more=more))

    def row(self, row_id):
        """The app's row as Python values."""
        row = self.store.rows.get(("t", row_id))
        return None if row is None else {column: msgspec.json.decode(text) for column, text in row.items()}


def delta(op: Op, row_id: str, at: int, client: str = "other", **values: Any) -> RowDelta:
    """A delta of table `t`, `at` ms after START."""
    columns = tuple(ColumnValue.of(column, value) for column, value in values.items())
    stamp = hlc.encode(START + at, 0)
    identity = delta_id(client_id=client, hlc=stamp, table="t", row_id=row_id, columns=columns)
    return RowDelta(op, "t", row_id, client, columns, stamp, identity)


def page(cursor, *deltas, more=False):
    """A page of deltas."""
    return SyncResponse(deltas, cursor, more)


def refused(code: str, *rejected: Rejection, retry_after: float | None = None) -> Refused:
    """An error of the gateway."""
    return Refused(code, f"it says {code}", rejected, retry_after)
