"""Some hundred histories at random, the same ones each time; `scripts/soak --blackbox` plays others."""

from __future__ import annotations

from tests.blackbox.run import found_wrong
from tests.blackbox.server import Server


def test_histories_over_sqlite(over_sqlite):
    assert not found_wrong(over_sqlite, range(1, 121))


def test_histories_of_a_gateway_that_reindexes_many_rows(over_sqlite):
    assert not found_wrong(over_sqlite, range(300, 302), fill_every=1)


def test_histories_of_a_killed_gateway():
    server = Server()
    try:
        assert not found_wrong(server, range(400, 412), kills=True)
    finally:
        server.close()
