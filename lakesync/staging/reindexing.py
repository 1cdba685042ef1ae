"""How far rows are brought in line with rules that changed: one mark a gateway, the same statements in every store."""

from __future__ import annotations

from lakesync.staging.asking import Asking
from lakesync.staging.records import Reindex

_PUT = (
    "INSERT INTO reindex (gateway, rules_version, table_name, row_id, done) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (gateway) DO UPDATE SET rules_version = excluded.rules_version,"
    " table_name = excluded.table_name, row_id = excluded.row_id, done = excluded.done"
)


class ReindexView(Asking):
    """The part of a `View` that knows of a re-index."""

    def reindexing(self) -> Reindex | None:
        """How far the latest re-index is; None before the first."""
        rows = self._ask("SELECT rules_version, table_name, row_id, done FROM reindex WHERE gateway = ?")
        if not rows:
            return None
        version, table, row_id, done = rows[0]
        return Reindex(version, None if table is None else (table, row_id), bool(done))


class ReindexCommit(ReindexView):
    """The part of a `Commit` that keeps it."""

    def put_reindexing(self, mark: Reindex) -> None:
        """Write how far a re-index is, whole."""
        table, row_id = mark.after or (None, None)
        self._ask(_PUT, mark.rules_version, table, row_id, int(mark.done))
