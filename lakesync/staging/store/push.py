"""Protocols of a staging store for transactions that write rows: pushes, replays of the journal, and re-indexes.

`engine.pushing` commits pushes through a `PushCommit`. `lakesync.feed` writes rows through a `RowCommit` only, and a
pull records its client's position through a `ClientCommit`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from lakesync.model.types import Claims, RowDelta, RowKey
from lakesync.staging.notices import Presence
from lakesync.staging.records import ClientRecord, LogEntry, Move, Reindex, StoredRow
from lakesync.staging.store.feed import ClientView, GatewayView
from lakesync.wire.log import PackedDeltas


class ClientCommit(ClientView, Protocol):
    """Writes a client's record and presence."""

    def put_client(self, record: ClientRecord) -> None:
        """Store a client's record."""

    def announce_presence(self, presence: Collection[Presence]) -> None:
        """Notify all processes of the gateway which clients are connected, once the commit is visible."""


class RowCommit(ClientView, Protocol):
    """Writes rows and feed entries."""

    def next_arrivals(self, count: int) -> range:
        """Return `count` new arrivals, `ARRIVAL_STEP` apart, above all earlier ones, by the server's clock."""

    def unfolded_rows(self, keys: Collection[RowKey]) -> Mapping[RowKey, StoredRow]:
        """Return rows like `rows`, perhaps with unmerged UPDATEs: call `StoredRow.fold` before reading the state."""

    def put_rows(self, rows: Collection[StoredRow], moves: Collection[Move] = ()) -> None:
        """Store rows and feed entries.

        A row's entry under each of its bucket keys changes at least to the row's arrival. The store keeps the row
        objects, so they must not be changed afterwards.

        Args:
            rows: the new rows; each row key occurs once.
            moves: changes of entries that do not follow from the rows, as for `put_moves`.
        """

    def put_moves(self, moves: Collection[Move]) -> None:
        """Store changes of feed entries; they are applied in this order.

        `join` sets since = changed = arrival and inside, and first if it was 0. `stay` sets changed. `leave` sets left
        = changed = arrival and not inside. `own` sets changed = arrival, and first if it was 0, never inside.
        """

    def scan_rows(self, after: RowKey | None, limit: int) -> list[StoredRow]:
        """Return the next rows in key order; a re-index reads all rows this way.

        Args:
            after: the row key after which to continue; None for the first rows.
            limit: the most rows to return.
        """

    def put_reindexing(self, position: Reindex) -> None:
        """Store the position of a re-index."""

    def run_alone(self) -> None:
        """Require a commit of its own for the submitted function, with rows as durable as the log before and after it.

        A function that changes rows without a log row has to call this, since a replay of the log could not repeat the
        changes. Call it early: the store may undo what the function did, and run it again from its start. Readers see
        the changes only once they are durable.
        """


class NameView(GatewayView, Protocol):
    """Reads the case in which tables and columns are spelled in the lake."""

    def spelled_names(self, namespace: str, names: Collection[str]) -> Mapping[str, str]:
        """Return the stored spelling of tables and columns in a namespace of the lake, by their lower-case forms."""


class NameCommit(NameView, Protocol):
    """Adds spellings: two names of one namespace may not differ in case alone."""

    def spell_names(self, namespace: str, names: Collection[str]) -> Mapping[str, str]:
        """Add names of tables and columns that a namespace lacks; return all spellings, by lower-case form."""


class PushCommit(ClientCommit, RowCommit, NameCommit, Protocol):
    """Everything that a push reads and writes."""

    @property
    def backlog_bytes(self) -> int:
        """Stored bytes of this gateway's deltas that are not confirmed to be in the lake."""

    def known_ids(self, client_id: str, low: int, high: int) -> set[tuple[int, bytes]]:
        """Return the client's accepted deltas with `low <= hlc <= high`, trimmed ones included, as `(hlc, id digest)`.

        Args:
            client_id: the client's id.
            low: the lowest hlc.
            high: the highest hlc.
        """

    def highest_hlc(self, client_id: str) -> int:
        """Return the client's highest accepted hlc; -1 if it has none."""

    def append(self, client_id: str, deltas: PackedDeltas, arrival: int, claims: Claims) -> LogEntry:
        """Add a push to the log, with the next `seq`, and its deltas to the ledger.

        Args:
            client_id: the id of the client that pushes.
            deltas: the push's deltas, encoded.
            arrival: the push's last arrival.
            claims: the sender's claims that the rules read; a replay of the log needs them.
        """

    def filter_erased(self, deltas: Sequence[RowDelta]) -> Sequence[RowDelta]:
        """Return one client's deltas as they may be stored; the same sequence if no erasure covers any of them.

        Covered deltas lose their values. They are still stored, because the client may have their rows and must be sent
        the DELETE.
        """


class Replayer(Protocol):
    """The functions of the engine that a store calls: to replay its log, and to write rows outside of a push."""

    def replay(self, commit: RowCommit, entry: LogEntry) -> None:
        """Apply a log row's deltas to rows and entries, with their original arrivals."""

    def reindex(self, commit: RowCommit) -> None:
        """Start a re-index of all rows by the active rules, now or when the store is open."""

    def rewrite_rows(self, commit: RowCommit, rows: Sequence[StoredRow]) -> None:
        """Store rows that were changed without a push, with the bucket keys of their values and the resulting moves."""
