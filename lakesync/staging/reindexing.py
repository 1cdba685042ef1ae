"""The table of each gateway's re-index position, for both stores. `side_tables` includes it."""

from __future__ import annotations

from lakesync.staging.asking import Asking
from lakesync.staging.records import Reindex

_PUT = (
    "INSERT INTO reindex (gateway, rules_version, table_name, row_id, done) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (gateway) DO UPDATE SET rules_version = excluded.rules_version,"
    " table_name = excluded.table_name, row_id = excluded.row_id, done = excluded.done"
)


class ReindexView(Asking):
    """The method of a `View` that reads the re-index position."""

    def reindexing(self) -> Reindex | None:
        """Return the position of the latest re-index; None before the first."""
        rows = self._ask("SELECT rules_version, table_name, row_id, done FROM reindex WHERE gateway = ?")
        if not rows:
            return None
        version, table, row_id, done = rows[0]
        return Reindex(version, None if table is None else (table, row_id), bool(done))


class ReindexCommit(ReindexView):
    """The method of a `Commit` that stores the re-index position."""

    def put_reindexing(self, mark: Reindex) -> None:
        """Store the position of a re-index."""
        table, row_id = mark.after or (None, None)
        self._ask(_PUT, mark.rules_version, table, row_id, int(mark.done))
