"""A client of the demo: its local database, its encoding of deltas, its HTTP requests, and the journal of its pushes.

A delta is a change of a row. The database applies deltas as plain SQL, and an INSERT of an existing row is an error.
The encoding shares no code with the gateway, LakeSync's server. Requests that get no response are repeated. `Driver`
(`driver.py`) creates the clients. At the end of the run, `demo.py` calls `first_sync` for a carrier's new device. It
fetches a checkpoint, which has all rows at one time, then pulls what is newer. Its *cursor* says up to where it pulled.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jwt
import msgspec
import requests

from examples.flights.data import COLUMNS, GATEWAY
from examples.flights.workload import Write, day_of
from lakesync.wire.frames import read_checkpoint
from lakesync.wire.protobuf import decode_response


class Replica:
    """SQLite tables with `row_id` and the schema's columns; JSON values are stored as JSON text."""

    def __init__(self, path: Path | None = None) -> None:
        """Create the tables in a new file, or in memory if there is no path."""
        # Several threads work on a client, one at a time.
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
            self._execute(delta["op"], delta["table"], delta["rowId"], delta["columns"])
        self.database.execute("commit")

    def write(self, op: str, table: str, row_id: str, columns: Mapping[str, Any]) -> None:
        """Make the application's own change: a DELETE, otherwise an UPDATE if the row exists, and an INSERT if not."""
        if op != "DELETE":
            query = f"select 1 from {_quoted(table)} where row_id = ?"
            op = "UPDATE" if self.database.execute(query, (row_id,)).fetchone() else "INSERT"
        self._execute(op, table, row_id, [{"column": name, "value": value} for name, value in columns.items()])

    def _execute(self, op: str, table: str, row_id: str, columns: Iterable[Mapping[str, Any]]) -> None:
        """Make one change; `columns` are those of a delta on the wire, `{"column": …, "value": …}`."""
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
    """Return a decoded JSON value as the database stores it."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True) if isinstance(value, dict | list) else value


def _quoted(name: str) -> str:
    """Return a quoted SQL identifier."""
    return f'"{name}"'


_json = msgspec.json.Encoder(order="sorted")


def delta_id(write: Write) -> str:
    """Return the SHA-256 of the canonical JSON of the delta's content, without its op.

    Compact JSON with sorted keys is the canonical form (RFC 8785) for the values of this data set.
    """
    return hashlib.sha256(_json.encode(_identity(write))).hexdigest()


def push_body(client: str, writes: Sequence[Write], cursor: int) -> bytes:
    """Return the JSON body of a push.

    Args:
        client: the client's id.
        writes: the client's writes, at most `BATCH`.
        cursor: the client's cursor; 0 if it never pulled.
    """
    deltas = [{**_identity(write), "op": write.op, "deltaId": delta_id(write)} for write in writes]
    return _json.encode({"clientId": client, "deltas": deltas, "lastSeenHlc": str(cursor)})


def _identity(write: Write) -> dict[str, object]:
    """Return the fields of a delta from which its id is computed."""
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
RETRY_SECONDS = 180.0
"""Seconds during which a request is repeated."""
PAUSE = 0.1
"""Seconds between two attempts."""
REPEATABLE = frozenset({429, 502, 503, 504})
"""HTTP statuses after which a request is repeated."""
TOKEN_HOURS = 24
"""Hours for which a token is valid."""


class RequestError(Exception):
    """The gateway rejected a request, or did not respond to it in time."""


def token(secret: str, client_id: str, role: str, claims: dict[str, str], gateway: str = GATEWAY) -> str:
    """Return a token for one client, signed like the application's login would sign it.

    Args:
        secret: the gateway's secret.
        client_id: the token's `sub`.
        role: `client` or `admin`.
        claims: further claims.
        gateway: the id of the gateway for which the token is.
    """
    expires = int(time.time()) + TOKEN_HOURS * 3600
    return jwt.encode({"sub": client_id, "gw": gateway, "role": role, "exp": expires, **claims}, secret, "HS256")


class Connection:
    """A client's session with the gateway; every request can be repeated."""

    def __init__(self, url: str, bearer: str) -> None:
        """Prepare a session; `url` is the gateway's address, `bearer` the client's token."""
        self._url = url
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.headers["Authorization"] = f"Bearer {bearer}"
        self.closed = False
        """Whether to stop repeating requests; `Driver.close` sets it."""
        self.repeats = 0
        """Requests that were sent again."""
        self.last_headers: Mapping[str, str] = {}
        """The headers of the newest response."""

    def send(self, method: str, path: str, *, body: bytes | None = None, params: dict[str, str] | None = None) -> bytes:
        """Return the response's body. The request is repeated while the gateway is unreachable or asks to wait.

        Args:
            method: the HTTP method.
            path: the path and query below the gateway's address.
            body: a JSON body; None for none.
            params: further parameters of the query.

        Raises:
            RequestError: the gateway responded with an error that a repeat cannot change, or did not respond in time.
        """
        deadline = time.monotonic() + RETRY_SECONDS
        headers = {"Content-Type": "application/json"} if body is not None else {}
        while True:
            try:
                response = self._session.request(
                    method, self._url + path, data=body, params=params, headers=headers, timeout=60
                )
                if response.ok:
                    self.last_headers = response.headers
                    return response.content
                problem = f"{response.status_code} {response.text[:500]}"
                if response.status_code not in REPEATABLE:
                    raise RequestError(f"{method} {path}: {problem}")
                wait = min(float(response.headers.get("Retry-After", PAUSE)), 5.0)
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as error:
                problem, wait = repr(error), PAUSE
            if self.closed or time.monotonic() > deadline:
                raise RequestError(
                    f"{method} {path}: no success within {RETRY_SECONDS:.0f} s; the last response was: {problem}"
                )
            self.repeats += 1
            time.sleep(wait)


_LINE_START = '{{"order":{},"step":{},"day":"{}","server_hlc":"{}","push":'
"""The start of a line of the journal; the push's body and a closing brace follow."""


class Journal:
    """The journal of a run's acknowledged pushes: a file per client, and in it a line per push.

    A push is recorded after its response. `truth.py` computes from the journal what every client and the lake must
    have. Clients write concurrently, each to its own file.
    """

    def __init__(self, folder: Path) -> None:
        """Create a journal in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._order = itertools.count()
        self.pushes = 0
        """How many pushes were acknowledged so far, or a few less, because several threads count."""

    def record(self, client: str, step: int, day: str, server_hlc: str, body: bytes) -> None:
        """Append an acknowledged push.

        Args:
            client: the client's id.
            step: the step at which it was pushed.
            day: the server's UTC day of that step, as `YYYY-MM-DD`.
            server_hlc: the cursor in the response.
            body: the push's body as it was sent.
        """
        order = next(self._order)
        self.pushes = order + 1
        head = _LINE_START.format(order, step, day, server_hlc).encode()
        with (self.folder / f"{client}.jsonl").open("ab", buffering=0) as file:
            file.write(head + body + b"}\n")

    @property
    def pattern(self) -> str:
        """Return a glob pattern for every file of the journal."""
        return str(self.folder / "*.jsonl")


class SyncingClient:
    """A client with a local database of what it wrote and pulled."""

    def __init__(self, url: str, secret: str, client_id: str, claims: dict[str, str]) -> None:
        """Create a client without rows.

        Args:
            url: the gateway's address.
            secret: the gateway's secret, for the client's token.
            client_id: the client's id.
            claims: further claims of its token.
        """
        self.id = client_id
        self.connection = Connection(url, token(secret, client_id, "client", claims))
        self.replica = Replica()
        self.cursor = 0
        self.pulled = 0
        """Deltas received."""

    def push(self, writes: Sequence[Write], step: int, journal: Journal) -> int:
        """Push an outbox in batches, and record each acknowledged batch in the journal.

        Args:
            writes: the client's writes of this step.
            step: the step's number.
            journal: the run's journal.

        Returns:
            The number of deltas.

        Raises:
            RequestError: the gateway rejected a batch, or accepted another number of deltas than sent.
        """
        for start in range(0, len(writes), BATCH):
            batch = writes[start : start + BATCH]
            body = push_body(self.id, batch, self.cursor)
            result = msgspec.json.decode(self.connection.send("POST", f"/v1/sync/{GATEWAY}/push", body=body))
            if result["accepted"] != len(batch):
                raise RequestError(f"{self.id} pushed {len(batch)} deltas and {result['accepted']} were accepted")
            self.cursor = int(result["serverHlc"])
            journal.record(self.id, step, day_of(step), result["serverHlc"], body)
        self.replica.database.execute("begin")
        for write in writes:
            self.replica.write(write.op, write.table, write.row_id, write.columns)
        self.replica.database.execute("commit")
        return len(writes)

    def pull(self) -> int:
        """Pull and apply all pages. Return the number of deltas."""
        before = self.pulled
        for page in self._pages():
            self.replica.apply(page)
            self.pulled += len(page)
        return self.pulled - before

    def _pages(self) -> Iterator[list[dict[str, Any]]]:
        """Yield the deltas of each page after the cursor; the cursor advances once a page was applied."""
        more = True
        while more:
            params = {"since": str(self.cursor), "clientId": self.id, "limit": str(PAGE)}
            page = msgspec.json.decode(self.connection.send("GET", f"/v1/sync/{GATEWAY}/pull", params=params))
            yield page["deltas"]
            self.cursor = int(page["serverHlc"])
            more = page["hasMore"]


def first_sync(url: str, secret: str, carrier: str, database: Path) -> SyncingClient:
    """Sync a new client of a carrier into a SQLite file, and return it; its rows are in `replica`.

    Args:
        url: the gateway's address.
        secret: the gateway's secret, for the client's token.
        carrier: the carrier's code.
        database: the file, which is replaced.

    Raises:
        RequestError: there is no checkpoint, or the gateway returns another error.
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
