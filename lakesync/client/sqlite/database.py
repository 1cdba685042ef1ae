"""The app's database file: its connections and transactions.

`LocalDB` has the connection on which the app reads and writes; `lakesync.open` creates it, and apps reach it as
`client.db`. The other modules of the client use the functions. Triggers on the app's synced tables track what the app
writes.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from lakesync.client.errors import DbError, TableError
from lakesync.client.sqlite.query_rows import rows_as_dicts, run_query
from lakesync.model.errors import ConfigurationError

if TYPE_CHECKING:
    import tempfile

MEMORY = ":memory:"
"""The name of a database that ends with the process. It is a temporary file, because it has several connections."""
Backend = Literal["file", "memory"]
"""Where a database is kept; `memory` ends with the process."""
_BUSY_SECONDS = 30.0
"""How long a connection waits while another one writes."""
_PRAGMAS = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "PRAGMA trusted_schema = ON")
"""Commits go to a write-ahead log, and each waits for the disk. Triggers may call functions such as `json_valid`, also
if SQLite was compiled without trust in schemas."""


def connect(path: Path, *, autocommit: bool) -> sqlite3.Connection:
    """Open a connection to an app's database.

    Args:
        path: the file; it is created if it does not exist.
        autocommit: whether a statement outside of BEGIN commits by itself; otherwise Python's sqlite3 begins a
            transaction before a write.

    Raises:
        ConfigurationError: the file is not an SQLite database, or cannot be opened.
    """
    with ExitStack() as on_failure:
        try:
            connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
            on_failure.callback(connection.close)
            if autocommit:
                connection.isolation_level = None
            for pragma in _PRAGMAS:
                connection.execute(pragma)
        except sqlite3.Error as error:
            raise ConfigurationError(f"{path} cannot be opened as an SQLite database: {error}") from error
        on_failure.pop_all()
    return connection


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a connection that rejects every write.

    Raises:
        ConfigurationError: the file is not an SQLite database, or cannot be opened.
    """
    connection = connect(path, autocommit=True)
    connection.execute("PRAGMA query_only = ON")
    return connection


def database_error(error: sqlite3.Error, subject: str) -> DbError | TableError:
    """Return the client's error for an error of SQLite.

    Args:
        error: the error that sqlite3 raised.
        subject: what could not be used, for the message, such as the file's path.

    Returns:
        A TableError if the app changed a synced table or its constraints; otherwise a DbError.
    """
    if isinstance(error, sqlite3.IntegrityError) and "_lakesync" not in str(error):
        return TableError(
            f"a synced table rejects what other clients wrote: {error}: remove that constraint or trigger"
        )
    if "no such" in str(error) and "_lakesync" not in str(error):
        return TableError(
            f"a synced table was dropped, recreated or altered while it was open: {error}: close the database and "
            "open it again, which repairs it"
        )
    if "unsafe use of" in str(error):
        return TableError(
            f"the triggers that track writes may not call a function: {error}: leave `PRAGMA trusted_schema` of the "
            "connection on"
        )
    return DbError(f"{subject} cannot be used now: {error}")


def database_file(name: str, backend: Backend) -> str:
    """Return the file for `name` and `backend`, as the TypeScript client has these arguments.

    Args:
        name: the database's name; the file is `NAME.db`.
        backend: `file` or `memory`.

    Raises:
        ConfigurationError: the backend is unknown.
    """
    if backend not in get_args(Backend):
        raise ConfigurationError(f"backend is {backend!r}, it must be file or memory")
    if backend == "memory":
        return MEMORY
    return name if name.endswith(".db") else f"{name}.db"


class LocalDB:
    """The app's database file, and the app's connection to it. Threads may share it."""

    def __init__(self, name: str | Path) -> None:
        """Open a database.

        Args:
            name: a file; or `:memory:` for a temporary file that is deleted on `close`.

        Raises:
            ConfigurationError: the file cannot be opened as a database, or has several names.
        """
        self.name = str(name)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if self.name == MEMORY:
            import tempfile

            self._temporary = tempfile.TemporaryDirectory(prefix="lakesync-")
            self.path = Path(self._temporary.name) / "app.db"
        else:
            self.path = Path(name).resolve()  # another process may use a symbolic link, and this one may call chdir
            _check_hard_links(self.path)
        self._conn = connect(self.path, autocommit=False)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._closed = False

    @classmethod
    def open(cls, config: str | Mapping[str, Any], backend: Backend | None = None) -> Self:
        """Open a database with the arguments of the TypeScript client: a name, or a mapping of `name` and `backend`.

        Args:
            config: the database's name, which is the file `NAME.db`, or a mapping with `name` and `backend`.
            backend: `file`, which is the default, or `memory`.

        Raises:
            ConfigurationError: an argument is wrong, or the file cannot be opened as a database.
        """
        settings: dict[str, Any] = {"name": config} if isinstance(config, str) else dict(config)
        settings["backend"] = backend or settings.get("backend") or "file"
        if not isinstance(settings.get("name"), str) or settings.keys() != {"name", "backend"}:
            raise ConfigurationError(
                f"config of a database is {config!r}: pass a mapping with name, a string, and optionally backend"
            )
        return cls(database_file(settings["name"], settings["backend"]))

    @property
    def backend(self) -> Backend:
        """`memory` or `file`."""
        return "file" if self._temporary is None else "memory"

    @property
    def conn(self) -> sqlite3.Connection:
        """The app's connection, for one thread at a time; commit what you write with it.

        Raises:
            ConfigurationError: the database is closed, or was opened before a fork.
        """
        self.check_open()
        return self._conn

    def reload_schema(self) -> None:
        """Make the connection read the schema again, which another connection has changed.

        SQLite notices changed tables by itself, but not `_lakesync_quiet` if only a trigger of the app refers to it:
        the table from which triggers read whether the client, and not the app, is writing.
        """
        self._conn.execute("SELECT 1 FROM _lakesync_quiet").fetchall()

    def read(self, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement on the app's connection, whatever factories the app has set.

        Args:
            sql: one statement.
            params: its parameters.
        """
        with self._plain_cursor() as cursor:
            return cursor.execute(sql, params).fetchall()

    def exec(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> int:
        """Run a statement; outside of `transaction` it commits by itself.

        Args:
            sql: one statement.
            params: its parameters.

        Returns:
            The number of changed rows.
        """
        with self.transaction():
            return self._conn.execute(sql, params).rowcount

    def query(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> list[dict[str, Any]]:
        """Return the rows of a query, including uncommitted ones of this connection.

        Args:
            sql: a query.
            params: its parameters.

        Raises:
            ValidationError: the statement returns no rows, or writes.
        """
        with self.exclusive():
            had_transaction = self._conn.in_transaction
            self._conn.execute("PRAGMA query_only = ON")
            try:
                with self._plain_cursor() as cursor:
                    return rows_as_dicts(run_query(cursor.execute, sql, params))
            finally:
                self._conn.execute("PRAGMA query_only = OFF")
                if not had_transaction:  # sqlite3 may have begun one for a rejected write
                    self._end_transaction("ROLLBACK")

    def save(self) -> None:
        """Move all commits into the one file, so that it can be copied without its `-wal`.

        Commits are durable without this call. It does nothing for a database in memory.

        Raises:
            ConfigurationError: a transaction is open, or as for `exclusive`.
            DbError: another connection keeps the file busy, or the disk is full; no commit is lost.
        """
        with self.exclusive():
            if self.backend == "memory":
                return
            if self._conn.in_transaction:
                raise ConfigurationError(f"a transaction is open on {self.name}: commit it or roll it back, then save")
            try:
                ((busy, _, _),) = self.read("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.OperationalError as error:
                raise self._write_error(error) from error
            if busy:
                raise DbError(f"{self.path} cannot be saved now: another connection reads or writes it; try again")

    def exclusive(self) -> AbstractContextManager[Any]:
        """Return a lock on the app's connection, for `with`. Methods of this object wait for it in other threads.

        Raises:
            ConfigurationError: the database is closed, or was opened before a fork.
        """
        self.check_open()
        return self._lock

    def check_open(self) -> None:
        """Check that the connection is usable in this process.

        Raises:
            ConfigurationError: the database is closed, or was opened before a fork.
        """
        if os.getpid() != self._process:
            raise ConfigurationError(f"{self.path} was opened before a fork: open it again in the new process")
        if self._closed:
            raise ConfigurationError(f"{self.path} is closed: open it again")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction; within another one, a savepoint.

        Raises:
            DbError: the database cannot be written now: it is locked, or the disk is full.
            ConfigurationError: the database is closed, or was opened before a fork.
        """
        with self.exclusive():
            if self._conn.in_transaction:
                with self._savepoint():
                    yield self._conn
                return
            try:
                self._conn.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                raise self._write_error(error) from error
            try:
                yield self._conn
                try:
                    self._end_transaction("COMMIT")
                except sqlite3.OperationalError as error:
                    raise self._write_error(error) from error
            except BaseException:
                self._end_transaction("ROLLBACK")
                raise

    @property
    def blocks_this_thread(self) -> bool:
        """Whether a transaction is open that cannot end while this thread waits for it.

        A transaction of another thread does not count, because that thread continues by itself.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return not self._closed and self._conn.in_transaction
        finally:
            self._lock.release()

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that opened the file; SQLite connections do not survive that."""
        return os.getpid() != self._process

    def close(self) -> None:
        """Close the connection and roll back what is not committed. Further calls do nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._conn.close()
            if self._temporary is not None:
                self._temporary.cleanup()

    @contextmanager
    def _plain_cursor(self) -> Iterator[sqlite3.Cursor]:
        """Yield a cursor of the app's connection whose rows are tuples with texts as `str`."""
        connection = self.conn
        text_factory = connection.text_factory
        connection.text_factory = str
        try:
            cursor = connection.cursor()
            cursor.row_factory = None
            yield cursor
        finally:
            connection.text_factory = text_factory

    def _end_transaction(self, statement: Literal["COMMIT", "ROLLBACK"]) -> None:
        """End the open transaction, unless the app has ended it.

        The methods of sqlite3 would do nothing if the app has set `autocommit` of the connection.
        """
        if self._conn.in_transaction:
            self._conn.execute(statement)

    @contextmanager
    def _savepoint(self) -> Iterator[None]:
        """Run a savepoint within the open transaction."""
        self._conn.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            with suppress(sqlite3.OperationalError):  # the app has ended the outer transaction
                self._conn.execute("ROLLBACK TO part")
                self._conn.execute("RELEASE part")
            raise
        with suppress(sqlite3.OperationalError):
            self._conn.execute("RELEASE part")

    def _write_error(self, error: sqlite3.OperationalError) -> DbError:
        """Return the client's error for a failed write."""
        return DbError(f"{self.path} cannot be written now: {error}")


def _check_hard_links(path: Path) -> None:
    """Check that a file has one name.

    SQLite keeps a write-ahead log and locks beside each name, so programs that use two names overwrite each other's
    commits.

    Raises:
        ConfigurationError: the file has several hard links.
    """
    links = path.stat().st_nlink if path.exists() else 1
    if links > 1:
        raise ConfigurationError(
            f"{path} is one of {links} hard links to one file, and SQLite would lose what is written by another name: "
            "delete the other links; copy a database with VACUUM INTO, or use a symbolic link"
        )
