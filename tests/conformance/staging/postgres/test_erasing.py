"""Erasing in a store that a process opened only to read."""

import pytest

from lakesync.model.errors import ConfigurationError
from lakesync.staging import open_store
from lakesync.staging.postgres import PostgresStore
from tests.conformance.book import Book, make_delta
from tests.conformance.places import postgres


def test_a_store_without_an_engine_rejects_an_erasure_before_its_first_step(request, clock):
    url = postgres(request)
    writer, reader = open_store(url, clock), PostgresStore(url, clock)
    writer.open(Book())
    writer.ensure_gateway("g")
    writer.submit("g", Book().push([make_delta("c", 1, "r1", x=1)])).result()
    reader.open()
    calls = [
        lambda: reader.erase_row("g", "t", "r1"),
        lambda: reader.erase_client("g", "c"),
        lambda: reader.restore("g", 1, []),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match="opened without an engine"):
            call()
    assert writer.erasures("g") == []
    reader.close()
    writer.close()
