"""The synced tables of a client, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lakesync.client.database import LocalDB
from lakesync.client.replica import Replica
from lakesync.client.table import Row, Table
from lakesync.model.errors import NotFoundError


class Tables:
    """Made when they are first asked for, and anew when their schema has grown."""

    def __init__(self, db: LocalDB, replica: Replica, wrote: Callable[[], None]) -> None:
        """Args: wrote: called after each write."""
        self._db = db
        self._replica = replica
        self._wrote = wrote
        self._made: dict[str, Table] = {}

    def __getitem__(self, table: str) -> Table:
        """A synced table.

        Raises:
            NotFoundError: there is none of that name.
        """
        schema = self._replica.store.schemas.get(table)
        if schema is None:
            raise NotFoundError(f"table {table!r} is not synchronised: name its schema when you open the database")
        if table not in self._made or self._made[table].schema != schema:
            self._made[table] = Table(self._db, schema, self._wrote)
        return self._made[table]

    def __iter__(self) -> Iterator[str]:
        """The names of the synced tables."""
        return iter(self._replica.tables())

    def __contains__(self, table: object) -> bool:
        return table in self._replica.store.schemas

    def query(self, sql: str, params: Any = ()) -> list[Row]:
        """The rows that a query gives."""
        return self._db.query(sql, params)
