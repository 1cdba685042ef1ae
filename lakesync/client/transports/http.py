"""The transport that sends a client's requests to the gateway server over HTTP. `lakesync.client.sync` calls it.

A gateway is one app's stream of changes. Clients push *deltas* (changes of rows) to it. Its routes are below
`/sync/GATEWAY_ID`. Every method that sends a request raises the gateway's error, and `UnreachableError` if no complete
response of a gateway arrived. Requests are sent in worker threads (`CancellableCalls`), so that the caller can stop
waiting for them.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import quote

import msgspec
import requests
from urllib3.exceptions import HTTPError

from lakesync.client.errors import UnreachableError, error_from_code
from lakesync.client.transports.base import Checkpoint, ServerSchema
from lakesync.client.transports.cancellable_calls import CancellableCalls, start_thread
from lakesync.client.transports.tokens import Token, TokenHolder
from lakesync.model.action_handlers import ActionDiscovery, ConnectorDescriptor
from lakesync.model.errors import LakeSyncError, NotFoundError, Rejection, ValidationError
from lakesync.model.schema import TableSchema
from lakesync.model.types import ActionPush, ActionResponse, PushResult, SyncPull, SyncPush, SyncResponse
from lakesync.wire import actions as wire_actions
from lakesync.wire import json as wire_json
from lakesync.wire.frames import read_checkpoint
from lakesync.wire.http_sessions import BearerAuth, RedirectSession
from lakesync.wire.pages import decode_page

T = TypeVar("T")

_CLIENT_KIND = "python"
"""Value of the header `X-LakeSync-Client`. The gateway then rejects a cursor that it does not know with
RESYNC_REQUIRED, after which this client pulls everything again; clients without the header do not know that code."""
_MAX_IDLE_SECONDS = 60.0
"""An idle connection is not used again after this time, because a router may have dropped it silently."""
_PROTOBUF = "application/x-protobuf"
"""The content type of actions."""
_PROXY_CODES = frozenset({502, 503, 504})
"""Status codes of a proxy that gets no answer from the gateway."""


class _ErrorBody(msgspec.Struct, rename="camel"):
    """The JSON of a gateway's error."""

    error: str
    """The message."""
    code: str
    request_id: str = ""
    rejected: tuple[Rejection, ...] = ()
    """The rejected deltas of a push."""


class _SchemaBody(msgspec.Struct):
    """The JSON of `GET schema`."""

    version: int
    schema: TableSchema


_decode_error = msgspec.json.Decoder(_ErrorBody).decode
_decode_schema = msgspec.json.Decoder(_SchemaBody).decode
_decode_connector_types = msgspec.json.Decoder(list[ConnectorDescriptor]).decode
_decode_discovery = msgspec.json.Decoder(ActionDiscovery).decode


class HttpTransport:
    """Sends requests to one gateway over one persistent connection. Call it from one thread at a time."""

    def __init__(
        self,
        base_url: str,
        gateway_id: str,
        token: Token | None = None,
        *,
        timeout: float = 30.0,
        proxy: str | None = None,
        ca: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Configure the transport; no request is sent yet.

        Args:
            base_url: the server's URL, including any path before `/sync`.
            gateway_id: the gateway's id on that server.
            token: a JWT, or a function that returns one; None for a server without a secret.
            timeout: seconds to wait for a connection, and for each part of a response.
            proxy: the proxy's URL; None for the environment's (`HTTPS_PROXY`, `NO_PROXY`).
            ca: file or folder of trusted certificates; None for the environment's, or certifi's.
            headers: further headers of every request.
        """
        self.tokens = TokenHolder(token)
        self.gateway_id = gateway_id
        self._server_url = base_url.rstrip("/")
        self._gateway_url = f"{self._server_url}/sync/{quote(gateway_id, safe='')}"
        self._timeout = timeout
        self._session = RedirectSession()
        self._headers = {"X-LakeSync-Client": _CLIENT_KIND, **(headers or {})}
        self._session.headers.update(self._headers)
        self._proxy, self._ca = proxy, ca
        self._connection_options: dict[str, Any] = {}
        """Proxy and CA. They are passed with each request, because requests prefers the environment to its session."""
        if proxy is not None:
            self._connection_options["proxies"] = {"http": proxy, "https": proxy}
        if ca is not None:
            self._connection_options["verify"] = ca
        self.clock_offset: float | None = None
        """Seconds by which this machine's clock is ahead of the gateway's, to a second.

        None before any response with a `Date` header, and after one that cannot be read.
        """
        self._calls = CancellableCalls()
        self._last_used = 0.0
        """When a response last arrived, in seconds since 1970."""

    def set_token(self, token: Token) -> None:
        """Send this token, or the tokens of this function, from now on."""
        self.tokens.replace(token)

    def push(self, push: SyncPush) -> PushResult:
        """Push deltas with `POST push`; the gateway stores all of them or none. It accepts a repeated push."""
        return _decode(wire_json.decode_push_result, self._post("push", wire_json.encode_push(push)))

    def pull(self, pull: SyncPull) -> SyncResponse:
        """Return a page of changes, with `POST pull`. Column values stay JSON text until they are applied."""
        return _decode(decode_page, self._post("pull", wire_json.encode_pull(pull)))

    @contextmanager
    def checkpoint(self, client_id: str) -> Iterator[Checkpoint]:
        """Stream the checkpoint, a snapshot of all rows that the client may see, with `GET checkpoint`.

        Only one of its frames is in memory at a time. Read them inside the context.

        Args:
            client_id: this client's id.

        Yields:
            The cursor from which the client pulls afterwards, and the frames, each with the deltas of some rows.

        Raises:
            NotFoundError: the gateway has no checkpoint for this client.
        """
        response = self.request("GET", "checkpoint", params={"clientId": client_id}, stream=True)
        try:
            yield Checkpoint(_checkpoint_cursor(response), _frames(response, self._calls))
        finally:
            start_thread(response.close)  # closing waits for a cancelled read, and this thread must not

    def schema(self, table: str) -> ServerSchema | None:
        """Return a table's registered schema, with `GET schema`; None if the gateway has none for this table."""
        try:
            body = _decode(_decode_schema, self.request("GET", "schema", params={"table": table}).content)
        except NotFoundError:
            return None
        return ServerSchema(body.schema, body.version)

    def execute_actions(self, push: ActionPush) -> ActionResponse:
        """Execute actions with `POST action`; return one outcome for each, in order."""
        headers = {"Content-Type": _PROTOBUF}
        response = self.request("POST", "action", data=wire_actions.encode_push(push), headers=headers)
        return _decode(wire_actions.decode_response, response.content)

    def describe_actions(self) -> ActionDiscovery:
        """Return the gateway's connectors and their actions, with `GET actions`."""
        return _decode(_decode_discovery, self.request("GET", "actions").content)

    def list_connector_types(self) -> list[ConnectorDescriptor]:
        """Return every type of connector that the server supports, with `GET /connectors/types`."""
        response = self.request("GET", f"{self._server_url}/connectors/types")
        return _decode(_decode_connector_types, response.content)

    def request(self, method: str, route: str, **options: Any) -> requests.Response:
        """Send a request. If the gateway rejects its token and a function can provide a new one, send it once more.

        The other methods use it, and the command line for routes that clients do not call.

        Args:
            method: the HTTP method, such as `GET`.
            route: a path below the gateway's URL, such as `pull`, or a whole URL of the server.
            options: keyword arguments for `requests.Session.request`.

        Returns:
            A response that is neither an error nor a redirect.

        Raises:
            LakeSyncError: the gateway's error.
            UnreachableError: no response arrived, or not a gateway's.
        """
        return self.tokens.send(lambda token: self._request_once(method, route, token, **options))

    def cancel_requests(self) -> None:
        """Make every call in progress raise `UnreachableError` immediately, also one that waits for a token.

        The HTTP request continues in a background thread until it ends or times out, and its response is discarded.
        """
        self._calls.cancel_all()
        self.tokens.cancel()

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _post(self, route: str, body: bytes) -> bytes:
        """Send JSON, and return the response's body."""
        return self.request("POST", route, data=body, headers={"Content-Type": "application/json"}).content

    def _request_once(self, method: str, route: str, token: str | None, **options: Any) -> requests.Response:
        """Send a request with a token; see `request`."""
        sent_at = time.time()
        if sent_at - self._last_used > _MAX_IDLE_SECONDS:
            self._session.close()
        all_options: dict[str, Any] = {
            "allow_redirects": False,
            **self._connection_options,
            **options,
            "auth": BearerAuth(token),
            "timeout": self._timeout,
        }
        url = route if route.startswith(self._server_url) else f"{self._gateway_url}/{route}"
        request = partial(self._session.request, method, url, **all_options)
        try:
            response = self._calls.run(request, requests.Response.close)
        except OSError as error:  # the base of requests' errors; also raised for an unreadable CA file
            raise UnreachableError(f"no gateway answers at {self._server_url}: {_reason(error)}") from error
        except BaseException:
            self._session.close()  # the next request uses a new connection
            raise
        self._last_used = time.time()
        self._measure_clock(response, (sent_at + self._last_used) / 2)
        if not 200 <= response.status_code < 300:
            with response:
                raise error_from_response(response.status_code, _content(response), response.headers)
        return response

    def _measure_clock(self, response: requests.Response, local_time: float) -> None:
        """Store how far this machine's clock is ahead of the gateway's, by the `Date` header of a response.

        Args:
            response: any response.
            local_time: the middle between sending and receiving, in seconds since 1970.
        """
        date = response.headers.get("Date")
        if date is not None:
            try:
                self.clock_offset = round(clock_difference(date, local_time), 1) + 0.0  # which makes -0.0 positive
            except ValueError:
                self.clock_offset = None


def clock_difference(date: str, local_time: float) -> float:
    """Return the seconds by which this machine's clock is ahead of a server's; `lakesync doctor` uses it too.

    Args:
        date: the header `Date` of a response. It has whole seconds, and a server may cache it for a second: it is a
            second old on average.
        local_time: the middle between sending and receiving, in seconds since 1970.

    Raises:
        ValueError: the header has no time.
    """
    return local_time - parsedate_to_datetime(date).timestamp() - 1.0


def error_from_response(status: int, body: bytes, headers: Mapping[str, str]) -> LakeSyncError:
    """Return the exception for an unsuccessful HTTP response; the command line and the WebSocket transport use it too.

    Args:
        status: the response's status code, not a success.
        body: the response's body: a gateway's JSON, or anything else, such as a proxy's HTML.
        headers: the response's headers. `Retry-After` is read only as a number of seconds.

    Returns:
        The gateway's error by its code; `ValidationError` for a 413 of a proxy; else `UnreachableError`.
    """
    wait = headers.get("Retry-After") or ""
    retry_after = float(wait) if wait.isdecimal() else None
    try:
        error = _decode_error(body)
    except msgspec.MsgspecError:
        if status == requests.codes.request_entity_too_large:  # a retry would fail in the same way
            return ValidationError("the response is 413: a server before the gateway rejects requests of this size")
        if status in _PROXY_CODES:
            reason = f"the response is {status} from a proxy: no gateway answers behind it; retry later"
        else:
            reason = f"the response is {status} and not from a gateway: check the address"
        if location := headers.get("Location"):
            reason = f"the response is {status}, a redirect to {location}: check whether that is the gateway's address"
        return UnreachableError(reason, retry_after=retry_after)
    exception = error_from_code(error.code, error.error, error.rejected, retry_after)
    exception.request_id = error.request_id
    return exception


def _content(response: requests.Response) -> bytes:
    """Return the body, which is read only now if the response is streamed."""
    try:
        return response.content
    except requests.RequestException as error:
        raise UnreachableError(f"the response is incomplete: {error}") from error


def _decode(decode: Callable[[bytes], T], body: bytes) -> T:
    """Decode a body; one that is not a gateway's, as from a login page of a network, is an `UnreachableError`."""
    try:
        return decode(body)
    except (ValidationError, msgspec.MsgspecError) as error:
        raise UnreachableError(f"the response cannot be decoded: {error}") from error


def _checkpoint_cursor(response: requests.Response) -> int:
    """Return the arrival (the gateway's timestamp of receipt) up to which a checkpoint has all changes."""
    cursor = response.headers.get("X-Checkpoint-Hlc") or ""
    if not cursor.isdecimal():
        raise UnreachableError("the response is not a gateway's checkpoint: check whether the network asks for a login")
    return int(cursor)


def _frames(response: requests.Response, calls: CancellableCalls) -> Iterator[bytes]:
    """Yield the frames of a streamed checkpoint: protobuf messages with deltas, without their length prefixes."""
    response.raw.decode_content = True
    try:
        yield from read_checkpoint(cast("BinaryIO", _FullReads(response.raw, calls)))
    except (OSError, HTTPError, ValidationError) as error:  # of the socket, of urllib3, and of the frames
        raise UnreachableError(f"the checkpoint is incomplete: {error}") from error


class _FullReads(io.RawIOBase):
    """A response's stream whose `read` can be cancelled, and returns as many bytes as requested until the end."""

    def __init__(self, raw: Any, calls: CancellableCalls) -> None:
        """Wrap a response's raw stream; `calls` cancels its reads."""
        self._raw = raw
        self._calls = calls

    def read(self, size: int = -1) -> bytes:
        return self._calls.run(partial(self._read, size))

    def _read(self, size: int) -> bytes:
        """Read exactly `size` bytes; fewer only if the response ends."""
        parts: list[bytes] = []
        while size > 0 and (part := self._raw.read(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _reason(error: OSError) -> str:
    """Return why a request failed, such as `Connection refused`.

    It is the text of the innermost error in that of requests, without the class or connection that it begins with.
    """
    cause: Any = error.args[0] if error.args and isinstance(error.args[0], Exception) else error
    if isinstance(getattr(cause, "reason", None), Exception):
        cause = cause.reason
    inner = next((each for each in cause.args if isinstance(each, OSError)), cause)
    text = str(inner.args[-1]) if inner.args else type(inner).__name__
    return re.sub(r"^(<[^>]*>|\w+\([^)]*\)): |Failed to establish a new connection: |\[Errno -?\d+\] ", "", text)
