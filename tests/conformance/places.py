"""The stores that the suite runs over: one line each in `PLACES`."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from lakesync.staging import open_store
from lakesync.staging.store import StagingStore
from lakesync.staging.store.push import Replayer
from lakesync.testing import ManualClock
from tests.postgres_server import empty


class Place:
    """The location of one test's data, over which stores are opened and closed."""

    def __init__(self, url: str, clock: ManualClock) -> None:
        self.url = url
        self.clock = clock
        self._open: list[StagingStore] = []

    def open(self, replayer: Replayer) -> StagingStore:
        """Open a store over the data."""
        store = open_store(self.url, self.clock)
        store.open(replayer)
        self._open.append(store)
        return store

    def reopen(self, store: StagingStore, replayer: Replayer) -> StagingStore:
        """Close the store and open another one."""
        store.close()
        self._open.remove(store)
        return self.open(replayer)

    def close(self) -> None:
        """Close every store that the test left open."""
        for store in self._open:
            store.close()


def sqlite(request: pytest.FixtureRequest) -> str:
    """A new folder."""
    folder: Path = request.getfixturevalue("tmp_path")
    return f"sqlite://{folder / 'staging'}"


def postgres(request: pytest.FixtureRequest) -> str:
    """An emptied database on the shared server, because creating one takes longer than most tests."""
    import psycopg

    server = request.getfixturevalue("postgres_uri")
    url = server.rpartition("/")[0] + "/staging_conformance"
    with psycopg.connect(server, autocommit=True) as connection:
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = 'staging_conformance'").fetchone() is None:
            connection.execute("CREATE DATABASE staging_conformance")
    empty(url)
    return url


def memory(request: pytest.FixtureRequest) -> str:
    """Named data in memory, so that a store can be opened over it again."""
    return f"memory://{uuid.uuid4().hex}"


PLACES = {
    "sqlite": sqlite,
    "memory": memory,
    "postgres": postgres,
}
