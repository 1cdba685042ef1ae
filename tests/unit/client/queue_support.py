"""A table, and a transport that records and rejects pushes, for tests of queues."""

from __future__ import annotations

from lakesync.client import LocalTransport
from lakesync.model.delta import extract_delta
from lakesync.model.types import SyncPull

NOTES = {"table": "notes", "columns": [{"name": "text", "type": "string"}]}


def delta(row_id, text="t", client="alice", hlc=1 << 50):
    made = extract_delta(None, {"text": text}, table="notes", row_id=row_id, client_id=client, hlc=hlc)
    assert made is not None
    return made


class RecordingTransport(LocalTransport):
    """Records the rows of each push, and rejects it on demand."""

    def __init__(self, gateway):
        super().__init__(gateway)
        self.pushed = []
        self.error = None

    def push(self, push):
        self.pushed.append([delta.row_id for delta in push.deltas])
        if self.error is not None:
            raise self.error
        return super().push(push)


def rows_there(gateway):
    return {each.row_id for each in gateway.handle_pull(SyncPull("auditor", 0, 1000)).deltas}
