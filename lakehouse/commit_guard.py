"""Installs a trigger in an Iceberg catalogue on Postgres, so that a commit whose response is lost damages no table.

Iceberg would repeat such a commit, take its own first one for a rival's, and delete the files of the newest snapshot.
`lakehouse.sessions` calls this module before it creates a session.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from lakesync.model.errors import ConfigurationError, LakeUnavailableError

SQL = Path(__file__).with_suffix(".sql")
"""The file with the definition of the trigger, which an administrator may run too."""

_IS_THERE = """
SELECT EXISTS (
    SELECT FROM pg_trigger WHERE tgname = 'lakesync_commit_guard' AND tgrelid = to_regclass('iceberg_tables')
)
"""


@cache
def guard_commits(catalogue_uri: str) -> None:
    """Install the trigger if it is missing, once in a process.

    Catalogues on SQLite and REST services need none: SQLite's responses come from the same process, and a REST service
    is responsible for its own commits.

    Args:
        catalogue_uri: URI of the catalogue's database, or of the REST service.

    Raises:
        LakeUnavailableError: the database cannot be reached.
        ConfigurationError: the database user may not create the trigger.
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
            f"which a lost response to a commit damages the table, and its user cannot create it ({error}); let the "
            f"owner of iceberg_tables run {SQL.name}, once"
        ) from error
