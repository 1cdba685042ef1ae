"""The store on Postgres: everything of a commit in one transaction, for any number of gateway processes."""

from lakesync.staging.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
