"""A gateway over HTTP."""

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

from lakesync.client.errors import UnreachableError, answered
from lakesync.client.transports.aside import Aside, start
from lakesync.client.transports.base import Checkpoint, ServerSchema, Token
from lakesync.client.transports.tokens import TokenHolder
from lakesync.model.action_handlers import ActionDiscovery, ConnectorDescriptor
from lakesync.model.errors import AuthError, LakeSyncError, NotFoundError, Rejection, ValidationError
from lakesync.model.schema import TableSchema
from lakesync.model.types import ActionPush, ActionResponse, PushResult, SyncPull, SyncPush, SyncResponse
from lakesync.wire import actions as wire_actions
from lakesync.wire import json as wire_json
from lakesync.wire.frames import read_checkpoint
from lakesync.wire.pages import decode_page

T = TypeVar("T")

CLIENT = "python"
_STALE = 60.0
"""Seconds after which a connection that nobody used is not used again: a router may have forgotten it meanwhile."""
_PROTOBUF = "application/x-protobuf"


class _Error(msgspec.Struct, rename="camel"):
    error: str
    code: str
    request_id: str = ""
    rejected: tuple[Rejection, ...] = ()


class _Known(msgspec.Struct):
    version: int
    schema: TableSchema


_decode_error = msgspec.json.Decoder(_Error).decode
_decode_known = msgspec.json.Decoder(_Known).decode
_decode_connector_types = msgspec.json.Decoder(list[ConnectorDescriptor]).decode
_decode_discovery = msgspec.json.Decoder(ActionDiscovery).decode


class HttpTransport:
    """Pushes, pulls, fetches checkpoints and schemas, and asks for actions, over one kept connection.

    Use it from one thread at a time.
    """

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
        """Nothing is asked yet.

        Args:
            base_url: of the server, with whatever path stands before `/sync`.
            token: a JWT, or what gives one; None for a server without a secret.
            timeout: seconds to wait for a connection, and for each part of an answer.
            proxy: its URL; None for what the environment says (`HTTPS_PROXY`, `NO_PROXY`).
            ca: file or folder of certificates to trust; None for what the environment says, or certifi's.
            headers: sent with every request.
        """
        self.tokens = TokenHolder(token)
        self.gateway_id = gateway_id
        self._root = base_url.rstrip("/")
        self._base = f"{self._root}/sync/{quote(gateway_id, safe='')}"
        self._timeout = timeout
        self._session = requests.Session()
        self._headers = {"X-LakeSync-Client": CLIENT, **(headers or {})}
        self._session.headers.update(self._headers)
        self._proxy, self._ca = proxy, ca
        self._way: dict[str, Any] = {}
        """Given with each request, for requests prefers the environment to what its session says."""
        if proxy is not None:
            self._way["proxies"] = {"http": proxy, "https": proxy}
        if ca is not None:
            self._way["verify"] = ca
        self._offset: float | None = None
        self._aside = Aside()
        self._used = 0.0

    @property
    def clock_offset(self) -> float | None:
        """Seconds that this machine's clock is ahead of the gateway's, to a second."""
        return self._offset

    def set_token(self, token: Token) -> None:
        """Show this one from now on."""
        self.tokens.replace(token)

    def push(self, push: SyncPush) -> PushResult:
        """`POST push`."""
        return _decoded(wire_json.decode_push_result, self._post("push", wire_json.encode_push(push)))

    def pull(self, pull: SyncPull) -> SyncResponse:
        """`POST pull`. The values' text is looked into by whoever applies them."""
        return _decoded(decode_page, self._post("pull", wire_json.encode_pull(pull)))

    @contextmanager
    def checkpoint(self, client_id: str) -> Iterator[Checkpoint]:
        """`GET checkpoint`, streamed: memory is bounded by a frame.

        Raises:
            NotFoundError: there is none for this client.
        """
        answer = self._ask("GET", "checkpoint", params={"clientId": client_id}, stream=True)
        try:
            yield Checkpoint(_cursor(answer), _frames(answer, self._aside))
        finally:  # which would wait for a read that nobody waits for any more
            start(answer.close)

    def schema(self, table: str) -> ServerSchema | None:
        """`GET schema`."""
        try:
            known = _decoded(_decode_known, self._ask("GET", "schema", params={"table": table}).content)
        except NotFoundError:
            return None
        return ServerSchema(known.schema, known.version)

    def execute_actions(self, push: ActionPush) -> ActionResponse:
        """`POST action`."""
        headers = {"Content-Type": _PROTOBUF}
        answer = self._ask("POST", "action", data=wire_actions.encode_push(push), headers=headers)
        return _decoded(wire_actions.decode_response, answer.content)

    def describe_actions(self) -> ActionDiscovery:
        """`GET actions`."""
        return _decoded(_decode_discovery, self._ask("GET", "actions").content)

    def list_connector_types(self) -> list[ConnectorDescriptor]:
        """`GET /connectors/types`."""
        answer = self._ask("GET", f"{self._root}/connectors/types")
        return _decoded(_decode_connector_types, answer.content)

    def hang_up(self) -> None:
        """Let go whoever waits for an answer; what was asked goes on until `timeout` and is thrown away."""
        self._aside.let_go()

    def close(self) -> None:
        """Let go of the connection."""
        self._session.close()

    def _post(self, route: str, body: bytes) -> bytes:
        return self._ask("POST", route, data=body, headers={"Content-Type": "application/json"}).content

    def _ask(self, method: str, route: str, **options: Any) -> requests.Response:
        token = self.tokens.current()
        try:
            return self._ask_once(method, route, token, **options)
        except AuthError:
            if not self.tokens.renewable:
                raise
            self.tokens.renew(token)
            return self._ask_once(method, route, self.tokens.current(), **options)

    def _ask_once(self, method: str, route: str, token: str | None, **options: Any) -> requests.Response:
        headers = dict(options.pop("headers", {}))
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        asked = time.time()
        if asked - self._used > _STALE:
            self._session.close()
        way: dict[str, Any] = {**self._way, **options, "headers": headers, "timeout": self._timeout}
        place = route if route.startswith(self._root) else f"{self._base}/{route}"
        request = partial(self._session.request, method, place, allow_redirects=False, **way)
        try:
            answer = self._aside.run(request, requests.Response.close)
        except OSError as error:  # as all of requests' are, and what it says of a CA file that cannot be read
            raise UnreachableError(f"{self._base} does not answer: {_reason(error)}") from error
        except BaseException:
            self._session.close()  # the next request goes on a connection of its own
            raise
        self._used = time.time()
        self._note_clock(answer, (asked + self._used) / 2)
        if answer.status_code != requests.codes.ok:
            with answer:
                raise refusal(answer.status_code, _content(answer), answer.headers)
        return answer

    def _note_clock(self, answer: requests.Response, here: float) -> None:
        date = answer.headers.get("Date")
        if date is not None:
            try:
                # whole seconds, and a server may say those of a second ago
                self._offset = round(here - parsedate_to_datetime(date).timestamp() - 1.0, 1) + 0.0
            except ValueError:
                self._offset = None


def _reason(error: OSError) -> str:
    """Why, in few words: what lies under the errors that wrap one another, without the names of their classes."""
    inner = getattr(error.args[0], "reason", None) if error.args else None
    return re.sub(r"^(<[^>]*>|\w+\([^)]*\)): ", "", str(inner or error))


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> LakeSyncError:
    """The error that a gateway's answer is; `UnreachableError` where it is not a gateway's."""
    wait = headers.get("Retry-After") or ""
    retry_after = float(wait) if wait.isdecimal() else None
    try:
        told = _decode_error(body)
    except msgspec.MsgspecError:
        if status == requests.codes.request_entity_too_large:  # nothing of it has passed, and never will
            return ValidationError("the answer is 413: something before the gateway takes no request as large as this")
        why = f"the answer is {status}, not as a gateway answers: is the address right?"
        if elsewhere := headers.get("Location"):
            why = f"the answer is {status}, which sends on to {elsewhere}: is that the gateway's address?"
        return UnreachableError(why, retry_after=retry_after)
    return answered(told.code, told.error, told.rejected, retry_after)


def _content(answer: requests.Response) -> bytes:
    try:
        return answer.content
    except requests.RequestException as error:
        raise UnreachableError(f"the answer broke off: {error}") from error


def _decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except (ValidationError, msgspec.MsgspecError) as error:
        raise UnreachableError(f"the answer cannot be read: {error}") from error


def _cursor(answer: requests.Response) -> int:
    told = answer.headers.get("X-Checkpoint-Hlc") or ""
    if not told.isdecimal():
        raise UnreachableError("the answer is no checkpoint, as a gateway gives it: does a network ask for a login?")
    return int(told)


def _frames(answer: requests.Response, aside: Aside) -> Iterator[bytes]:
    answer.raw.decode_content = True
    try:
        yield from read_checkpoint(cast("BinaryIO", _Whole(answer.raw, aside)))
    except (requests.RequestException, OSError, ValidationError) as error:
        raise UnreachableError(f"the checkpoint broke off: {error}") from error
    except Exception as error:  # urllib3's own errors are no OSError
        if type(error).__module__.startswith("urllib3"):
            raise UnreachableError(f"the checkpoint broke off: {error}") from error
        raise


class _Whole(io.RawIOBase):
    """Reads as many bytes as were asked for, unless the stream ends."""

    def __init__(self, raw: Any, aside: Aside) -> None:
        self._raw = raw
        self._aside = aside

    def read(self, size: int = -1) -> bytes:
        return self._aside.run(partial(self._read, size))

    def _read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and (part := self._raw.read(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)
