"""Fake servers of Jira, Salesforce and OIDC login providers, which keep their state in memory.

Tests, demonstrations, `lakesync fake` and the test suites of apps run them. Each vendor has a package, which implements
`Service`. `serve` runs a service on a local port: with threads, keep-alive connections, and a record of all requests.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

_GZIP_BYTES = 10_000
"""Smaller responses are not compressed."""


@dataclass(frozen=True)
class Request:
    """One HTTP request with its complete body."""

    method: str
    path: str
    """The path without the query. Percent-escapes are not decoded."""
    query: Mapping[str, str]
    """Parameter → its last value."""
    headers: Mapping[str, str]
    """Name in lower case → value."""
    body: bytes
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Parameter → all of its values, for parameters that are lists."""

    @property
    def json(self) -> Any:
        """The decoded JSON body; an empty object for an empty body.

        Raises:
            ValueError: the body is not JSON.
        """
        return json.loads(self.body) if self.body else {}


@dataclass(frozen=True)
class Response:
    """The response to a request."""

    status: int = 200
    body: Any = None
    """Text and bytes are sent unchanged, other values as JSON; None sends no body."""
    headers: Mapping[str, str] = field(default_factory=dict)


class Service(Protocol):
    """The behaviour of a server. Several threads call it, one at a time."""

    def respond(self, request: Request) -> Response:
        """Process a request and return the response."""

    def now(self) -> int:
        """Return the server's time in milliseconds since 1970. It is sent in the header `Date`."""


Route = Callable[..., Response]
"""Responds to a request. It is called with the service, the request, and the groups of the path's pattern."""


class Routes:
    """A service's routes. `JiraApi` and `SalesforceApi` use it."""

    def __init__(self, prefix: str, *routes: tuple[str, str, Route]) -> None:
        """Set the routes.

        Args:
            prefix: a pattern of the beginning of every path.
            routes: method, pattern of the rest of the path, and function of each route. The first match is used.
        """
        self._routes = [(method, re.compile(prefix + pattern), route) for method, pattern, route in routes]

    def respond(self, service: Service, request: Request, headers: Mapping[str, str]) -> Response | None:
        """Return the response of the request's route; None if no route matches.

        Args:
            service: the service.
            request: the request.
            headers: further headers of the response.
        """
        for method, pattern, route in self._routes:
            if method == request.method and (match := pattern.fullmatch(request.path)):
                response = route(service, request, *map(unquote, match.groups()))
                return replace(response, headers={**headers, **response.headers})
        return None


class Call(NamedTuple):
    """A request that a server has answered."""

    method: str
    path: str
    status: int
    """Status of the response."""


@dataclass(frozen=True)
class RunningServer:
    """A service that listens on a port. `serve` returns it."""

    url: str
    """`http://HOST:PORT`, without a slash at the end."""
    calls: list[Call]
    """Every request so far."""
    _lock: threading.Lock

    def change_state(self, change: Callable[[], None]) -> None:
        """Call a function that changes the service's state, while no request is processed.

        Args:
            change: the function. It must not send requests to this server, because these would wait for it.
        """
        with self._lock:
            change()


@contextmanager
def serve(service: Service, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[RunningServer]:
    """Serve requests until the block ends. A connection that a client keeps is closed at its next request.

    Args:
        service: responds to the requests.
        host: address to listen on.
        port: port to listen on; 0 chooses a free one.

    Raises:
        OSError: the port is in use.
    """
    calls: list[Call] = []
    lock, ended = threading.Lock(), threading.Event()
    server = _Server((host, port), _handler(service, calls, lock, ended))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield RunningServer(f"http://{host}:{server.server_address[1]}", calls, lock)
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    """A server with a thread for each connection."""

    daemon_threads = True
    block_on_close = False  # do not wait for threads at the end: a client may keep its connection open for ever


def _handler(
    service: Service, calls: list[Call], lock: threading.Lock, ended: threading.Event
) -> type[BaseHTTPRequestHandler]:
    """Return the handler class for a service. It needs a class of its own, as `http.server` creates the instances."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Send a response in one write and immediately: Nagle's algorithm with delayed acknowledgement would add 40 ms.
        wbufsize = -1
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            url = urlsplit(self.path)
            values = parse_qs(url.query, keep_blank_values=True)
            request = Request(
                self.command,
                url.path,
                {name: given[-1] for name, given in values.items()},
                {name.lower(): value for name, value in self.headers.items()},
                self.rfile.read(int(self.headers.get("Content-Length") or 0)),
                values,
            )
            with lock:
                if ended.is_set():  # end a connection that the client has kept, without a response
                    self.close_connection = True
                    return
                response = service.respond(request)
                calls.append(Call(request.method, request.path, response.status))
            self._send(response, gzipped="gzip" in request.headers.get("accept-encoding", ""))

        def _send(self, response: Response, *, gzipped: bool) -> None:
            body, content_type = _encode(response.body)
            self.send_response(response.status)
            headers = {"Content-Type": content_type, **response.headers}
            if gzipped and len(body) > _GZIP_BYTES:
                body = gzip.compress(body, 1)
                headers["Content-Encoding"] = "gzip"
            for name, value in headers.items():
                self.send_header(name, value)
            if response.status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if response.status != 204:
                self.wfile.write(body)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(service.now() / 1000 if timestamp is None else timestamp)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 names that the base class looks for

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the base class's name
            """Log nothing: `calls` has the requests."""

    return Handler


def _encode(body: Any) -> tuple[bytes, str]:
    """Return a body's bytes and content type."""
    if body is None:
        return b"", "application/json"
    if isinstance(body, bytes):
        return body, "application/octet-stream"
    if isinstance(body, str):
        return body.encode(), "text/plain;charset=UTF-8"
    return json.dumps(body).encode(), "application/json;charset=UTF-8"
