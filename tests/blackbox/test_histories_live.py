"""As `test_histories`, with stock clients that have WebSockets: broadcasts, and pulls during broadcasts."""

from __future__ import annotations

from tests.blackbox.run import found_wrong
from tests.blackbox.server import Server


def test_random_histories_over_websockets_end_with_the_right_rows(over_sqlite):
    assert not found_wrong(over_sqlite, range(900, 930), live=True)


def test_random_histories_over_websockets_and_shards_end_with_the_right_rows(over_shards):
    assert not found_wrong(over_shards, range(930, 945), live=True)


def test_random_histories_over_websockets_to_a_killed_gateway_end_with_the_right_rows():
    server = Server()
    try:
        assert not found_wrong(server, range(950, 962), kills=True, live=True)
    finally:
        server.close()
