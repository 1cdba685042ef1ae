"""A harness for unit tests of the core, with manual clocks."""

from typing import Any

import msgspec

from lakesync.client.core import ClientCore, ErrorResponse, LocalChange, MemoryStore
from lakesync.model import hlc
from lakesync.model.delta import delta_id
from lakesync.model.errors import Rejection
from lakesync.model.types import ColumnValue, Op, PushResult, RowDelta, SyncResponse
from lakesync.testing import ManualClock

START = 1_700_000_000_000
"""The start of manual clocks, in milliseconds."""


class CoreHarness:
    """A core with its store and manual clocks."""

    def __init__(self, store=None, client_id="me", **options):
        self.store = store or MemoryStore()
        self.wall = ManualClock(START)
        self.seconds = 0.0
        self.core = ClientCore(
            self.store, client_id, wall=self.wall, monotonic=lambda: self.seconds, jitter=lambda: 1.0, **options
        )

    def restarted(self):
        """Return a new core over the same store, as after a crash."""
        return CoreHarness(self.store)

    def after_first_pull(self, cursor=1000, *deltas):
        """Run the first sync: no checkpoint, then one page."""
        self.core.request_pull()
        self.core.next_request()
        self.core.receive(error_answer("NOT_FOUND"))
        self.core.next_request()
        self.core.receive(page(cursor, *deltas))
        return self

    def edit(self, row_id, before=None, after=None):
        """Record a change of a row of table `t`; return the edit, or None."""
        changes = self.core.record([LocalChange("t", row_id, before, after)])
        return next(iter(changes.edits.values()), None)

    def push_ok(self, server_hlc=1):
        """Push the next batch and accept it; return the request."""
        request = self.core.next_request()
        self.core.receive(PushResult(server_hlc, len(request.deltas)))
        return request

    def push_overloaded(self):
        """Answer the next push with an overload error, so that its edits stay waiting."""
        self.core.next_request()
        self.core.receive(error_answer("BACKPRESSURE_ERROR", retry_after=1e9))
        return self

    def pull_ok(self, cursor, *deltas, more=False):
        """Pull a page; return what it changed."""
        self.core.request_pull()
        self.core.next_request()
        return self.core.receive(page(cursor, *deltas, more=more))

    def row(self, row_id):
        """Return the app's row as Python values."""
        row = self.store.rows.get(("t", row_id))
        return None if row is None else {column: msgspec.json.decode(text) for column, text in row.items()}


def delta(op: Op, row_id: str, at: int, client: str = "other", **values: Any) -> RowDelta:
    """Return a delta of table `t`, written `at` milliseconds after START."""
    columns = tuple(ColumnValue.of(column, value) for column, value in values.items())
    stamp = hlc.encode(START + at, 0)
    identity = delta_id(client_id=client, hlc=stamp, table="t", row_id=row_id, columns=columns)
    return RowDelta(op, "t", row_id, client, columns, stamp, identity)


def page(cursor, *deltas, more=False):
    """Return a page."""
    return SyncResponse(deltas, cursor, more)


def error_answer(code: str, *rejected: Rejection, retry_after: float | None = None) -> ErrorResponse:
    """Return an error of the gateway."""
    return ErrorResponse(code, f"it says {code}", rejected, retry_after)
