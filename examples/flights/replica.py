"""A client's local database, which applies deltas as plain SQL without any tolerance."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from examples.flights.schemas import COLUMNS


class Replica:
    """SQLite tables with `row_id` and the schema's columns; JSON values are stored as JSON text."""

    def __init__(self, path: Path | None = None) -> None:
        # One client is worked on by one thread at a time.
        self.database = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
        for table, columns in COLUMNS.items():
            names = "".join(f", {_quoted(column)}" for column in columns)
            self.database.execute(f"create table {_quoted(table)} (row_id text primary key{names}) without rowid")

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def apply(self, deltas: Iterable[Mapping[str, Any]]) -> None:
        """Apply a page of deltas in order, in one transaction.

        Raises:
            sqlite3.IntegrityError: an INSERT for an existing row.
        """
        self.database.execute("begin")
        for delta in deltas:
            self._one(delta["op"], delta["table"], delta["rowId"], delta["columns"])
        self.database.execute("commit")

    def write(self, op: str, table: str, row_id: str, columns: Mapping[str, Any]) -> None:
        """Make the application's own change, as INSERT or UPDATE."""
        if op != "DELETE":
            query = f"select 1 from {_quoted(table)} where row_id = ?"
            op = "UPDATE" if self.database.execute(query, (row_id,)).fetchone() else "INSERT"
        self._one(op, table, row_id, [{"column": name, "value": value} for name, value in columns.items()])

    def _one(self, op: str, table: str, row_id: str, columns: Iterable[Mapping[str, Any]]) -> None:
        names = [_quoted(cell["column"]) for cell in columns]
        values = [_stored(cell["value"]) for cell in columns]
        if op == "INSERT":
            places = ", ?" * len(names)
            self.database.execute(
                f"insert into {_quoted(table)} ({', '.join(['row_id', *names])}) values (?{places})", (row_id, *values)
            )
        elif op == "UPDATE":
            if names:
                changes = ", ".join(f"{name} = ?" for name in names)
                self.database.execute(f"update {_quoted(table)} set {changes} where row_id = ?", (*values, row_id))
        else:
            self.database.execute(f"delete from {_quoted(table)} where row_id = ?", (row_id,))

    def rows(self, table: str) -> dict[str, tuple[Any, ...]]:
        """Return row id → its values in the schema's order."""
        names = ", ".join(map(_quoted, COLUMNS[table]))
        return {row[0]: row[1:] for row in self.database.execute(f"select row_id, {names} from {_quoted(table)}")}


def _stored(value: Any) -> Any:
    return json.dumps(value, separators=(",", ":"), sort_keys=True) if isinstance(value, dict | list) else value


def _quoted(name: str) -> str:
    return f'"{name}"'
