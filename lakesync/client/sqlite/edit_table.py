"""The table `_lakesync_edits` in the app's file, and the notifications of the app's custom queue.

An edit is a change of the app that the gateway has not acknowledged. A custom queue is a queue that the app passes to
`lakesync.open`: it is notified of every edit and chooses which one to push next. `SqliteClientStore` reads and writes
the edits here, in its own transactions.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from lakesync.client.core.store import Edit, EditStatus
from lakesync.client.queues import QueueLink, SyncQueue
from lakesync.client.sqlite.row_storage import LISTED_VALUES, value_list
from lakesync.model.types import RowKey, row_ids_by_table
from lakesync.wire.json import decode_deltas, encode_deltas

_TABLES = (
    """CREATE TABLE IF NOT EXISTS _lakesync_edits (
        number INTEGER PRIMARY KEY, tbl TEXT NOT NULL, row_id TEXT NOT NULL, status TEXT NOT NULL,
        delta BLOB NOT NULL, code TEXT NOT NULL, message TEXT NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS _lakesync_edits_of ON _lakesync_edits (tbl, row_id)",
    "CREATE INDEX IF NOT EXISTS _lakesync_edits_by ON _lakesync_edits (status, number)",
)
"""Creates the table and its indexes. `delta` is JSON; the other columns are fields of `Edit`."""
_QUEUE_ACKS = "CREATE TABLE IF NOT EXISTS _lakesync_queue_acks (delta_id TEXT PRIMARY KEY NOT NULL) WITHOUT ROWID"
"""Creates the table of deltas that the custom queue has to remove. Only files of apps with such a queue have it."""


class EditTable:
    """The edits in a file. Call `committed` or `rolled_back` after each transaction, for the custom queue."""

    def __init__(self, db: sqlite3.Connection) -> None:
        """Create an accessor; `create` creates the table."""
        self._db = db
        self.queue_link: QueueLink | None = None
        """Notifies the custom queue; None if the app has none."""
        self._cleared_acks: set[str] = set()
        """Ids that the transaction in progress deletes from `_lakesync_queue_acks`."""

    def create(self) -> None:
        """Create the table if it does not exist."""
        for statement in _TABLES:
            self._db.execute(statement)

    def link_queue(self, queue: SyncQueue) -> None:
        """Notify a custom queue of each edit from now on, first of what it lacks."""
        self._db.execute(_QUEUE_ACKS)
        acks = [delta_id for (delta_id,) in self._db.execute("SELECT delta_id FROM _lakesync_queue_acks")]
        self.queue_link = QueueLink(queue, acks)
        self.queue_link.reconcile(self.edits(None, None))

    def edits(self, status: EditStatus | None, limit: int | None) -> list[Edit]:
        """Return edits in order of their numbers.

        Args:
            status: only edits with this status; None for all.
            limit: edits, at most; None for all. If `waiting` edits are limited, a custom queue chooses them.
        """
        if self.queue_link is not None and status == "waiting" and limit is not None:
            return self._chosen_by_queue(self.queue_link, limit)
        where = "" if status is None else "WHERE status = ?"
        params = [*([] if status is None else [status]), -1 if limit is None else limit]
        return [edit for _, edit in self._select(f"{where} ORDER BY number LIMIT ?", params)]

    def edits_of(self, keys: Collection[RowKey]) -> dict[RowKey, list[Edit]]:
        """Return the edits of these rows in order of their numbers; rows without edits are absent."""
        result: dict[RowKey, list[Edit]] = {}
        if self._db.execute("SELECT 1 FROM _lakesync_edits LIMIT 1").fetchone() is None:
            return result
        for table, row_ids in row_ids_by_table(keys).items():
            where = f"WHERE tbl = ? AND row_id IN {LISTED_VALUES} ORDER BY number"
            for key, edit in self._select(where, [table, value_list(row_ids)]):
                result.setdefault(key, []).append(edit)
        return result

    def edited_rows(self) -> list[RowKey]:
        """Return the rows that have edits."""
        return self._db.execute("SELECT DISTINCT tbl, row_id FROM _lakesync_edits").fetchall()

    def put(self, edits: Mapping[int, Edit | None]) -> None:
        """Insert or replace edits by number, or delete those that are None. `committed` then notifies the queue."""
        if self.queue_link is not None and edits:
            self.queue_link.collect_changes(self._by_number(edits), edits)
            self._store_acks(self.queue_link)
        deleted = [(number,) for number, edit in edits.items() if edit is None]
        self._db.executemany("DELETE FROM _lakesync_edits WHERE number = ?", deleted)
        self._db.executemany(
            "INSERT OR REPLACE INTO _lakesync_edits (number, tbl, row_id, status, delta, code, message) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (number, *edit.delta.key, edit.status, encode_deltas((edit.delta,)), edit.code, edit.message)
                for number, edit in edits.items()
                if edit is not None
            ],
        )

    def committed(self) -> None:
        """Notify the custom queue of the edits that the transaction has changed."""
        if self.queue_link is not None:
            self.queue_link.delivered_acks -= self._cleared_acks
            self._cleared_acks = set()
            self.queue_link.notify()

    def rolled_back(self) -> None:
        """Forget the notifications of the transaction."""
        if self.queue_link is not None:
            self._cleared_acks = set()
            self.queue_link.discard_changes()

    def _store_acks(self, link: QueueLink) -> None:
        """Store which deltas the queue has to remove after this transaction, and delete those that it has removed."""
        self._cleared_acks = set(link.delivered_acks)
        delivered, collected = (
            [(delta_id,) for delta_id in ids] for ids in (self._cleared_acks, link.collected_acks())
        )
        self._db.executemany("DELETE FROM _lakesync_queue_acks WHERE delta_id = ?", delivered)
        self._db.executemany("INSERT OR IGNORE INTO _lakesync_queue_acks VALUES (?)", collected)

    def _chosen_by_queue(self, link: QueueLink, limit: int) -> list[Edit]:
        """Return the waiting edits that the custom queue sends next, in its order."""
        if link.may_differ:
            link.reconcile(self.edits(None, None))
        numbers = link.next_edits(limit)
        by_number = self._by_number(numbers)
        return [edit for number in numbers if (edit := by_number.get(number)) is not None and edit.status == "waiting"]

    def _by_number(self, numbers: Iterable[int]) -> dict[int, Edit]:
        """Return number → edit, for those of some numbers that exist."""
        where = f"WHERE number IN {LISTED_VALUES}"
        return {edit.number: edit for _, edit in self._select(where, [value_list(numbers)])}

    def _select(self, where: str, params: list[Any]) -> Iterator[tuple[RowKey, Edit]]:
        """Yield edits with their rows' keys; `where` is the end of the SELECT, from WHERE on."""
        statement = f"SELECT tbl, row_id, number, delta, status, code, message FROM _lakesync_edits {where}"
        for table, row_id, number, delta, status, code, message in self._db.execute(statement, params).fetchall():
            yield (table, row_id), Edit(number, decode_deltas(delta)[0], status, code, message)
