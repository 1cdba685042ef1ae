"""The staging store on Postgres: each commit is one transaction, and any number of gateway processes may use it.

`staging.open_store` opens it for a `postgresql://` URL.
"""

from lakesync.staging.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
