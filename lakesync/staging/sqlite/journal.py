"""The transactions of `log.db`, the journal of a SQLite store; every gateway's counters are in memory.

A *gateway* is one app's stream of changes, and its *head* has its counters. A table's schema is *retired* when it is
withdrawn: pushes to the table are then not checked.

A *job* is a function that the store's owner thread runs; jobs that share a transaction are a *group*. Pushes are
frequent, so their writes wait in memory until their group commits, and are then written with few statements. All other
writes of a job go to the file immediately, inside a savepoint, so that the job can be rolled back alone. The log has
one row for each push; its *body* is the encoded deltas (changes of rows). An *hlc* is the client's timestamp of a
delta, an *arrival* the gateway's timestamp of a push.

`GroupCommit` begins and commits the groups. In between, the jobs read and write through `SqliteCommit`, which clients'
requests use, and through `sqlite.store._Pipeline`. `JournalFile`, the base class, has the SQL statements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from lakesync.model.errors import NotFoundError
from lakesync.model.types import Claims
from lakesync.staging.head import MAIN_SHARD, Head
from lakesync.staging.records import ClientRecord, GatewayConfig, LogEntry
from lakesync.staging.sqlite.files import LOG_FILE
from lakesync.staging.sqlite.journal_file import Client, JournalFile
from lakesync.staging.table_values import next_entry, size_of
from lakesync.wire.log import PackedDeltas, unpack_ids, unpacked_size

K = TypeVar("K")
V = TypeVar("V")


class Undo:
    """A stack of functions that undo changes in memory, run last first.

    It does for the values in memory what a rollback does in the file. An *undo mark* is the height of the stack at a
    moment, to which it can be undone.
    """

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def mark(self) -> int:
        """Return the current number of functions; `undo_to` with this number undoes what is added later."""
        return len(self._steps)

    def add(self, step: Callable[[], object]) -> None:
        """Add a function that undoes the current change."""
        self._steps.append(step)

    def update(self, target: dict[K, V], new: Mapping[K, V]) -> None:
        """Update a dictionary, and add a function that undoes the update.

        Args:
            target: the dictionary; none of its values is None.
            new: the new values by key; it must not be changed afterwards.
        """
        before = list(map(target.get, new))
        target.update(new)

        def restore() -> None:
            for key, value in zip(new, before, strict=True):
                if value is None:
                    del target[key]
                else:
                    target[key] = value

        self._steps.append(restore)

    def undo_to(self, mark: int) -> None:
        """Undo everything since `mark` returned this number."""
        while len(self._steps) > mark:
            self._steps.pop()()


_MAX_CACHED = 4096
"""The most entries in each of the journal's caches."""


class MustRunAloneError(Exception):
    """Raised inside a job that cannot share a transaction. `GroupCommit` rolls it back and runs it again, alone."""


class _Group:
    """The writes of a group's jobs that wait in memory, and how to undo them."""

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone
        self.undo = Undo()
        self.job_mark = 0
        """The undo mark at the beginning of the current job."""
        self.has_savepoint = False
        """Whether the current job has a savepoint in the file."""
        self.changed_gateways: set[str] = set()
        """The gateways whose heads changed."""
        self.forget_waiting()  # sets the other fields

    def forget_waiting(self) -> None:
        """Drop the writes that wait in memory, apart from heads: they were written to the file, or are rolled back."""
        self.entries: list[tuple[LogEntry, int]] = []
        """Log rows, each with the server's wall time in milliseconds since 1970."""
        self.writers: dict[Client, tuple[int, int]] = {}
        """By client, the values that `Journal.writer` returns."""
        self.clients: dict[Client, ClientRecord] = {}

    @property
    def has_waiting(self) -> bool:
        """Whether anything waits in memory, apart from heads."""
        return bool(self.entries or self.writers or self.clients)


class Journal(JournalFile):
    """`log.db`, and the writes that wait in memory for it.

    Only the store's owner thread calls its methods: `begin`; for each job `begin_job`, the job's own reads and writes,
    and `roll_back_job` if it fails; then `commit` or `rollback`. While a commit waits for the disk in another thread,
    the owner thread may do something else (`commit`).
    """

    def __init__(self, folder: Path, wall: Callable[[], int], shard: str = MAIN_SHARD) -> None:
        """Open or create `log.db`.

        Args:
            folder: the store's folder.
            wall: returns the server's wall time in milliseconds since 1970.
            shard: name of the shard that the store serves, which has some of the tables; gateways created in it get
                this name.

        Raises:
            StagingVersionError: a newer LakeSync wrote it.
        """
        super().__init__(folder)
        self.wall = wall
        self._shard = shard
        self.heads: dict[str, Head] = {head.gateway: head for head in self.stored_heads()}
        self._disk = ThreadPoolExecutor(1, f"commits of {LOG_FILE}")
        self.unpacked_bytes = 0
        """Size of all bodies that this process has appended, before compression; it only grows."""
        self._group = _Group(alone=False)
        # caches of what the file contains
        self._writers: dict[Client, tuple[int, int]] = {}
        self._clients: dict[Client, ClientRecord] = {}
        self._cached_rows: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        """The rows of cached queries; see `cached_rows`."""

    def close(self) -> None:
        """Close the file."""
        self._disk.shutdown()
        super().close()

    # -- one group of jobs, and one job in it --------------------------------------------------------------------

    def begin(self, *, alone: bool = False) -> None:
        """Begin a transaction: of a group or, if `alone`, of one job that shares it with no other."""
        self._group = _Group(alone=alone)
        self.sql.execute("BEGIN IMMEDIATE")

    @property
    def has_transaction(self) -> bool:
        """Whether the group's transaction is open: SQLite ends one on its own when a disk is full."""
        return self.sql.in_transaction

    def commit(self, meanwhile: Callable[[Callable[[], bool]], None] | None = None) -> set[str]:
        """Make the group durable, and return the gateways whose heads changed.

        Args:
            meanwhile: a function to call while another thread waits for the disk. It must not use the journal. It is
                given a function that returns whether the commit has ended, and should return soon after that. None to
                wait in this thread.

        Raises:
            sqlite3.Error: the commit failed; the caller rolls the group back.
        """
        group = self._group
        self._write()
        for gateway in group.changed_gateways:
            self.write_head(self.heads[gateway])
        if meanwhile is None:
            self.sql.execute("COMMIT")
            self._group = _Group(alone=False)
        else:
            committed = self._disk.submit(self.sql.execute, "COMMIT")
            try:
                meanwhile(committed.done)
            finally:
                committed.result()
                self._group = _Group(alone=False)  # the file has the group, so `rollback` must not undo it in memory
        return group.changed_gateways

    def rollback(self) -> None:
        """Roll back the group, in the file and in memory.

        Raises:
            sqlite3.Error: the file's transaction is still open; the group is rolled back in memory only.
        """
        try:
            if self.sql.in_transaction:
                self.sql.execute("ROLLBACK")
        finally:
            self._forget()
            self._group.undo.undo_to(0)
            self._group = _Group(alone=False)

    def begin_job(self) -> None:
        """Begin a job inside the group."""
        group = self._group
        if group.has_savepoint:
            self.sql.execute("RELEASE job")
            group.has_savepoint = False
        group.job_mark = group.undo.mark()

    def roll_back_job(self) -> None:
        """Roll back the current job, in the file and in memory."""
        group = self._group
        if group.has_savepoint:
            self.sql.execute("ROLLBACK TO job")
            self._forget()
            group.forget_waiting()
        group.undo.undo_to(group.job_mark)

    def prepare_sql(self) -> None:
        """Prepare the file for SQL statements of the current job: write what waits in memory to it.

        The caches are cleared, because the statements may change what they have. If the job shares the transaction, it
        gets a savepoint from here on, so that it can be rolled back alone.

        Raises:
            MustRunAloneError: the job has writes that wait in memory beside those of other jobs. All of them would be
                written before the savepoint, so the job could not be rolled back alone.
        """
        group = self._group
        if not (group.alone or group.has_savepoint):
            if group.has_waiting and group.undo.mark() > group.job_mark:
                raise MustRunAloneError
            self._write()
            self.sql.execute("SAVEPOINT job")
            group.has_savepoint = True
        self._write()
        self._forget()

    def _forget(self) -> None:
        """Clear the caches, because the file may have other contents."""
        self._writers.clear()
        self._clients.clear()
        self._cached_rows.clear()

    def cached_rows(
        self, cache_key: tuple[Any, ...], run_query: Callable[[], list[tuple[Any, ...]]]
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query, cached until a job writes to the file itself.

        Args:
            cache_key: the statement and the values of its parameters.
            run_query: runs the query; called if the result is not cached.
        """
        rows = self._cached_rows.get(cache_key)
        if rows is None:
            rows = run_query()
            if len(self._cached_rows) >= _MAX_CACHED:
                self._cached_rows.clear()
            self._cached_rows[cache_key] = rows
        return rows

    def _write(self) -> None:
        """Write what waits in memory to the file."""
        group = self._group
        if group.entries:
            self.write_entries(group.entries)
        if group.writers:
            _cache(self._writers, group.writers)
            self.write_writers(group.writers)
        if group.clients:
            _cache(self._clients, group.clients)
            self.write_clients(group.clients)
        group.forget_waiting()

    # -- gateways ------------------------------------------------------------------------------------------------

    def head(self, gateway: str) -> Head:
        """Return a gateway's head.

        Raises:
            NotFoundError: there is no such gateway.
        """
        head = self.heads.get(gateway)
        if head is None:
            raise NotFoundError(f"no gateway {gateway!r} in {self.path.parent}: make it with ensure_gateway first")
        return head

    def set_head(self, head: Head) -> None:
        """Replace a gateway's head; it is written when the group commits."""
        self._group.undo.update(self.heads, {head.gateway: head})
        self._group.changed_gateways.add(head.gateway)

    def ensure_gateway(self, gateway: str) -> None:
        """Create a gateway, unless it exists. Its epoch, the wall time, identifies this store's copy of its data."""
        if gateway in self.heads:
            return
        self.prepare_sql()
        epoch = max(1, self.wall())
        self.write_gateway(gateway, epoch)
        self.set_head(Head(gateway=gateway, epoch=epoch, config=GatewayConfig(), shard=self._shard))

    # -- clients -------------------------------------------------------------------------------------------------

    def client(self, gateway: str, client_id: str) -> ClientRecord | None:
        """Return a client's record, also one that waits in memory; None if it has none.

        Args:
            gateway: the gateway's id.
            client_id: the client's id.
        """
        client = (gateway, client_id)
        record = self._group.clients.get(client) or self._clients.get(client)
        if record is None:
            record = self.stored_client(gateway, client_id)
            if record is not None:
                _cache(self._clients, {client: record})
        return record

    def put_client(self, gateway: str, record: ClientRecord) -> None:
        """Store a client's record.

        Args:
            gateway: the gateway's id.
            record: the record, which replaces the client's earlier one.
        """
        self._group.undo.update(self._group.clients, {(gateway, record.client_id): record})

    def writer(self, gateway: str, client_id: str) -> tuple[int, int]:
        """Return two numbers that bound the search for a client's repeated deltas in the log.

        Returns:
            The client's highest accepted hlc, -1 for none; and the greatest difference of hlcs within one of its
            pushes. A push with hlcs from 5 to 9 has the difference 4. With 4 as the greatest, a delta with hlc 20 can
            only be in a push whose highest hlc is 20 to 24.
        """
        client = (gateway, client_id)
        numbers = self._group.writers.get(client) or self._writers.get(client)
        if numbers is None:
            numbers = self.stored_writer(gateway, client_id)
            if numbers is None:
                return (-1, 0)
            _cache(self._writers, {client: numbers})
        return numbers

    def known_ids(self, gateway: str, client_id: str, low: int, high: int) -> set[tuple[int, bytes]]:
        """Return the client's accepted deltas with `low <= hlc <= high`, also those that wait in memory.

        Args:
            gateway: the gateway's id.
            client_id: the client's id.
            low: the lowest hlc.
            high: the highest hlc.

        Returns:
            Pairs of hlc and dedup key (`model.delta.dedup_key`).
        """
        _, widest = self.writer(gateway, client_id)
        packed = self.stored_ids(gateway, client_id, low, high, widest)
        packed += [
            entry.ids
            for entry, _ in self._group.entries
            if (entry.gateway, entry.client_id) == (gateway, client_id) and entry.hlc_high >= low
        ]
        return {pair for ids in packed for pair in unpack_ids(ids) if low <= pair[0] <= high}

    # -- the log -------------------------------------------------------------------------------------------------

    def append(self, gateway: str, client_id: str, deltas: PackedDeltas, arrival: int, claims: Claims) -> LogEntry:
        """Add a push to the log; it waits in memory until the group commits.

        Args:
            gateway: the gateway's id.
            client_id: the id of the client that pushes.
            deltas: the push's deltas, encoded.
            arrival: the push's last arrival.
            claims: the claims (fields of the client's token) that sync rules read; a replay of the log needs them.
        """
        group, head = self._group, self.head(gateway)
        entry = next_entry(head, client_id, deltas, arrival, claims)
        highest, widest = self.writer(gateway, client_id)
        writer = (max(highest, entry.hlc_high), max(widest, entry.hlc_high - entry.hlc_low))
        self.unpacked_bytes += unpacked_size(entry.body) if entry.body else 0
        group.entries.append((entry, self.wall()))
        # `pop` belongs to the present list. When its entries are written to the file, the group gets a new list; then
        # `pop` changes only the old one, and a savepoint undoes what was written. A function that refers to the group
        # would form a reference cycle with its undo steps.
        group.undo.add(group.entries.pop)
        group.undo.update(group.writers, {(gateway, client_id): writer})
        self.set_head(head.appended(arrival, entry.count, size_of(entry)))
        return entry


def _cache(cache: dict[Client, V], new: Mapping[Client, V]) -> None:
    """Add values to a cache; a cache that would exceed `_MAX_CACHED` is cleared first."""
    if len(cache) + len(new) > _MAX_CACHED:
        cache.clear()
    cache.update(new)
