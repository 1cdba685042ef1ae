"""The journal's transactions: groups of works, and every gateway's head in memory.

Writes of pushes wait in memory until their group commits. All other writes go to the file at once, in a savepoint of
their work. `GroupCommit` begins and commits the groups, `SqliteCommit` reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lakesync.model.errors import NotFoundError
from lakesync.model.schema import TableSchema
from lakesync.model.types import Claims
from lakesync.staging.head import MAIN_SHARD, Head, new_config
from lakesync.staging.records import ClientRecord, GatewayConfig, LogEntry
from lakesync.staging.sqlite.files import LOG_FILE
from lakesync.staging.sqlite.journal_file import Client, JournalFile
from lakesync.staging.table_values import next_entry, size_of
from lakesync.wire.log import PackedDeltas, unpack_ids, unpacked_size

V = TypeVar("V")


K = TypeVar("K")


class Undo:
    """A stack of functions that undo changes, run last first."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], object]] = []

    def mark(self) -> int:
        """Return the current position, for `take_back`."""
        return len(self._steps)

    def add(self, step: Callable[[], object]) -> None:
        """Add a function that undoes the current change."""
        self._steps.append(step)

    def update(self, held: dict[K, V], new: Mapping[K, V]) -> None:
        """Update a dictionary whose values are never None, and add how to undo that.

        `new` must not be changed afterwards.
        """
        before = list(map(held.get, new))
        held.update(new)

        def restore() -> None:
            for key, value in zip(new, before, strict=True):
                if value is None:
                    del held[key]
                else:
                    held[key] = value

        self._steps.append(restore)

    def take_back(self, mark: int) -> None:
        """Undo everything since the mark."""
        while len(self._steps) > mark:
            self._steps.pop()()

    def forget(self) -> None:
        """Drop all functions: nothing can be undone any more."""
        self._steps.clear()


_REMEMBERED = 4096
"""Cached client records, and cached highest hlcs."""


class MustRunAloneError(Exception):
    """A work needs more than a group can give: it must be run again, alone."""


class _Group:
    """What the works of a group wrote, and the file does not contain yet."""

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone
        self.undo = Undo()
        self.work = 0
        """The undo mark at which the current work began."""
        self.direct = False
        """Whether the current work has a savepoint."""
        self.moved: set[str] = set()
        self.forget_waiting()

    def forget_waiting(self) -> None:
        """Clear what waits in memory, apart from heads."""
        self.entries: list[tuple[LogEntry, int]] = []
        self.writers: dict[Client, tuple[int, int]] = {}
        self.clients: dict[Client, ClientRecord] = {}

    @property
    def waits(self) -> bool:
        """Whether anything waits in memory, apart from heads."""
        return bool(self.entries or self.writers or self.clients)


class Journal(JournalFile):
    """The journal's file, and the writes that wait in memory for it.

    All methods belong to the owner thread. Another thread waits for the disk if there is something to do meanwhile.
    Changes since a mark can be undone.
    """

    def __init__(self, folder: Path, wall: Callable[[], int], shard: str = MAIN_SHARD) -> None:
        """Open or create `log.db`.

        Args:
            folder: of the store.
            wall: returns the server's wall time in milliseconds.
            shard: of gateways that are created in it.

        Raises:
            StagingVersionError: a newer version wrote it.
        """
        super().__init__(folder)
        self.wall = wall
        self._shard = shard
        self.heads: dict[str, Head] = {head.gateway: head for head in self.stored_heads()}
        self._disk = ThreadPoolExecutor(1, f"commits of {LOG_FILE}")
        self.unpacked_bytes = 0
        """Of all bodies that were ever appended, before compression; it only grows."""
        self._group = _Group(alone=False)
        self._writers: dict[Client, tuple[int, int]] = {}
        self._clients: dict[Client, ClientRecord] = {}
        self._answers: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}

    def close(self) -> None:
        """Close the file."""
        self._disk.shutdown()
        super().close()

    # -- one group of works, and one work in it ------------------------------------------------------------------

    def begin(self, *, alone: bool = False) -> None:
        """Begin a group, or a work that is a group alone."""
        self._group = _Group(alone=alone)
        self.sql.execute("BEGIN IMMEDIATE")

    @property
    def intact(self) -> bool:
        """Whether the group's transaction is open: SQLite ends one on its own when a disk is full."""
        return self.sql.in_transaction

    def commit(self, meanwhile: Callable[[Callable[[], bool]], None] | None = None) -> set[str]:
        """Make the group durable, and return the gateways whose heads changed.

        Args:
            meanwhile: called while the disk is waited for, with a function that returns whether that is over; it must
                not use the journal.
        """
        group = self._group
        self._write()
        for gateway in group.moved:
            self.write_head(self.heads[gateway])
        if meanwhile is None:
            self.sql.execute("COMMIT")
        else:
            committed = self._disk.submit(self.sql.execute, "COMMIT")
            try:
                meanwhile(committed.done)
            finally:
                wait([committed])
            committed.result()
        self._group = _Group(alone=False)
        return group.moved

    def rollback(self) -> None:
        """Roll back the group."""
        if self.sql.in_transaction:
            self.sql.execute("ROLLBACK")
        self._forget()
        self._group.undo.take_back(0)
        self._group = _Group(alone=False)

    def mark(self) -> int:
        """Begin a work inside the group, and return its undo mark."""
        group = self._group
        if group.direct:
            self.sql.execute("RELEASE work")
            group.direct = False
        group.work = group.undo.mark()
        return group.work

    def take_back(self, mark: int) -> None:
        """Undo what the work did since its mark."""
        group = self._group
        if group.direct:
            self.sql.execute("ROLLBACK TO work")
            self._forget()
            group.forget_waiting()
        group.undo.take_back(mark)

    def direct(self) -> None:
        """Prepare for statements of the current work that read or write the file itself.

        Raises:
            MustRunAloneError: the work has written to memory, which could not be told from other works' writes in the
                file.
        """
        group = self._group
        if not (group.alone or group.direct):
            if group.waits and group.undo.mark() > group.work:
                raise MustRunAloneError
            self._write()
            self.sql.execute("SAVEPOINT work")
            group.direct = True
        self._write()
        self._forget()

    def _forget(self) -> None:
        """Clear the caches, because the file may differ."""
        self._writers.clear()
        self._clients.clear()
        self._answers.clear()

    def remembered(self, question: tuple[Any, ...], ask: Callable[[], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
        """Return the rows of a query, cached until a work writes to the file itself.

        Args:
            question: identifies the query.
            ask: runs it.
        """
        known = self._answers.get(question)
        if known is None:
            known = ask()
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            self._answers[question] = known
        return known

    def _write(self) -> None:
        """Write what waits in memory to the file."""
        group = self._group
        if group.entries:
            self.write_entries(group.entries)
        if group.writers:
            _remember(self._writers, group.writers)
            self.write_writers(group.writers)
        if group.clients:
            _remember(self._clients, group.clients)
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
        self._group.moved.add(head.gateway)

    def ensure_gateway(self, gateway: str) -> None:
        """Create a gateway. Its epoch is the wall time, so that a store that is created again has another one."""
        if gateway in self.heads:
            return
        self.direct()
        epoch = max(1, self.wall())
        self.write_gateway(gateway, epoch)
        self.set_head(Head(gateway=gateway, epoch=epoch, config=new_config(), shard=self._shard))

    def put_schema(self, gateway: str, table: str, version: int, schema: TableSchema | None) -> None:
        """Store a table's schema under its new version; None if it is retired."""
        self.direct()
        self.write_schema(gateway, table, version, schema)

    def put_config(self, gateway: str, config: GatewayConfig) -> None:
        """Store a gateway's configuration, without its schemas."""
        self.direct()
        self.write_config(gateway, config)
        self.set_head(msgspec.structs.replace(self.head(gateway), config=config))

    # -- clients -------------------------------------------------------------------------------------------------

    def client(self, gateway: str, client_id: str) -> ClientRecord | None:
        """Return a client's record."""
        place = (gateway, client_id)
        known = self._group.clients.get(place) or self._clients.get(place)
        if known is None:
            known = self.stored_client(gateway, client_id)
            if known is not None:
                _remember(self._clients, {place: known})
        return known

    def put_client(self, gateway: str, record: ClientRecord) -> None:
        """Store a client's record."""
        self._group.undo.update(self._group.clients, {(gateway, record.client_id): record})

    def writer(self, gateway: str, client_id: str) -> tuple[int, int]:
        """Return a client's highest accepted hlc (-1 for none), and the widest range of hlcs of one of its pushes."""
        place = (gateway, client_id)
        known = self._group.writers.get(place) or self._writers.get(place)
        if known is None:
            known = self.stored_writer(gateway, client_id)
            if known is None:
                return (-1, 0)
            _remember(self._writers, {place: known})
        return known

    def known_ids(self, gateway: str, client_id: str, low: int, high: int) -> set[tuple[int, bytes]]:
        """Return the ids with an hlc in `low..high` from the client's log rows."""
        _, widest = self.writer(gateway, client_id)
        packed = self.stored_ids(gateway, client_id, low, high, widest)
        packed += [
            entry.ids
            for entry, _ in self._group.entries
            if (entry.gateway, entry.client_id) == (gateway, client_id) and entry.hlc_high >= low
        ]
        return {known for ids in packed for known in unpack_ids(ids) if low <= known[0] <= high}

    # -- the log -------------------------------------------------------------------------------------------------

    def append(self, gateway: str, client_id: str, deltas: PackedDeltas, arrival: int, claims: Claims) -> LogEntry:
        """Add a log row, its ids, and its share of the ledger."""
        group, head = self._group, self.head(gateway)
        entry = next_entry(head, client_id, deltas, arrival, claims)
        highest, widest = self.writer(gateway, client_id)
        numbers = (max(highest, entry.hlc_high), max(widest, entry.hlc_high - entry.hlc_low))
        self.unpacked_bytes += unpacked_size(entry.body) if entry.body else 0
        group.entries.append((entry, self.wall()))
        group.undo.add(lambda: group.entries and group.entries.pop())
        group.undo.update(group.writers, {(gateway, client_id): numbers})
        self.set_head(head.appended(arrival, entry.count, size_of(entry)))
        return entry


def _remember(known: dict[Client, V], new: Mapping[Client, V]) -> None:
    if len(known) + len(new) > _REMEMBERED:
        known.clear()
    known.update(new)
