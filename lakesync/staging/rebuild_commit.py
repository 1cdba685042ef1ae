"""Adds pushes to the log, with the same SQL on SQLite and Postgres: new ones, and in a rebuild those of the lake.

`PostgresCommit` adds the pushes of clients with it, and `engine.rebuild` fills new stores of both kinds from the lake.

The *log* has one row for each push. A rebuild adds log rows without bodies, because the lake contains these deltas
(changes of rows) already: only their ids and counts are stored, so that repeated pushes are recognised. The *ledger*
counts the deltas of each day. A *gateway* is one app's stream of changes, and its *head* has its counters. An *arrival*
is its timestamp of a push, an *hlc* the client's timestamp of a delta. The lake does not know what clients were sent,
so every client counts as one that may have any row: all of them share one record, with the epoch `LOST` (seen before,
but nothing else is known).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from lakesync.model.hlc import wall_of
from lakesync.model.types import RowDelta
from lakesync.staging.ledger import Tally, day_of, signed, tally_of, unsigned
from lakesync.staging.records import LOST, ClientRecord, GatewayConfig, LogEntry
from lakesync.staging.side_tables import ConfigStatements
from lakesync.staging.store import Commit
from lakesync.staging.table_values import next_entry, row_of
from lakesync.wire.log import pack

T = TypeVar("T")

ANYONE = ""
"""Client id of the record that a rebuilt store uses for every client without a record. No real client id is empty."""
ANY_CLIENT = ClientRecord(ANYONE, epoch=LOST, last_seen_ms=0)
"""That record."""

_LOG = (
    "INSERT INTO log (gateway, shard, epoch, seq, arrival, client_id, hlc_low, hlc_high, count, id_sum, bytes,"
    " committed_ms, claims, ids, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
"""SQL: add a log row."""
_DAY = "SELECT count, id_sum, flushed_count, flushed_id_sum FROM ledger WHERE gateway = ? AND day = ?"
"""SQL: the numbers and id sums of a day, of accepted and of flushed deltas."""
_LEDGER = (
    "INSERT INTO ledger (gateway, day, count, id_sum, flushed_count, flushed_id_sum) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (gateway, day) DO UPDATE SET count = excluded.count, id_sum = excluded.id_sum,"
    " flushed_count = excluded.flushed_count, flushed_id_sum = excluded.flushed_id_sum"
)
"""SQL: set what `_DAY` returns."""
_WRITER = (
    "INSERT INTO writer (gateway, client_id, hlc_high, widest) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (gateway, client_id) DO UPDATE SET"
    " hlc_high = CASE WHEN excluded.hlc_high > writer.hlc_high THEN excluded.hlc_high ELSE writer.hlc_high END,"
    " widest = CASE WHEN excluded.widest > writer.widest THEN excluded.widest ELSE writer.widest END"
)
"""SQL: raise the highest hlc (timestamp) of a client's pushes, and the widest range of hlcs within one of them."""


class RebuildCommit(Commit, Protocol):
    """A `Commit` of a store that is being rebuilt from the lake."""

    def restore_config(self, config: GatewayConfig) -> None:
        """Set schemas and rules with their earlier versions; call it before any row is stored."""

    def restore_push(self, client_id: str, deltas: Sequence[RowDelta], arrival: int) -> None:
        """Add a push that the lake contains to the log, without a body, and to the ledger.

        Args:
            client_id: the id of the client that pushed.
            deltas: the push's deltas.
            arrival: the push's arrival.
        """

    def finish_rebuild(self, floor: int) -> None:
        """End the rebuild: new arrivals are above the arrival `floor`, and every client may have any row."""


class ReplacementStore(Protocol):
    """A new store that a rebuild fills, and that no other process can see yet."""

    def ensure_gateway(self, gateway: str) -> None:
        """Create a gateway with a new epoch, which identifies this copy of the gateway's data."""

    def run(self, gateway: str, job: Callable[[RebuildCommit], T]) -> T:
        """Run `job` in a commit and return its result.

        Args:
            gateway: the gateway's id.
            job: the function to run, given the transaction.
        """


class SqlLogCommit(ConfigStatements):
    """Adds pushes to the log, and has the methods of `RebuildCommit`, with the same SQL on SQLite and Postgres.

    Commits of pushes on SQLite do not use it: they add to the log in memory first (`sqlite.journal`).
    """

    def restore_push(self, client_id: str, deltas: Sequence[RowDelta], arrival: int) -> None:
        """Add a push to the log and the ledger; see `RebuildCommit.restore_push`."""
        entry = next_entry(self._head, client_id, pack(deltas, body=False), arrival, claims={})
        self._add_to_log(entry, wall_of(arrival), is_flushed=True)
        self._move_head(self._head.restored(entry))

    def finish_rebuild(self, floor: int) -> None:
        """End the rebuild; see `RebuildCommit.finish_rebuild`."""
        head = self._head
        self._move_head(msgspec.structs.replace(head, arrival=max(head.arrival, floor)))
        record = msgspec.json.encode(ANY_CLIENT)
        self._query("INSERT INTO client (gateway, client_id, record) VALUES (?, ?, ?)", ANYONE, record)

    def _add_to_log(self, entry: LogEntry, committed_ms: int, *, is_flushed: bool) -> None:
        """Add a log row, and its deltas to the ledger.

        Args:
            entry: the log row.
            committed_ms: the server's wall time of the commit, in milliseconds since 1970.
            is_flushed: whether the lake contains the deltas already.
        """
        values_after_gateway = row_of(entry, committed_ms)[1:]  # `_query` adds the gateway
        self._query(_LOG, *values_after_gateway)
        self._query(_WRITER, entry.client_id, entry.hlc_high, entry.hlc_high - entry.hlc_low)
        day, added = day_of(entry.arrival), tally_of(entry.ids)
        count, id_sum, flushed_count, flushed_id_sum = (self._query(_DAY, day) or [(0, 0, 0, 0)])[0]
        accepted, flushed = added.plus(count, unsigned(id_sum)), Tally(flushed_count, unsigned(flushed_id_sum))
        if is_flushed:
            flushed = added.plus(*flushed)
        self._query(_LEDGER, day, accepted.deltas, signed(accepted.id_sum), flushed.deltas, signed(flushed.id_sum))
