"""Protocols of a staging store for transactions that write rows: pushes, replays of the log, and re-indexes.

`engine.pushing` commits pushes through a `PushCommit`. `lakesync.feed` writes rows through a `RowCommit` only, and a
pull records what its client was sent through a `ClientCommit`.

- A *push* is a client's request with *deltas*: INSERTs, UPDATEs and DELETEs of single rows. The *log* has a row for
  each push, with the number `seq`. A *replay* applies log rows again, after a crash.
- A *gateway* is one app's stream of changes. An *arrival* is its own timestamp of a commit. An *hlc* is the timestamp
  that the client gave its write. *Claims* are the fields of its token. An *erasure* deletes a row, or what a client
  wrote, permanently.
- A *feed entry* is a row's history under one bucket key of the sync rules. A *move* is a change of an entry.
- A *re-index* updates the bucket keys of all rows, in many commits, after a change of the rules.
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
    """Writes a client's record, and its presence: that it is connected."""

    def put_client(self, record: ClientRecord) -> None:
        """Store a client's record."""

    def announce_presence(self, presence: Collection[Presence]) -> None:
        """Notify all processes of the gateway which clients are connected to this one, once the commit is visible."""


class RowCommit(ClientView, Protocol):
    """Writes rows and feed entries."""

    def next_arrivals(self, count: int) -> range:
        """Return `count` new arrivals, `ARRIVAL_STEP` apart, above all earlier ones, by the server's clock."""

    def unfolded_rows(self, keys: Collection[RowKey]) -> Mapping[RowKey, StoredRow]:
        """Return rows like `FeedView.rows`, perhaps with deltas that are not merged yet.

        A push often needs no merged state, so this saves work. Call `StoredRow.fold` before reading a row's state.
        """

    def put_rows(self, rows: Collection[StoredRow], moves: Collection[Move] = ()) -> None:
        """Store rows and feed entries.

        For each of a row's bucket keys, the entry's `changed` becomes the row's arrival, unless it is greater already.
        The store keeps the row objects, so they must not be changed afterwards.

        Args:
            rows: the new rows; each row key occurs once.
            moves: changes of entries that do not follow from the rows; they are applied in this order, after the rows.

        Each kind of move, which `Move` explains, sets fields of the `Entry`:

        - `join`: `since` and `changed` to the arrival, `inside` to true, and `first` to the arrival if it was 0.
        - `stay`: `changed` to the arrival. No caller passes it: the store itself derives it from a row in `put_rows`.
        - `leave`: `changed` to the arrival, and `inside` to false. Then `Entry.left` is the arrival too.
        - `own`, under the bucket key of changes that concern one client alone: `changed` to the arrival, and `first` to
          the arrival if it was 0. `inside` stays false.
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
        """Require a transaction of its own for the function that was submitted to `TransactionStore.submit`.

        A store may keep the newest rows in memory, and restore them after a crash by a replay of the log. A function
        that changes rows without a log row has to call this, because a replay could not repeat its changes. The store
        then makes all rows durable before and after the function, and readers see the changes only afterwards. Call it
        early: the store may undo what the function did, and run it again from its start.
        """


class NameView(GatewayView, Protocol):
    """Reads the spelling of table and column names in the lake, whose engines ignore case."""

    def name_spellings(self, namespace: str, names: Collection[str]) -> Mapping[str, str]:
        """Return the stored spelling of names, by their lower-case forms; unknown names are absent.

        Args:
            namespace: the Iceberg namespace of the gateway's state tables.
            names: tables, and columns as `table.column`, in any case.
        """


class NameCommit(NameView, Protocol):
    """Adds spellings: two names of one namespace may not differ in case alone."""

    def add_spellings(self, namespace: str, names: Collection[str]) -> Mapping[str, str]:
        """Add names that a namespace does not have in any case.

        Args:
            namespace: the Iceberg namespace of the gateway's state tables.
            names: tables, and columns as `table.column`.

        Returns:
            The stored spelling of all names, by their lower-case forms. It differs from a given name if another
            spelling was stored first.
        """


class PushCommit(ClientCommit, RowCommit, NameCommit, Protocol):
    """Everything that a push reads and writes."""

    @property
    def backlog_bytes(self) -> int:
        """Stored bytes of deltas that are not confirmed to be in the lake; above a limit, pushes are rejected."""

    def known_ids(self, client_id: str, low: int, high: int) -> set[tuple[int, bytes]]:
        """Return which deltas of a client were accepted before, so that a repeated push is recognised.

        Args:
            client_id: the client's id.
            low: the lowest hlc.
            high: the highest hlc.

        Returns:
            Pairs of hlc and dedup key (`model.delta.dedup_key`, 8 bytes), also of deltas that are only in the lake.
        """

    def highest_hlc(self, client_id: str) -> int:
        """Return the client's highest accepted hlc; -1 if it has none."""

    def append(self, client_id: str, deltas: PackedDeltas, arrival: int, claims: Claims) -> LogEntry:
        """Add a push to the log, with the next `seq`, and count its deltas in the ledger (see `staging.ledger`).

        Args:
            client_id: the id of the client that pushes.
            deltas: the push's deltas, encoded.
            arrival: the push's last arrival.
            claims: the sender's claims that the rules read; a replay of the log needs them.
        """

    def filter_erased(self, deltas: Sequence[RowDelta]) -> Sequence[RowDelta]:
        """Return one client's deltas as they may be stored; the same sequence if no erasure covers any of them.

        An erasure deletes a row's or client's data permanently. Covered deltas lose their values. They are still
        stored, because the client may have their rows and must be sent the DELETE.
        """


class Replayer(Protocol):
    """The functions of the engine that a store calls: to replay its log, and to write rows outside of a push.

    The store cannot import the engine, which knows sync rules and merges. `Engine` implements this protocol.
    """

    def replay(self, commit: RowCommit, entry: LogEntry) -> None:
        """Apply a log row's deltas to rows and entries, with their original arrivals.

        Args:
            commit: the open transaction in the gateway's store.
            entry: the log row, with its body.
        """

    def rewrite_rows(self, commit: RowCommit, rows: Sequence[StoredRow]) -> None:
        """Store rows that were changed without a push, with the bucket keys of their values and the resulting moves.

        Args:
            commit: the open transaction in the gateway's store.
            rows: copies of the rows, changed.
        """
