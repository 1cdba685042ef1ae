"""The server under test: `python -m gateway` in one or more processes of their own, and HTTP to them."""

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
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.blackbox.line import Line
from tests.blackbox.proxy import Proxy

SECRET = "the secret with which the black-box clients sign"
SERVICE = "the token that the pipeline would show"
DEADLINE = 60.0
_IDLE_SECONDS = 30.0
"""A connection that no request used for longer is replaced: the gateway closes it after 75 seconds."""
SHARDS: dict[str, Any] = {"shards": {"notes": "one", "tasks": "two"}, "default": "rest"}
_ROOT = Path(__file__).parents[2]
_SLOW_GATEWAY = _ROOT / "tests" / "slow_gateway.py"


class Request(NamedTuple):
    """An HTTP request."""

    method: str
    path: str
    token: str
    body: Any
    headers: Mapping[str, str]
    process: int = 0
    """The number of the process to which it is sent."""


class Answer:
    """An HTTP answer."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RefusedError(Exception):
    """The server answered a pipeline call with an error."""


class _Process:
    """A gateway process that is killed and started again."""

    def __init__(self, log: Path, variables: Mapping[str, str], program: list[str]) -> None:
        """Start it.

        Args:
            log: the log file; each start adds its number.
            variables: environment variables. program: the arguments of Python.
        """
        self._log = log
        self._program = program
        self._variables = dict(variables)
        self.starts = 0
        self.port = 0
        """0 while it is down."""
        self._running: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it and wait until it listens."""
        log = self._log.with_suffix(f".{self.starts + 1}")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LAKESYNC_")}
        with log.open("wb") as stream:
            self._running = subprocess.Popen(
                [sys.executable, *self._program],
                cwd=os.environ.get("BLACKBOX_ROOT", _ROOT),  # another commit's checkout
                env={**kept, **self._variables},
                stdout=stream,
                stderr=stream,
            )
        deadline = time.monotonic() + DEADLINE
        while True:
            for line in log.read_bytes().splitlines():
                if b'"listening"' in line:
                    self.starts += 1
                    self.port = int(json.loads(line)["url"].rpartition(":")[2])
                    return
            if self._running.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the server did not start: {log.read_text()[-3000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """kill -9."""
        self.port = 0
        if self._running is not None:
            self._running.send_signal(signal.SIGKILL)
            self._running.wait()
            self._running = None


class Server:
    """A gateway over SQLite, over SQLite in three shards, or over Postgres; on Postgres in one or more processes."""

    def __init__(
        self, over: str = "sqlite", postgres: str | None = None, processes: int = 1, *, slow: bool = False
    ) -> None:
        """Start it.

        Args:
            over: the store: `sqlite`, `sharded` or `postgres`.
            postgres: the database's address.
            processes: the number of processes; several only over Postgres, then with a proxy before it.
            slow: whether it pauses between the steps of requests at random (`tests/slow_gateway.py`).
        """
        memory = Path("/dev") / "shm"
        self.folder = Path(tempfile.mkdtemp(prefix="blackbox-", dir=memory if memory.is_dir() else None))
        variables = {
            "LAKESYNC_CONFIG": "",
            "LAKESYNC_DATA_DIR": str(self.folder / "data"),
            "LAKESYNC_GATEWAY_PORT": "0",
            "LAKESYNC_JWT_SECRET": SECRET,
            "LAKESYNC_SERVICE_TOKEN": SERVICE,
            "LAKESYNC_LIMITS_REQUESTS_PER_SECOND": "100000",
            "LAKESYNC_LIMITS_WEBSOCKET_MESSAGES_PER_SECOND": "100000",
        }
        if over == "sharded":
            variables["LAKESYNC_SHARD_CONFIG"] = json.dumps(SHARDS)
        self.shards = ["one", "two", "rest"] if over == "sharded" else ["main"]
        self.proxy: Proxy | None = None
        """The proxy for notices between processes; None if there is only one process."""
        self.deaths = 0
        self.died = 0
        """The process that was killed last."""
        self._return: Future[None] | None = None
        """The pending restart of the process that was killed last."""
        self._processes: list[_Process] = []
        self._idle: dict[tuple[int, int], list[tuple[float, http.client.HTTPConnection]]] = defaultdict(list)
        """Connections that no request uses, each with the time of its last one, by process and the number of its
        start."""
        self._starter = ThreadPoolExecutor(1)
        program = [str(_SLOW_GATEWAY)] if slow else ["-m", "gateway"]
        try:
            if postgres is not None and processes > 1:
                self.proxy = Proxy(postgres, processes)
            for number in range(processes):
                if postgres is not None:
                    address = self.proxy.addresses[number] if self.proxy is not None else postgres
                    variables["LAKESYNC_STAGING_URL"] = address
                self._processes.append(_Process(self.folder / f"log-{number}", variables, program))
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> int:
        """The number of processes."""
        return len(self._processes)

    @property
    def url(self) -> str:
        """The address of the first process."""
        return f"http://127.0.0.1:{self._processes[0].port}"

    def die(self, on_the_way: Iterable[Request] = ()) -> None:
        """kill -9 of one process, each in turn, during requests; then restart it.

        A single process is ready when this returns. Of several, the others serve its requests until it is ready.
        """
        self._await_return()
        self.died = self.deaths % len(self._processes)
        self.deaths += 1
        dying = self._processes[self.died]
        sent = [self._sent(request) for request in on_the_way]
        dying.kill()
        for connection in sent:
            connection.close()
        if len(self._processes) == 1:
            dying.start()
        else:
            self._return = self._starter.submit(dying.start)

    def kill(self) -> None:
        """kill -9 of every process."""
        for process in self._processes:
            process.kill()

    def start(self) -> None:
        """Start every process again."""
        for process in self._processes:
            process.start()

    def _await_return(self) -> None:
        if self._return is not None:
            self._return.result()
            self._return = None

    def close(self) -> None:
        """Stop the server and remove its data."""
        self._starter.shutdown()
        self.kill()
        for connections in self._idle.values():
            for _, connection in connections:
                connection.close()
        if self.proxy is not None:
            self.proxy.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def serving(self, process: int) -> int:
        """This process, or another one while this one is down."""
        order = [process, *range(len(self._processes))]
        return next(each for each in order if self._processes[each].port)

    def call(
        self,
        method: str,
        path: str,
        token: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        process: int = 0,
    ) -> Answer:
        """One HTTP request over an idle open connection to the process, or over a new one."""
        process = self.serving(process)
        idle = self._idle[process, self._processes[process].starts]
        try:
            used, connection = idle.pop()
        except IndexError:
            used, connection = time.monotonic(), self._connection(process)
        if time.monotonic() - used > _IDLE_SECONDS:
            connection.close()
            connection = self._connection(process)
        request = Request(method, path, token, body, headers or {}, process)
        try:
            response = self._sent(request, connection).getresponse()
            answer = Answer(response.status, response.read())
        except BaseException:
            connection.close()
            raise
        idle.append((time.monotonic(), connection))
        return answer

    def _connection(self, process: int) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._processes[process].port, timeout=DEADLINE)

    def _sent(
        self, request: Request, connection: http.client.HTTPConnection | None = None
    ) -> http.client.HTTPConnection:
        connection = connection or self._connection(self.serving(request.process))
        data = None if request.body is None else json.dumps(request.body, separators=(",", ":")).encode()
        given = {"Authorization": f"Bearer {request.token}", "Content-Type": "application/json", **request.headers}
        connection.request(request.method, request.path, data, given)
        return connection

    def dial(self, gateway: str, token: str, process: int = 0) -> Line:
        """Open a WebSocket."""
        process = self.serving(process)
        return Line(self._processes[process].port, gateway, token, DEADLINE, {}, process)

    def shard_of(self, table: str) -> str:
        """The shard that has a table's log."""
        if len(self.shards) == 1:
            return self.shards[0]
        return SHARDS["shards"].get(table, SHARDS["default"])

    def staging(self, method: str, process: int = 0, **arguments: Any) -> Any:
        """Call the staging store as the pipeline does.

        Args:
            method: of the store. process: the process to call. arguments: of the method.

        Raises:
            RefusedError: the call failed.
        """
        answer = self.call("POST", f"/internal/staging/{method}", SERVICE, arguments, process=process)
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
