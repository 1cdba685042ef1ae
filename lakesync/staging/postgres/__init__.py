"""The staging store on Postgres: each commit is one transaction, and any number of gateway processes may use it.

`staging.open_store` creates it for a `postgresql://` URL. `store` has the public class and runs transactions, `commit`
has what they read and write, `heads` the counters of gateways (each is one app's stream of changes), and `notices`
notifies other processes. `connection` has the pool of connections, and `administration` works on a store that is not
open.
"""

from lakesync.staging.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
