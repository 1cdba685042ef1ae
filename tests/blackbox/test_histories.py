"""A few hundred random histories, the same ones each time; `scripts/soak --blackbox` plays others."""

from __future__ import annotations

from tests.blackbox.run import found_wrong
from tests.blackbox.server import Server


def test_random_histories_end_with_the_right_rows(over_sqlite):
    assert not found_wrong(over_sqlite, range(1, 121))


def test_random_histories_during_a_large_reindex_end_with_the_right_rows(over_sqlite):
    assert not found_wrong(over_sqlite, range(300, 302), fill_every=1)


def test_random_histories_of_a_killed_gateway_end_with_the_right_rows():
    server = Server()
    try:
        assert not found_wrong(server, range(400, 412), kills=True)
    finally:
        server.close()
