"""The store on Postgres: each commit is one transaction, and any number of gateway processes may use it."""

from lakesync.staging.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
