"""The SQLite store's `View` and `Commit`: they combine the log (`Journal`) with the rows and feed entries (`State`).

`SqliteStore` creates one for each *job*: a function that the engine submits, and that the store's owner thread runs.
The job, and the feed's functions that it calls, use the methods here. `staging.store` documents them.

A *gateway* is one app's stream of changes, and its *head* has its counters. An *arrival* is the gateway's timestamp of
a commit, an *hlc* a client's timestamp of a delta (change of a row). In the files are:

- the *log*, one row for each push. A delta's *dedup key* is 8 bytes of the hash of its id, by which the log shows that
  a push is repeated.
- the rows by *bucket*, a part of the sync rules with the rows that some clients may see. A *bucket key* names it with
  the clients' *claims* (fields of their tokens). A *feed entry* says when a row joined and left a bucket, and when it
  last changed there; a *move* is a change of an entry.
- the *side tables* in `log.db`, such as those of actions and erasures. `SideQueries` and `SideStatements` have their
  SQL, which `SqliteStore` and `PostgresStore` share.

`ConfigStatements` changes schemas and sync rules.

A commit makes the log durable in `log.db`; the rows reach `state.db` later. After a crash, a *replay* of the log
(`sqlite.recovery`) computes the missing rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any

from lakesync.model.types import Claims, RowKey
from lakesync.staging.encoded_feed import FeedRange, Reader
from lakesync.staging.head import Head
from lakesync.staging.notices import Announcement
from lakesync.staging.records import ClientRecord, Entry, LogEntry, Move, StoredRow
from lakesync.staging.side_tables import SideQueries, SideStatements
from lakesync.staging.sqlite.journal import Journal, MustRunAloneError
from lakesync.staging.sqlite.state import State
from lakesync.wire.log import PackedDeltas

_QUERIES_OF_EVERY_PUSH = ("SELECT max(hlc) FROM erasure ",)
"""Beginnings of queries that every push makes. Their results do not depend on writes of pushes, which wait in memory
until their transaction commits. So the results are cached until a job runs other statements (`Journal.prepare_sql`)."""


class SqliteView(SideQueries):
    """A `View` of one gateway, used in the store's owner thread between transactions."""

    def __init__(self, journal: Journal, state: State, gateway: str) -> None:
        """Create the view.

        Args:
            journal: the store's log.
            state: the store's rows and feed entries.
            gateway: the gateway's id.

        Raises:
            NotFoundError: there is no such gateway.
        """
        self._journal = journal
        self._state = state
        self._gateway = gateway
        journal.head(gateway)  # raises NotFoundError

    @property
    def gateway(self) -> str:
        """The gateway's id."""
        return self._gateway

    @property
    def _head(self) -> Head:
        return self._journal.head(self._gateway)

    def rows(self, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """Return the stored rows among `keys`, with all of their deltas merged."""
        return {key: row.fold() for key, row in self._state.rows(self.gateway, keys).items()}

    def entries_after(self, buckets: Collection[str], after: int, limit: int) -> list[Entry]:
        """Return entries with `after < changed <= arrival`; see `View.entries_after`."""
        return list(islice(self._state.entries_after(self.gateway, buckets, after, self.arrival, limit), limit))

    def read_range(
        self, buckets: Sequence[str], after: int, up_to: int, limit: int, reader: Reader
    ) -> FeedRange | None:
        """Return entries with their rows, encoded for the clients that `reader` describes; see `View.read_range`."""
        return self._state.read_range(self.gateway, buckets, after, min(up_to, self.arrival), limit, reader)

    def entries_of(self, keys: Collection[RowKey], buckets: Collection[str]) -> list[Entry]:
        """Return every entry of these rows under these bucket keys."""
        return self._state.entries_of(self.gateway, keys, buckets)

    def changed_after(self, buckets: Collection[str], after: int) -> bool:
        """Return whether any entry under these bucket keys has `changed > after`."""
        return self._state.changed_after(self.gateway, buckets, after)

    def unnotified(self, buckets: Iterable[str], after: int) -> Collection[str]:  # noqa: ARG002
        """Return no keys: the owner thread delivers a commit's notices before its next read; see `View.unnotified`."""
        return ()

    def unnotified_clients(self, client_ids: Collection[str]) -> list[ClientRecord]:  # noqa: ARG002
        """Return no records, for the same reason as `unnotified`."""
        return []

    def buckets(self, prefix: str) -> list[str]:
        """Return the bucket keys in use that start with `prefix`."""
        return self._state.buckets(self.gateway, prefix)

    def client(self, client_id: str) -> ClientRecord | None:
        """Return a client's record; None if it has none."""
        return self._journal.client(self.gateway, client_id)

    def _query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a query. Between transactions no write waits in memory, so the file is complete."""
        return self._journal.sql.execute(statement, (self.gateway, *values)).fetchall()


class SqliteCommit(SqliteView, SideStatements):
    """A `Commit` of one gateway; `GroupCommit` begins and commits the transaction that it belongs to.

    `_move_head` is what `ConfigStatements` declares.
    """

    def __init__(
        self,
        journal: Journal,
        state: State,
        gateway: str,
        *,
        alone: bool = False,
        announcement: Announcement | None = None,
    ) -> None:
        """Create the commit.

        Args:
            journal: the store's log.
            state: the store's rows and feed entries.
            gateway: the gateway's id.
            alone: whether the job has a transaction of its own, with all rows written to `state.db` before and after.
            announcement: collects the notices that listeners get after the commit; None if nobody is notified, as in a
                replay.
        """
        super().__init__(journal, state, gateway)
        self._alone = alone
        self._wall, self._announcement = journal.wall, announcement or Announcement()

    def _query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows.

        Writes of pushes wait in memory, where SQL does not see them. So before a statement, they are written to
        `log.db` (`Journal.prepare_sql`), except for the cached queries that every push makes.
        """
        if statement.startswith(_QUERIES_OF_EVERY_PUSH):
            run_query = super()._query
            return self._journal.cached_rows((statement, self.gateway, *values), lambda: run_query(statement, *values))
        self._journal.prepare_sql()
        return super()._query(statement, *values)

    def known_ids(self, client_id: str, low: int, high: int) -> set[tuple[int, bytes]]:
        """Return pairs of hlc and dedup key of the client's accepted deltas with `low <= hlc <= high`."""
        return self._journal.known_ids(self.gateway, client_id, low, high)

    def highest_hlc(self, client_id: str) -> int:
        """Return the client's highest accepted hlc; -1 if it has none."""
        return self._journal.writer(self.gateway, client_id)[0]

    def append(self, client_id: str, deltas: PackedDeltas, arrival: int, claims: Claims) -> LogEntry:
        """Add a log row; see `Commit.append`."""
        return self._journal.append(self.gateway, client_id, deltas, arrival, claims)

    def unfolded_rows(self, keys: Collection[RowKey]) -> dict[RowKey, StoredRow]:
        """Return the stored rows among `keys`, perhaps with unmerged deltas; see `RowCommit.unfolded_rows`."""
        return self._state.rows(self.gateway, keys)

    def put_rows(self, rows: Collection[StoredRow], moves: Collection[Move] = ()) -> None:
        """Store rows and feed entries; see `Commit.put_rows`."""
        if rows or moves:
            self._announcement.rows_changed(self.gateway, self._state.put(self.gateway, rows, moves))

    def put_client(self, record: ClientRecord) -> None:
        """Store a client's record."""
        self._journal.put_client(self.gateway, record)

    def run_alone(self) -> None:
        """Require a transaction of its own, with all rows in `state.db` before and after; see `RowCommit.run_alone`.

        A job that is not alone is interrupted here, rolled back, and run again in a transaction of its own. For
        example, a change of rules must be alone, because a replay of the log computes bucket keys by the active rules:
        all log rows that it replays must have been pushed under them.

        Raises:
            MustRunAloneError: the job shares a transaction; `GroupCommit` handles this error.
        """
        if not self._alone:
            raise MustRunAloneError

    def _move_head(self, head: Head) -> None:
        self._journal.set_head(head)

    def scan_rows(self, after: RowKey | None, limit: int) -> list[StoredRow]:
        """Return rows in key order, after a key, in a transaction of its own.

        All rows that are only in memory are written to the file first. Beside other jobs, the rows of earlier groups
        could get into the group's savepoint, and would be lost with it if the group failed.

        Raises:
            MustRunAloneError: as `run_alone`.
        """
        self.run_alone()
        return self._state.scan_rows(self.gateway, after, limit)
