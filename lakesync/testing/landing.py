"""A landing in memory, for tests of connectors: it keeps what a gateway would be told."""

from __future__ import annotations

from collections.abc import Sequence

from lakesync.connectors.diff import Change, Known, diff
from lakesync.connectors.polling import Comparison
from lakesync.connectors.seen import Seen
from lakesync.connectors.source import Census, Cursor, Page, SourceRow, Table


class MemoryLanding:
    """Every landing is diffed against what was known, as the pipeline does it, and what was just seen is left out."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.rows: dict[str, Known] = {table.name: {} for table in tables}
        self.changes: list[tuple[str, Change]] = []
        """What would have been pushed, by table."""
        self.landings = 0
        self._identity = {table.name: table.identity for table in tables}
        self._cursors: dict[str, Cursor] = {}
        self._seen = {table.name: Seen() for table in tables}

    def cursor(self, table: str) -> Cursor | None:
        """The cursor of the last page that landed."""
        return self._cursors.get(table)

    def land(self, pages: Sequence[Page]) -> None:
        """Keep pages, and note what they change."""
        self.landings += 1
        for brought in pages:
            page = self._seen[brought.table].news(brought, self._identity[brought.table])
            found = diff(self.rows[page.table], page, self._identity[page.table])
            self.changes += [(page.table, change) for change in found]
            if page.cursor is not None:
                self._cursors[page.table] = page.cursor

    def compare(self, table: str, census: Census) -> Comparison:
        """The known rows beside a census."""
        there = {value for piece in census.values for value in piece}
        rows = self.rows[table]
        if census.column is None:
            self._seen[table].forget(there - rows.keys())
        absent = [
            SourceRow(row_id, columns)
            for row_id, columns in rows.items()
            if (row_id if census.column is None else columns[census.column]) not in there
        ]
        return Comparison(len(rows), absent, sorted(there - rows.keys()) if census.column is None else [])
