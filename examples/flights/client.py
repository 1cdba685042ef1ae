"""A client: its local database, its own encoding of deltas, and its HTTP requests: pushes, pulls and a first sync.

The database applies deltas as plain SQL without any tolerance. The encoding shares no code with the gateway. Requests
that get no answer are repeated. `first_sync` is a carrier's new device at the end of the run: its first sync is a
checkpoint, then a pull.
"""

from __future__ import annotations

import hashlib
import io
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jwt
import msgspec
import requests

from examples.flights.cast import day_of
from examples.flights.journal import Journal
from examples.flights.schemas import COLUMNS, GATEWAY
from examples.flights.story import Write
from lakesync.wire.frames import read_checkpoint
from lakesync.wire.protobuf import decode_response


class Replica:
    """SQLite tables with `row_id` and the schema's columns; JSON values are stored as JSON text."""

    def __init__(self, path: Path | None = None) -> None:
        # One client is worked on by one thread at a time.
        self.database = sqlite3.connect(path or ":memory:", check_same_thread=False, isolation_level=None)
        for table, columns in COLUMNS.items():
            names = "".join(f", {_quoted(column)}" for column in columns)
            self.database.execute(f"create table {_quoted(table)} (row_id text primary key{names}) without rowid")

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    def apply(self, deltas: Iterable[Mapping[str, Any]]) -> None:
        """Apply a page of deltas in order, in one transaction.

        Raises:
            sqlite3.IntegrityError: an INSERT for an existing row.
        """
        self.database.execute("begin")
        for delta in deltas:
            self._one(delta["op"], delta["table"], delta["rowId"], delta["columns"])
        self.database.execute("commit")

    def write(self, op: str, table: str, row_id: str, columns: Mapping[str, Any]) -> None:
        """Make the application's own change, as INSERT or UPDATE."""
        if op != "DELETE":
            query = f"select 1 from {_quoted(table)} where row_id = ?"
            op = "UPDATE" if self.database.execute(query, (row_id,)).fetchone() else "INSERT"
        self._one(op, table, row_id, [{"column": name, "value": value} for name, value in columns.items()])

    def _one(self, op: str, table: str, row_id: str, columns: Iterable[Mapping[str, Any]]) -> None:
        names = [_quoted(cell["column"]) for cell in columns]
        values = [_stored(cell["value"]) for cell in columns]
        if op == "INSERT":
            places = ", ?" * len(names)
            self.database.execute(
                f"insert into {_quoted(table)} ({', '.join(['row_id', *names])}) values (?{places})", (row_id, *values)
            )
        elif op == "UPDATE":
            if names:
                changes = ", ".join(f"{name} = ?" for name in names)
                self.database.execute(f"update {_quoted(table)} set {changes} where row_id = ?", (*values, row_id))
        else:
            self.database.execute(f"delete from {_quoted(table)} where row_id = ?", (row_id,))

    def rows(self, table: str) -> dict[str, tuple[Any, ...]]:
        """Return row id → its values in the schema's order."""
        names = ", ".join(map(_quoted, COLUMNS[table]))
        return {row[0]: row[1:] for row in self.database.execute(f"select row_id, {names} from {_quoted(table)}")}


def _stored(value: Any) -> Any:
    return json.dumps(value, separators=(",", ":"), sort_keys=True) if isinstance(value, dict | list) else value


def _quoted(name: str) -> str:
    return f'"{name}"'


_json = msgspec.json.Encoder(order="sorted")


def delta_id(write: Write) -> str:
    """Return the SHA-256 of the canonical JSON of the delta's content, without its op.

    Compact JSON with sorted keys is the canonical form (RFC 8785) for the values of this data set.
    """
    return hashlib.sha256(_json.encode(_identity(write))).hexdigest()


def push_body(client: str, writes: Sequence[Write]) -> bytes:
    """Return the JSON body of a push."""
    deltas = [{**_identity(write), "op": write.op, "deltaId": delta_id(write)} for write in writes]
    return _json.encode({"clientId": client, "deltas": deltas, "lastSeenHlc": "0"})


def _identity(write: Write) -> dict[str, object]:
    return {
        "clientId": write.client,
        "columns": [{"column": name, "value": value} for name, value in write.columns.items()],
        "hlc": str(write.hlc),
        "rowId": write.row_id,
        "table": write.table,
    }


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


def first_sync(url: str, secret: str, carrier: str, database: Path) -> SyncingClient:
    """Sync a new client of a carrier into a SQLite file, and return it; its rows are in `replica`.

    Raises:
        RefusedError: there is no checkpoint, or the gateway returns another error.
        sqlite3.IntegrityError: a row was sent as new twice.
    """
    database.unlink(missing_ok=True)
    client = SyncingClient(url, secret, f"new-device-of-{carrier}", {"carrier": carrier})
    client.replica = Replica(database)
    stream = client.connection.send("GET", f"/v1/sync/{GATEWAY}/checkpoint")
    client.cursor = int(client.connection.last_headers["X-Checkpoint-Hlc"])
    for message in read_checkpoint(io.BytesIO(stream)):
        deltas = decode_response(message).deltas
        client.pulled += len(deltas)
        client.replica.apply(
            {
                "op": delta.op,
                "table": delta.table,
                "rowId": delta.row_id,
                "columns": [{"column": cell.column, "value": cell.decoded()} for cell in delta.columns],
            }
            for delta in deltas
        )
    client.pull()
    return client
