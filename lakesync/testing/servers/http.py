"""What the servers of this package share: HTTP with threads, keep-alive and a journal of calls; escapes in texts."""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True)
class Request:
    """One request, read whole."""

    method: str
    path: str
    """The path without the query, undecoded."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON; an empty object for an empty body.

        Raises:
            ValueError: it is no JSON.
        """
        return json.loads(self.body) if self.body else {}


@dataclass(frozen=True)
class Answer:
    """What is answered: JSON, or text and bytes as they are."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Service(Protocol):
    """What a server does with a request. It is called by several threads, one at a time."""

    def answer(self, request: Request) -> Answer:
        """The answer to a request."""

    def now(self) -> int:
        """Its time, in milliseconds since the epoch."""


@dataclass(frozen=True)
class Served:
    """A service that listens."""

    url: str
    """`http://127.0.0.1:PORT`, without a slash at the end."""
    calls: list[tuple[str, str, int]]
    """Method, path and status of every call so far."""
    _lock: threading.Lock

    def between(self, change: Callable[[], None]) -> None:
        """Change the service's state while it answers no request."""
        with self._lock:
            change()


@contextmanager
def serving(service: Service, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[Served]:
    """Serve requests until the block ends.

    Args:
        service: answers them.
        host: address to listen on.
        port: to listen on; 0 takes a free one.

    Raises:
        OSError: the port is in use.
    """
    calls: list[tuple[str, str, int]] = []
    lock = threading.Lock()
    server = _Server((host, port), _handler(service, calls, lock))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield Served(f"http://{host}:{server.server_address[1]}", calls, lock)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # a client may keep its connection for ever: closing does not wait for it
    block_on_close = False


def _handler(service: Service, calls: list[tuple[str, str, int]], lock: threading.Lock) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # one write an answer, sent at once: otherwise Nagle's algorithm and delayed acknowledgement cost 40 ms each
        wbufsize = -1
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            url = urlsplit(self.path)
            request = Request(
                self.command,
                url.path,
                {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()},
                {name.lower(): value for name, value in self.headers.items()},
                self.rfile.read(int(self.headers.get("Content-Length") or 0)),
            )
            with lock:
                answer = service.answer(request)
                calls.append((request.method, request.path, answer.status))
            self._send(answer, gzipped="gzip" in request.headers.get("accept-encoding", ""))

        def _send(self, answer: Answer, *, gzipped: bool) -> None:
            body, kind = _encoded(answer.body)
            self.send_response(answer.status)
            headers = {"Content-Type": kind, **answer.headers}
            if gzipped and len(body) > 10_000:
                body = gzip.compress(body, 1)
                headers["Content-Encoding"] = "gzip"
            for name, value in headers.items():
                self.send_header(name, value)
            if answer.status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if answer.status != 204:
                self.wfile.write(body)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(service.now() / 1000 if timestamp is None else timestamp)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 names that the base class looks for

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the base class's name
            """Log nothing: `calls` has the requests."""

    return Handler


def _encoded(body: Any) -> tuple[bytes, str]:
    if body is None:
        return b"", "application/json"
    if isinstance(body, bytes):
        return body, "application/octet-stream"
    if isinstance(body, str):
        return body.encode(), "text/plain;charset=UTF-8"
    return json.dumps(body).encode(), "application/json;charset=UTF-8"


def unescaped(text: str) -> str:
    """Return what a text between quotation marks says."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _NAMED.get(found[2], found[2]), text)
