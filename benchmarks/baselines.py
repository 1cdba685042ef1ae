"""Minimal servers with which the gateway is compared: `python -m benchmarks.baselines plain` or `echo`.

Both have the gateway's HTTP stack (uvicorn, Starlette, msgspec) and its token check. `plain` is a sync server with one
SQLite row per delta and one durable commit per push, but without row states, rules or merge. A delta's *arrival* is the
number of its SQLite row, and the cursor of a pull is an arrival: a pull returns the deltas after it. `echo` is a
WebSocket server that forwards each message to all other connections, without storage. `benchmarks.server` starts them;
`BENCH_SECRET` is the secret of the clients' tokens.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.dependencies import bearer_token
from gateway.server import listen
from lakesync.auth import TokenVerifier
from lakesync.wire.frames import FrameTag


class Delta(msgspec.Struct, rename="camel", gc=False):
    """A delta as a client sends it."""

    op: str
    table: str
    row_id: str
    client_id: str
    columns: msgspec.Raw
    hlc: str
    delta_id: str


class Push(msgspec.Struct, rename="camel"):
    """A push as a client sends it."""

    client_id: str
    deltas: list[Delta]


class Store:
    """A SQLite table of deltas."""

    def __init__(self, folder: Path) -> None:
        """Open or create the database.

        Args:
            folder: the database's folder, which is created.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._sql = sqlite3.connect(folder / "plain.db", isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "cache_size=-131072"):
            self._sql.execute(f"PRAGMA {pragma}").fetchall()
        self._sql.execute(
            "CREATE TABLE IF NOT EXISTS delta (arrival INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, op TEXT, tbl TEXT,"
            " row_id TEXT, client TEXT, columns BLOB, hlc INTEGER)"
        )

    def put(self, deltas: list[Delta]) -> int:
        """Store deltas in one durable commit, and return the newest arrival."""
        rows = [
            (each.delta_id, each.op, each.table, each.row_id, each.client_id, bytes(each.columns), int(each.hlc))
            for each in deltas
        ]
        with self._lock:
            self._sql.execute("BEGIN IMMEDIATE")
            self._sql.executemany(
                "INSERT OR IGNORE INTO delta (id, op, tbl, row_id, client, columns, hlc) VALUES (?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            (newest,) = self._sql.execute("SELECT max(arrival) FROM delta").fetchone()
            self._sql.execute("COMMIT")
        return int(newest)

    def after(self, since: int, limit: int) -> list[tuple[Any, ...]]:
        """Return the deltas after an arrival, in order of arrival.

        Args:
            since: the arrival.
            limit: number of deltas, at most.
        """
        with self._lock:
            return self._sql.execute(
                "SELECT arrival, id, op, tbl, row_id, client, columns, hlc FROM delta WHERE arrival > ?"
                " ORDER BY arrival LIMIT ?",
                (since, limit),
            ).fetchall()


def _serve_plain() -> None:
    """Serve pushes and pulls until the process is stopped. `BENCH_FOLDER` is the folder of the data."""
    store = Store(Path(os.environ["BENCH_FOLDER"]))
    verifier = TokenVerifier((os.environ["BENCH_SECRET"],))
    decode = msgspec.json.Decoder(Push).decode
    encode = msgspec.json.Encoder().encode

    def check_token(request: Request) -> None:
        verifier.verify(bearer_token(request.headers.getlist("authorization")) or "")

    async def push(request: Request) -> Response:
        check_token(request)
        pushed = decode(await request.body())
        newest = await run_in_threadpool(store.put, pushed.deltas)
        body = {"serverHlc": str(newest), "accepted": len(pushed.deltas), "deltas": []}
        return Response(encode(body), media_type="application/json")

    async def pull(request: Request) -> Response:
        check_token(request)
        since, limit = int(request.query_params["since"]), int(request.query_params["limit"])
        rows = await run_in_threadpool(store.after, since, limit + 1)
        deltas = [
            Delta(op, table, row_id, client, msgspec.Raw(columns), str(hlc), identity)
            for _, identity, op, table, row_id, client, columns, hlc in rows[:limit]
        ]
        cursor = rows[len(deltas) - 1][0] if deltas else since
        body = {"deltas": deltas, "serverHlc": str(cursor), "hasMore": len(rows) > limit}
        return Response(encode(body), media_type="application/json")

    app = Starlette(
        routes=[
            Route("/sync/{gateway}/push", push, methods=["POST"]),
            Route("/sync/{gateway}/pull", pull, methods=["GET"]),
        ]
    )
    with listen("127.0.0.1", 0) as bound:
        print(f'{{"event":"listening","url":"http://127.0.0.1:{bound.getsockname()[1]}"}}', flush=True)
        uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False)).run(sockets=[bound])


def _serve_echo() -> None:
    """Forward each WebSocket message to all other connections, until the process is stopped."""
    verifier = TokenVerifier((os.environ["BENCH_SECRET"],))
    connected: set[WebSocket] = set()

    async def live(websocket: WebSocket) -> None:
        verifier.verify(bearer_token(websocket.headers.getlist("authorization")) or "")
        await websocket.accept()
        connected.add(websocket)
        try:
            while True:
                message = await websocket.receive_bytes()
                broadcast = bytes((FrameTag.BROADCAST,)) + message[1:]
                for other in list(connected):
                    if other is not websocket:
                        await other.send_bytes(broadcast)
        except WebSocketDisconnect:
            connected.discard(websocket)

    with listen("127.0.0.1", 0) as bound:
        config = uvicorn.Config(
            Starlette(routes=[WebSocketRoute("/sync/{gateway}/ws", live)]),
            log_config=None,
            access_log=False,
            ws_per_message_deflate=False,
        )
        print(f'{{"event":"listening","url":"http://127.0.0.1:{bound.getsockname()[1]}"}}', flush=True)
        uvicorn.Server(config).run(sockets=[bound])


_SERVERS = {"plain": _serve_plain, "echo": _serve_echo}
"""The servers by the argument of the command line."""

if __name__ == "__main__":
    _SERVERS[sys.argv[1]]()
