"""`lakesync tail` continues after failed requests, and after a cursor that the gateway no longer serves."""

from __future__ import annotations

import json
from collections import deque

import pytest

from lakesync.testing.servers import Request, Response, serve


class Gateway:
    """Answers each request for a page with the next planned response."""

    def __init__(self, *planned: Response) -> None:
        self._planned = deque(planned)
        self.since: list[str | None] = []
        """The cursor of each request."""

    def respond(self, request: Request) -> Response:
        self.since.append(request.query.get("since"))
        return self._planned.popleft()

    def now(self) -> int:
        return 0


def page(cursor: str, *rows: str) -> Response:
    deltas = [
        {"op": "INSERT", "table": "todos", "rowId": row, "clientId": "bob", "columns": [], "hlc": "65536"}
        for row in rows
    ]
    return Response(200, {"deltas": deltas, "cursor": cursor, "hasMore": False})


RESYNC = Response(409, {"error": "the rules changed", "code": "RESYNC_REQUIRED"})
UNAVAILABLE = Response(503, {"error": "the store does not respond", "code": "STAGING_UNAVAILABLE"})


@pytest.mark.parametrize(
    ("planned", "since"),
    [
        ((page("c1", "t1"), UNAVAILABLE, page("c2", "t1", "t2")), [None, "c1", "c1"]),
        ((page("c1", "t1"), RESYNC, page("c2", "t1", "t2")), [None, "c1", None]),
        ((page("c1", "t1"), RESYNC, UNAVAILABLE, page("c2", "t1", "t2")), [None, "c1", None, None]),
    ],
)
def test_a_tail_continues_after_failed_requests(run, planned, since):
    gateway = Gateway(*planned)
    with serve(gateway) as server:
        words = ("tail", "--url", server.url, "--gateway", "shop", "--client", "alice", "--from-start", "--limit", "3")
        result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["rowId"] for line in result.stdout.splitlines()] == ["t1", "t1", "t2"]
    assert gateway.since == since
