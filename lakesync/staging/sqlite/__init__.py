"""The store on SQLite: a folder with `log.db`, the journal, and `state.db`, which is written behind it.

A push is acknowledged when the journal is durable. Rows and feed entries are kept in memory first, written to
`state.db` within seconds, and rebuilt from the journal after a crash.
"""

from lakesync.staging.sqlite.store import SqliteStore
from lakesync.staging.sqlite.write_behind import WriteBehindLimits

__all__ = ["SqliteStore", "WriteBehindLimits"]
