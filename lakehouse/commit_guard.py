"""A Postgres that keeps Iceberg's JDBC catalogue, made such that a lost answer to a commit damages no table."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from lakesync.model.errors import ConfigurationError, LakeUnavailableError

SQL = Path(__file__).with_suffix(".sql")
"""What has to be there, for an administrator too."""

_IS_THERE = """
SELECT EXISTS (
    SELECT FROM pg_trigger WHERE tgname = 'lakesync_commit_guard' AND tgrelid = to_regclass('iceberg_tables')
)
"""


@cache
def guard_commits(catalogue_uri: str) -> None:
    """See that the guard is there, once a process; nothing to do for a catalogue on SQLite or a REST service.

    SQLite's answers come from within the process; a REST service answers for its own commits.

    Raises:
        LakeUnavailableError: the database cannot be reached.
        ConfigurationError: its user may not make the guard.
    """
    if not catalogue_uri.startswith("postgresql://"):
        return
    import psycopg

    try:
        with psycopg.connect(catalogue_uri) as connection:
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('lakesync_commit_guard'))")
            row = connection.execute(_IS_THERE).fetchone()
            if row is None or not row[0]:
                connection.execute(SQL.read_text("utf-8"))
    except psycopg.OperationalError as error:
        place = catalogue_uri.rpartition("@")[2]
        raise LakeUnavailableError(f"the catalogue at {place} cannot be reached: {str(error).strip()}") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise ConfigurationError(
            f"the catalogue at {catalogue_uri.rpartition('@')[2]} lacks the trigger lakesync_commit_guard, without "
            f"which a commit whose answer is lost damages its table, and its user may not make it ({error}); have the "
            f"owner of iceberg_tables run {SQL.name}, once"
        ) from error
