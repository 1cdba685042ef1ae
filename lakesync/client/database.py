"""The app's database file: opened, shared between threads and programs, and locked against a second client."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from lakesync.client.errors import DbError, TableError
from lakesync.model.errors import ConfigurationError, ValidationError

if TYPE_CHECKING:
    import tempfile

MEMORY = ":memory:"
Backend = Literal["file", "memory"]
BUSY_SECONDS = 30.0
_MAIN_PRAGMAS = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")


def connect(path: Path, *, autocommit: bool, timeout: float = BUSY_SECONDS) -> sqlite3.Connection:
    """A connection to an app's database.

    Args:
        autocommit: statements outside of BEGIN stand for themselves; otherwise Python's sqlite3 begins by itself.
        timeout: seconds to wait while another connection writes.

    Raises:
        ConfigurationError: the file cannot be opened as a database.
    """
    try:
        connection = sqlite3.connect(path, timeout=timeout, check_same_thread=False)
        if autocommit:
            connection.isolation_level = None
        for pragma in _MAIN_PRAGMAS:
            connection.execute(pragma)
    except sqlite3.Error as error:
        raise ConfigurationError(f"{path} cannot be opened as an SQLite database: {error}") from error
    return connection


def reader(path: Path) -> sqlite3.Connection:
    """A connection that only reads, whatever it is given.

    Raises:
        ConfigurationError: as for `connect`.
    """
    connection = connect(path, autocommit=True)
    connection.execute("PRAGMA query_only = ON")
    return connection


def asked(db: sqlite3.Connection, sql: str, params: Any) -> sqlite3.Cursor:
    """A query on a `reader`.

    Raises:
        ValidationError: the statement gives no rows, or would write.
    """
    try:
        cursor = db.execute(sql, params)
    except sqlite3.OperationalError as error:
        if "readonly" not in str(error):
            raise
        raise ValidationError(f"{sql!r} writes: give a query here, and write by db.conn") from error
    if cursor.description is None:
        raise ValidationError(f"{sql!r} gives no rows: give a query")
    return cursor


def fault(error: sqlite3.Error, what: str) -> DbError | TableError:
    """What an error of SQLite means to an app: `what` cannot be used now, or a synced table is not what it was."""
    if isinstance(error, sqlite3.IntegrityError) and "_lakesync" not in str(error):
        return TableError(f"a table does not take what others wrote: {error}: take that constraint or trigger away")
    if "no such" in str(error) and "_lakesync" not in str(error):
        return TableError(
            f"a synced table was dropped, remade or altered meanwhile: {error}: close the database and open it again, "
            "which mends it"
        )
    return DbError(f"{what} cannot be used now: {error}")


def beside(path: Path) -> Path:
    """Where a first sync is loaded, for whoever holds the `SyncLock`."""
    return path.with_name(path.name + "-lakesync-first")


def remove(place: Path) -> None:
    """Remove a database file, where it is, and its journal."""
    for name in (place.name, f"{place.name}-journal"):
        place.with_name(name).unlink(missing_ok=True)


def database_of(name: str, backend: Backend) -> str:
    """The file that the reference's `name` and `backend` mean.

    Raises:
        ConfigurationError: there is no such backend.
    """
    if backend not in get_args(Backend):
        raise ConfigurationError(f"backend is {backend!r}, it must be file or memory")
    if backend == "memory":
        return MEMORY
    return name if name.endswith(".db") else f"{name}.db"


class LocalDB:
    """The file, and the connection that the app writes with. Whatever is written to synced tables is tracked."""

    def __init__(self, name: str | Path) -> None:
        """Open a file, or `:memory:`: a file of its own that goes with this object."""
        self.name = str(name)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if self.name == MEMORY:
            import tempfile

            self._temporary = tempfile.TemporaryDirectory(prefix="lakesync-")
            self.path = Path(self._temporary.name) / "app.db"
        else:
            self.path = Path(name)
        self._conn = connect(self.path, autocommit=False)
        self._one = threading.RLock()
        self._process = os.getpid()
        self._closed = False

    @classmethod
    def open(cls, config: str | Mapping[str, Any], backend: Backend | None = None) -> Self:
        """The reference's way: `LocalDB.open("app")`, or `LocalDB.open({"name": "app", "backend": "memory"})`.

        Args:
            config: the database's name, which is the file `NAME.db`, or a mapping with `name` and `backend`.
            backend: `file`, which is the default, or `memory`.

        Raises:
            ConfigurationError: an argument is wrong, or the file cannot be opened as a database.
        """
        given: dict[str, Any] = {"name": config} if isinstance(config, str) else dict(config)
        given["backend"] = backend or given.get("backend") or "file"
        if not isinstance(given.get("name"), str) or given.keys() != {"name", "backend"}:
            raise ConfigurationError(f"config of a database is {config!r}: give name, a text, and backend, if need be")
        return cls(database_of(given["name"], given["backend"]))

    @property
    def backend(self) -> Backend:
        """`memory` or `file`."""
        return "file" if self._temporary is None else "memory"

    @property
    def conn(self) -> sqlite3.Connection:
        """A plain connection; commit what you write with it. For one thread at a time.

        Raises:
            ConfigurationError: it was closed, or opened by the process that this one was forked from.
        """
        self.check_open()
        return self._conn

    def look_up_schema(self) -> None:
        """Have the connection know tables that another one has made since it first looked.

        SQLite finds that out by itself, but not for tables that only a trigger names, as the app's may name
        `_lakesync_quiet`.
        """
        self._conn.execute("SELECT 1 FROM _lakesync_quiet").fetchall()

    def exec(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> int:
        """Run a statement; how many rows it changed. It commits by itself outside of `transaction`."""
        with self.transaction():
            return self._conn.execute(sql, params).rowcount

    def query(self, sql: str, params: Sequence[Any] | dict[str, Any] = ()) -> list[dict[str, Any]]:
        """The rows that a query gives, what is not committed yet among them.

        Raises:
            ValidationError: the statement gives no rows, or would write.
        """
        with self.alone():
            within = self._conn.in_transaction
            self._conn.execute("PRAGMA query_only = ON")
            try:
                cursor = asked(self._conn, sql, params)
                names = [column[0] for column in cursor.description]
                return [dict(zip(names, row, strict=True)) for row in cursor]
            finally:
                self._conn.execute("PRAGMA query_only = OFF")
                if self._conn.in_transaction and not within:  # sqlite3 has begun one for what would write
                    self._conn.rollback()

    def save(self) -> None:
        """Have everything that was committed in the one file, without the `-wal` beside it.

        A commit is on the disk anyway; this is for who copies the file. It does nothing in memory.

        Raises:
            ConfigurationError: a transaction is open, or as for `alone`.
            DbError: another connection keeps the file busy, or the disk is full; what was committed is kept.
        """
        with self.alone():
            if self.backend == "memory":
                return
            if self._conn.in_transaction:
                raise ConfigurationError(f"a transaction is open on {self.path}: commit it or roll it back, then save")
            try:
                ((busy, _, _),) = self._conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.OperationalError as error:
                raise self._unwritable(error) from error
            if busy:
                raise DbError(f"{self.path} cannot be saved now: another connection reads or writes it")

    def alone(self) -> AbstractContextManager[Any]:
        """Inside, no other thread uses the connection by this object meanwhile; those that do wait.

        Raises:
            ConfigurationError: it was closed, or opened by the process that this one was forked from.
        """
        self.check_open()
        return self._one

    def check_open(self) -> None:
        """Refuse to go on with what was closed, or left behind by a fork.

        Raises:
            ConfigurationError: open it anew.
        """
        if os.getpid() != self._process:
            raise ConfigurationError(f"{self.path} was opened before a fork: open it anew in the new process")
        if self._closed:
            raise ConfigurationError(f"{self.path} was closed: open it anew")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of what is written inside, or none; within a transaction that is open already, a part of that.

        Raises:
            DbError: the database cannot be written now: it is locked, or the disk is full.
            ConfigurationError: as for `alone`.
        """
        with self.alone():
            if self._conn.in_transaction:
                with self._part():
                    yield self._conn
                return
            try:
                self._conn.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                raise self._unwritable(error) from error
            try:
                yield self._conn
                self._commit()
            except BaseException:
                self._conn.rollback()
                raise

    @property
    def held(self) -> bool:
        """Whether a transaction is open that ends only after what this thread does now."""
        if not self._one.acquire(blocking=False):
            return False  # it is another thread's, which goes on by itself
        try:
            return not self._closed and self._conn.in_transaction
        finally:
            self._one.release()

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that opened the file: a connection is for one process."""
        return os.getpid() != self._process

    def close(self) -> None:
        """Close the connection; what was not committed is undone. Further calls do nothing."""
        with self._one:
            if self._closed:
                return
            self._closed = True
            self._conn.close()
            if self._temporary is not None:
                self._temporary.cleanup()

    @contextmanager
    def _part(self) -> Iterator[None]:
        """All of what is written inside, or none, of a transaction that goes on."""
        self._conn.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            with suppress(sqlite3.OperationalError):  # the app has ended the whole
                self._conn.execute("ROLLBACK TO part")
                self._conn.execute("RELEASE part")
            raise
        with suppress(sqlite3.OperationalError):
            self._conn.execute("RELEASE part")

    def _commit(self) -> None:
        try:
            self._conn.commit()
        except sqlite3.OperationalError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: sqlite3.OperationalError) -> DbError:
        return DbError(f"{self.path} cannot be written now: {error}")


class SyncLock:
    """Held by the one client of a database that talks to the gateway; it ends with the process that holds it."""

    def __init__(self, path: Path) -> None:
        self._of = path
        self._path = path.with_name(path.name + "-lakesync")
        self._held: sqlite3.Connection | None = None

    def take(self) -> None:
        """Take it, unless it is held already.

        Raises:
            DbError: another client holds it.
        """
        if self._held is not None:
            return
        holder = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            holder.execute("PRAGMA locking_mode = EXCLUSIVE")
            holder.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            holder.close()
            if error.sqlite_errorcode not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise DbError(f"{self._path}, which says who synchronises, cannot be written now: {error}") from error
            raise DbError(
                f"another client synchronises {self._path.name.removesuffix('-lakesync')!r} at the moment: "
                "write to the database here, it will send it"
            ) from error
        self._held = holder
        remove(beside(self._of))  # what is left there is of a process that was killed

    def release(self) -> None:
        """Let another client have it."""
        if self._held is not None:
            self._held.close()
            self._held = None
