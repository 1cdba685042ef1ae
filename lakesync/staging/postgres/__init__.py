"""The staging store on Postgres: each commit is one transaction, and any number of gateway processes may use it.

`staging.open_store` creates it for a `postgresql://` URL. `store` has the public class and runs transactions, `commit`
and `journal` have what they read and write, and `notices` notifies other processes. `connection` has the pool of
connections, and `administration` works on a store that is not open.
"""

from lakesync.staging.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
