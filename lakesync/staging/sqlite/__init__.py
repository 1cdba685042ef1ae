"""The journal-first store on SQLite: a folder with `log.db`, the journal, and `state.db`, written behind."""

from lakesync.staging.sqlite.behind import WriteBehind
from lakesync.staging.sqlite.store import SqliteStore

__all__ = ["SqliteStore", "WriteBehind"]
