"""As `test_histories`, against a gateway over Postgres."""

from __future__ import annotations

from tests.blackbox.run import found_wrong
from tests.blackbox.server import Server


def test_histories_over_postgres(own_database):
    server = Server("postgres", own_database)
    try:
        assert not found_wrong(server, range(700, 725))
    finally:
        server.close()
