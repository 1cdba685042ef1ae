"""As `test_histories`, with stock clients that have WebSockets: broadcasts, and pulls that cross them."""

from __future__ import annotations

from tests.blackbox.run import found_wrong
from tests.blackbox.server import Server


def test_histories_over_websockets(over_sqlite):
    assert not found_wrong(over_sqlite, range(900, 930), live=True)


def test_histories_over_websockets_and_shards(over_shards):
    assert not found_wrong(over_shards, range(930, 945), live=True)


def test_histories_over_websockets_to_a_gateway_that_is_killed():
    server = Server()
    try:
        assert not found_wrong(server, range(950, 962), kills=True, live=True)
    finally:
        server.close()
