"""The server under test: `python -m gateway` in a process of its own, and HTTP to it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.blackbox.line import Line

SECRET = "the secret with which the black-box clients sign"
SERVICE = "the token that the pipeline would show"
DEADLINE = 60.0
SHARDS: dict[str, Any] = {"shards": {"notes": "one", "tasks": "two"}, "default": "rest"}
_ROOT = Path(__file__).parents[2]


class Request(NamedTuple):
    """An HTTP request."""

    method: str
    path: str
    token: str
    body: Any
    headers: Mapping[str, str]


class Answer:
    """An HTTP answer."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RefusedError(Exception):
    """The server answered a call of the pipeline with an error."""


class Server:
    """A gateway over SQLite, over SQLite in three shards, or over Postgres."""

    def __init__(self, over: str = "sqlite", postgres: str | None = None) -> None:
        memory = Path("/dev") / "shm"
        self.folder = Path(tempfile.mkdtemp(prefix="blackbox-", dir=memory if memory.is_dir() else None))
        self._variables = {
            "LAKESYNC_CONFIG": "",
            "LAKESYNC_DATA_DIR": str(self.folder / "data"),
            "LAKESYNC_GATEWAY_PORT": "0",
            "LAKESYNC_JWT_SECRET": SECRET,
            "LAKESYNC_SERVICE_TOKEN": SERVICE,
            "LAKESYNC_LIMITS_REQUESTS_PER_SECOND": "100000",
            "LAKESYNC_LIMITS_WEBSOCKET_MESSAGES_PER_SECOND": "100000",
        }
        if over == "sharded":
            self._variables["LAKESYNC_SHARD_CONFIG"] = json.dumps(SHARDS)
        if postgres is not None:
            self._variables["LAKESYNC_STAGING_URL"] = postgres
        self.shards = ["one", "two", "rest"] if over == "sharded" else ["main"]
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._kept = threading.local()
        """Each thread's connection, and to which start of the server it leads."""
        self.port = 0
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the process and wait until it listens."""
        self.starts += 1
        log = self.folder / f"log-{self.starts}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LAKESYNC_")}
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gateway"],
                cwd=os.environ.get("BLACKBOX_ROOT", _ROOT),  # another commit's checkout
                env={**kept, **self._variables},
                stdout=stream,
                stderr=stream,
            )
        deadline = time.monotonic() + DEADLINE
        while True:
            for line in log.read_bytes().splitlines():
                if b'"listening"' in line:
                    self.port = int(json.loads(line)["url"].rpartition(":")[2])
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start: {log.read_text()[-3000:]}")
            time.sleep(0.02)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def kill(self, on_the_way: Iterable[Request] = ()) -> None:
        """kill -9, with requests on their way."""
        sent = [self._sent(request) for request in on_the_way]
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
        for connection in sent:
            connection.close()

    def close(self) -> None:
        """End it and remove what it kept."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(
        self, method: str, path: str, token: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request over the connection that the thread keeps."""
        request = Request(method, path, token, body, headers or {})
        kept = getattr(self._kept, "connection", None)
        if kept is None or self._kept.start != self.starts:
            kept = self._kept.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
            self._kept.start = self.starts
        response = self._sent(request, kept).getresponse()
        return Answer(response.status, response.read())

    def _sent(
        self, request: Request, connection: http.client.HTTPConnection | None = None
    ) -> http.client.HTTPConnection:
        connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        data = None if request.body is None else json.dumps(request.body, separators=(",", ":")).encode()
        given = {"Authorization": f"Bearer {request.token}", "Content-Type": "application/json", **request.headers}
        connection.request(request.method, request.path, data, given)
        return connection

    def dial(self, gateway: str, token: str) -> Line:
        """A WebSocket."""
        return Line(self.port, gateway, token, DEADLINE, {})

    def shard_of(self, table: str) -> str:
        """The shard in which a table's log is."""
        if len(self.shards) == 1:
            return self.shards[0]
        return SHARDS["shards"].get(table, SHARDS["default"])

    def staging(self, method: str, **arguments: Any) -> Any:
        """Call the staging store as the pipeline does.

        Raises:
            RefusedError: the call failed.
        """
        answer = self.call("POST", f"/internal/staging/{method}", SERVICE, arguments)
        if answer.status != 200:
            raise RefusedError(f"staging's {method}: {answer.status} {answer.body!r}")
        return answer.json


def sign(sub: str, gateway: str, claims: Mapping[str, Any], role: str = "client") -> str:
    """A JWT, HS256."""
    payload = {"sub": sub, "gw": gateway, "exp": 4_000_000_000, "role": role, **claims}
    head = _base64(b'{"alg":"HS256","typ":"JWT"}') + "." + _base64(json.dumps(payload).encode())
    return head + "." + _base64(hmac.digest(SECRET.encode(), head.encode(), hashlib.sha256))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
