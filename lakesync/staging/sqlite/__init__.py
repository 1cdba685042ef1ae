"""The staging store on SQLite: a folder with two databases, which one process owns.

`log.db`, the *journal*, has the log of pushes and everything else that cannot be rebuilt. A push is acknowledged when
it is durable there. `state.db` has the merged rows and their feed entries. They are kept in memory first, written to
`state.db` within seconds (*write-behind*), and rebuilt from the journal after a crash.

`store` has the public class. From top to bottom: `group` has the thread that runs all jobs, and its transactions;
`commit` has what a job reads and writes; `journal` and `journal_file` are `log.db`; `state`, `layered`, `layer`,
`state_file`, `row_file`, `entry_file` and `feed_range` are rows and entries; `write_behind` and `recovery` keep
`state.db` up to date. `administration` works on a store that is not open.
"""

from lakesync.staging.sqlite.store import SqliteStore
from lakesync.staging.sqlite.write_behind import WriteBehindLimits

__all__ = ["SqliteStore", "WriteBehindLimits"]
