"""The transport over HTTP."""

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

from lakesync.client.errors import UnreachableError, error_from_code
from lakesync.client.transports.base import Checkpoint, ServerSchema, Token
from lakesync.client.transports.tokens import TokenHolder
from lakesync.client.transports.worker import CancellableCalls, start_thread
from lakesync.model.action_handlers import ActionDiscovery, ConnectorDescriptor
from lakesync.model.errors import AuthError, LakeSyncError, NotFoundError, Rejection, ValidationError
from lakesync.model.schema import TableSchema
from lakesync.model.types import ActionPush, ActionResponse, PushResult, SyncPull, SyncPush, SyncResponse
from lakesync.wire import actions as wire_actions
from lakesync.wire import json as wire_json
from lakesync.wire.frames import read_checkpoint
from lakesync.wire.http_auth import BearerAuth
from lakesync.wire.pages import decode_page

T = TypeVar("T")

CLIENT_HEADER = "python"
"""The header `X-LakeSync-Client`; with it, the gateway answers RESYNC_REQUIRED to a cursor that it does not know."""
_MAX_IDLE = 60.0
"""Seconds after which an idle connection is not used again, because a router may have forgotten it."""
_PROTOBUF = "application/x-protobuf"


class _ErrorBody(msgspec.Struct, rename="camel"):
    error: str
    code: str
    request_id: str = ""
    rejected: tuple[Rejection, ...] = ()


class _SchemaBody(msgspec.Struct):
    version: int
    schema: TableSchema


_decode_error = msgspec.json.Decoder(_ErrorBody).decode
_decode_schema = msgspec.json.Decoder(_SchemaBody).decode
_decode_connector_types = msgspec.json.Decoder(list[ConnectorDescriptor]).decode
_decode_discovery = msgspec.json.Decoder(ActionDiscovery).decode


class HttpTransport:
    """Sends all requests over one kept connection. Use it from one thread at a time."""

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
            base_url: of the server, including any path before `/sync`.
            gateway_id: the gateway's id there.
            token: a JWT, or a function that returns one; None for a server without a secret.
            timeout: seconds to wait for a connection, and for each part of an answer.
            proxy: its URL; None for the environment's (`HTTPS_PROXY`, `NO_PROXY`).
            ca: file or folder of trusted certificates; None for the environment's, or certifi's.
            headers: sent with every request.
        """
        self.tokens = TokenHolder(token)
        self.gateway_id = gateway_id
        self._root = base_url.rstrip("/")
        self._base = f"{self._root}/sync/{quote(gateway_id, safe='')}"
        self._timeout = timeout
        self._session = requests.Session()
        self._headers = {"X-LakeSync-Client": CLIENT_HEADER, **(headers or {})}
        self._session.headers.update(self._headers)
        self._proxy, self._ca = proxy, ca
        self._connection_options: dict[str, Any] = {}
        """Passed with each request, because requests prefers the environment to the options of its session."""
        if proxy is not None:
            self._connection_options["proxies"] = {"http": proxy, "https": proxy}
        if ca is not None:
            self._connection_options["verify"] = ca
        self._offset: float | None = None
        self._calls = CancellableCalls()
        self._last_used = 0.0

    @property
    def clock_offset(self) -> float | None:
        """Seconds by which this machine's clock is ahead of the gateway's, to a second; None before any answer."""
        return self._offset

    def set_token(self, token: Token) -> None:
        """Send this token from now on."""
        self.tokens.replace(token)

    def push(self, push: SyncPush) -> PushResult:
        """Send `POST push`."""
        return _decode(wire_json.decode_push_result, self._post("push", wire_json.encode_push(push)))

    def pull(self, pull: SyncPull) -> SyncResponse:
        """Send `POST pull`. The values of the page stay encoded until they are applied."""
        return _decode(decode_page, self._post("pull", wire_json.encode_pull(pull)))

    @contextmanager
    def checkpoint(self, client_id: str) -> Iterator[Checkpoint]:
        """Stream `GET checkpoint`; at most one frame is in memory.

        Raises:
            NotFoundError: there is none for this client.
        """
        answer = self._request("GET", "checkpoint", params={"clientId": client_id}, stream=True)
        try:
            yield Checkpoint(_checkpoint_cursor(answer), _frames(answer, self._calls))
        finally:  # in a thread, because closing waits for a cancelled read
            start_thread(answer.close)

    def schema(self, table: str) -> ServerSchema | None:
        """Send `GET schema`."""
        try:
            body = _decode(_decode_schema, self._request("GET", "schema", params={"table": table}).content)
        except NotFoundError:
            return None
        return ServerSchema(body.schema, body.version)

    def execute_actions(self, push: ActionPush) -> ActionResponse:
        """Send `POST action`."""
        headers = {"Content-Type": _PROTOBUF}
        answer = self._request("POST", "action", data=wire_actions.encode_push(push), headers=headers)
        return _decode(wire_actions.decode_response, answer.content)

    def describe_actions(self) -> ActionDiscovery:
        """Send `GET actions`."""
        return _decode(_decode_discovery, self._request("GET", "actions").content)

    def list_connector_types(self) -> list[ConnectorDescriptor]:
        """Send `GET /connectors/types`."""
        answer = self._request("GET", f"{self._root}/connectors/types")
        return _decode(_decode_connector_types, answer.content)

    def cancel_requests(self) -> None:
        """Stop waiting for answers; a request itself continues until `timeout`, and its answer is discarded."""
        self._calls.cancel_all()

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _post(self, route: str, body: bytes) -> bytes:
        return self._request("POST", route, data=body, headers={"Content-Type": "application/json"}).content

    def _request(self, method: str, route: str, **options: Any) -> requests.Response:
        """Send a request; if its token is rejected and there is a provider, once more with a new token.

        Args:
            method: of HTTP.
            route: below the gateway's URL, or a whole URL.
            options: for `requests`.

        Raises:
            LakeSyncError: the gateway's error.
            UnreachableError: no answer arrived, or not a gateway's.
        """
        token = self.tokens.current()
        try:
            return self._request_once(method, route, token, **options)
        except AuthError:
            if not self.tokens.renewable:
                raise
            self.tokens.renew(token)
            return self._request_once(method, route, self.tokens.current(), **options)

    def _request_once(self, method: str, route: str, token: str | None, **options: Any) -> requests.Response:
        sent_at = time.time()
        if sent_at - self._last_used > _MAX_IDLE:
            self._session.close()
        all_options: dict[str, Any] = {
            **self._connection_options,
            **options,
            "auth": BearerAuth(token),
            "timeout": self._timeout,
        }
        url = route if route.startswith(self._root) else f"{self._base}/{route}"
        request = partial(self._session.request, method, url, allow_redirects=False, **all_options)
        try:
            answer = self._calls.run(request, requests.Response.close)
        except OSError as error:  # the base of requests' errors; also raised for an unreadable CA file
            raise UnreachableError(f"{self._base} does not answer: {_reason(error)}") from error
        except BaseException:
            self._session.close()  # the next request uses a new connection
            raise
        self._last_used = time.time()
        self._measure_clock(answer, (sent_at + self._last_used) / 2)
        if answer.status_code != requests.codes.ok:
            with answer:
                raise error_from_response(answer.status_code, _content(answer), answer.headers)
        return answer

    def _measure_clock(self, answer: requests.Response, local_time: float) -> None:
        date = answer.headers.get("Date")
        if date is not None:
            try:
                # the header has whole seconds, and a server may cache it for a second
                self._offset = round(local_time - parsedate_to_datetime(date).timestamp() - 1.0, 1) + 0.0
            except ValueError:
                self._offset = None


def _reason(error: OSError) -> str:
    """Return the message of the innermost wrapped error, without class names."""
    inner = getattr(error.args[0], "reason", None) if error.args else None
    return re.sub(r"^(<[^>]*>|\w+\([^)]*\)): ", "", str(inner or error))


def error_from_response(status: int, body: bytes, headers: Mapping[str, str]) -> LakeSyncError:
    """Return the error of an HTTP response; `UnreachableError` if the response is not a gateway's.

    Args:
        status: not 200.
        body: the gateway's JSON, or anything else.
        headers: of the response.
    """
    wait = headers.get("Retry-After") or ""
    retry_after = float(wait) if wait.isdecimal() else None
    try:
        error = _decode_error(body)
    except msgspec.MsgspecError:
        if status == requests.codes.request_entity_too_large:  # a retry would fail in the same way
            return ValidationError("the answer is 413: a server before the gateway rejects requests of this size")
        reason = f"the answer is {status} and not from a gateway: check the address"
        if location := headers.get("Location"):
            reason = f"the answer is {status}, a redirect to {location}: check whether that is the gateway's address"
        return UnreachableError(reason, retry_after=retry_after)
    return error_from_code(error.code, error.error, error.rejected, retry_after)


def _content(answer: requests.Response) -> bytes:
    try:
        return answer.content
    except requests.RequestException as error:
        raise UnreachableError(f"the answer is incomplete: {error}") from error


def _decode(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except (ValidationError, msgspec.MsgspecError) as error:
        raise UnreachableError(f"the answer cannot be decoded: {error}") from error


def _checkpoint_cursor(answer: requests.Response) -> int:
    cursor = answer.headers.get("X-Checkpoint-Hlc") or ""
    if not cursor.isdecimal():
        raise UnreachableError("the answer is not a gateway's checkpoint: check whether the network asks for a login")
    return int(cursor)


def _frames(answer: requests.Response, calls: CancellableCalls) -> Iterator[bytes]:
    answer.raw.decode_content = True
    try:
        yield from read_checkpoint(cast("BinaryIO", _FullReads(answer.raw, calls)))
    except (requests.RequestException, OSError, ValidationError) as error:
        raise UnreachableError(f"the checkpoint is incomplete: {error}") from error
    except Exception as error:  # urllib3's errors are not OSErrors
        if type(error).__module__.startswith("urllib3"):
            raise UnreachableError(f"the checkpoint is incomplete: {error}") from error
        raise


class _FullReads(io.RawIOBase):
    """A stream whose `read` returns as many bytes as requested, unless the stream ends."""

    def __init__(self, raw: Any, calls: CancellableCalls) -> None:
        self._raw = raw
        self._calls = calls

    def read(self, size: int = -1) -> bytes:
        return self._calls.run(partial(self._read, size))

    def _read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and (part := self._raw.read(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
