"""Recovery of the Postgres store after an outage of its server."""

from __future__ import annotations

import time

import pytest

from lakesync.model.errors import StagingUnavailableError
from lakesync.staging import open_store
from tests.conformance.book import Book, make_delta
from tests.postgres_server import postgres_server

AWAY_SECONDS = 40
DEADLINE = 15


def first_push(store, until):
    """Push until it is accepted; return None if that does not happen until a monotonic time."""
    number = 0
    while time.monotonic() < until:
        number += 1
        try:
            return store.submit("g", Book().push([make_delta("c", number, "r1", x=1)])).result()
        except StagingUnavailableError:
            continue
    return None


@pytest.mark.deep
def test_a_store_recovers_soon_after_its_server(clock):
    with postgres_server() as server:
        store = open_store(server.uri, clock)
        store.open(Book())
        store.ensure_gateway("g")
        server.halt()
        assert first_push(store, time.monotonic() + AWAY_SECONDS) is None
        server.restart()
        assert first_push(store, time.monotonic() + DEADLINE) is not None
        store.close()
