"""The end of the fake servers."""

import pytest
import requests

from lakesync.testing.servers import Response, serve


class Empty:
    """Answers every request."""

    def respond(self, _):
        return Response()

    def now(self):
        return 0


def test_a_connection_that_a_client_keeps_ends_with_the_server():
    with requests.Session() as session:
        with serve(Empty()) as server:
            assert session.get(server.url).ok
        with pytest.raises(requests.ConnectionError):
            session.get(server.url)
    assert len(server.calls) == 1
