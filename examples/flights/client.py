"""An HTTP client that pushes its writes, pulls changes, and repeats unanswered requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import jwt
import msgspec
import requests

from examples.flights.cast import day_of
from examples.flights.encoding import push_body
from examples.flights.journal import Journal
from examples.flights.replica import Replica
from examples.flights.schemas import GATEWAY
from examples.flights.story import Write

BATCH = 500
"""Deltas per push; a body stays far below 1 MiB."""
PAGE = 1000
"""Deltas per pull."""
PATIENCE = 180.0
"""Seconds during which a request is repeated."""
PAUSE = 0.1
"""Seconds between two attempts."""
REPEATABLE = frozenset({429, 502, 503, 504})
TOKEN_HOURS = 24


class RefusedError(Exception):
    """The gateway answered with an error that a retry cannot change."""


def token(secret: str, client_id: str, role: str, claims: dict[str, str]) -> str:
    """Return a token for one client, signed like the application's login would sign it."""
    expires = int(time.time()) + TOKEN_HOURS * 3600
    return jwt.encode({"sub": client_id, "gw": GATEWAY, "role": role, "exp": expires, **claims}, secret, "HS256")


class Connection:
    """A client's session with the gateway; every request can be repeated."""

    def __init__(self, url: str, bearer: str) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {bearer}"
        self.closed = False
        """Set by whoever gives up: nothing is repeated any more."""
        self.repeats = 0
        """Requests that were sent again."""

    def send(self, method: str, path: str, *, body: bytes | None = None, params: dict[str, str] | None = None) -> bytes:
        """Return the answer's body. The request is repeated while the gateway is unreachable or asks to wait.

        Raises:
            RefusedError: any other error, or the timeout.
        """
        deadline = time.monotonic() + PATIENCE
        headers = {"Content-Type": "application/json"} if body is not None else {}
        while True:
            try:
                answer = self._session.request(
                    method, self._url + path, data=body, params=params, headers=headers, timeout=60
                )
                if answer.ok:
                    return self._answered(answer)
                problem, wait = f"{answer.status_code} {answer.text[:500]}", PAUSE
                if answer.status_code not in REPEATABLE:
                    raise RefusedError(f"{method} {path}: {problem}")
                wait = min(float(answer.headers.get("Retry-After", PAUSE)), 5.0)
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
                problem, wait = repr(error), PAUSE
            if self.closed or time.monotonic() > deadline:
                raise RefusedError(f"{method} {path}: no answer within {PATIENCE:.0f} s; the last was: {problem}")
            self.repeats += 1
            time.sleep(wait)

    def _answered(self, answer: requests.Response) -> bytes:
        self.last_headers = answer.headers
        return answer.content


class SyncingClient:
    """A client with a local database of what it wrote and pulled."""

    def __init__(self, url: str, secret: str, client_id: str, claims: dict[str, str]) -> None:
        self.id = client_id
        self.connection = Connection(url, token(secret, client_id, "client", claims))
        self.replica = Replica()
        self.cursor = 0
        self.pulled = 0
        """Deltas received."""

    def push(self, writes: Sequence[Write], step: int, journal: Journal) -> int:
        """Push an outbox in batches, and record each acknowledged batch in the journal. Returns the number of deltas.

        Raises:
            RefusedError: the gateway rejected a batch, or accepted another number of deltas than sent.
        """
        for start in range(0, len(writes), BATCH):
            batch = writes[start : start + BATCH]
            body = push_body(self.id, batch)
            answer = msgspec.json.decode(self.connection.send("POST", f"/v1/sync/{GATEWAY}/push", body=body))
            if answer["accepted"] != len(batch):
                raise RefusedError(f"{self.id} pushed {len(batch)} deltas and {answer['accepted']} were accepted")
            self.cursor = int(answer["serverHlc"])
            journal.acknowledged(self.id, step, day_of(step), answer["serverHlc"], body)
        self.replica.database.execute("begin")
        for write in writes:
            self.replica.write(write.op, write.table, write.row_id, write.columns)
        self.replica.database.execute("commit")
        return len(writes)

    def pull(self) -> int:
        """Pull and apply all pages. Returns the number of deltas."""
        before = self.pulled
        for page in self._pages():
            self.replica.apply(page)
            self.pulled += len(page)
        return self.pulled - before

    def _pages(self) -> Iterator[list[dict[str, Any]]]:
        more = True
        while more:
            params = {"since": str(self.cursor), "clientId": self.id, "limit": str(PAGE)}
            answer = msgspec.json.decode(self.connection.send("GET", f"/v1/sync/{GATEWAY}/pull", params=params))
            yield answer["deltas"]
            self.cursor = int(answer["serverHlc"])
            more = answer["hasMore"]
