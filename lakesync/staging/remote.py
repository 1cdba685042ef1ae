"""`PipelineStore` over HTTP, for the processes of the data pipeline.

Only the server that apps call, the gateway process, may open its SQLite store. So other processes call the store's
methods through it. A call of a method is a POST with the arguments as JSON. `RemoteStore` sends it, and the gateway's
internal route passes it to `dispatch`, which calls the same method of the gateway's store. `staging.store.pipeline`
says what each method promises and defines the terms.
"""

from __future__ import annotations

import inspect
import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec
import requests
import stamina

from lakesync.model.errors import (
    LakeSyncError,
    NotFoundError,
    RejectedError,
    Rejection,
    StagingUnavailableError,
    TransientError,
)
from lakesync.staging.store.pipeline import PipelineStore
from lakesync.wire.http_sessions import BearerAuth, RedirectSession
from lakesync.wire.json import read

T = TypeVar("T")

_NO_RESPONSE = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
"""Errors of a request without a complete response. The last is that of a connection that ends within the body."""
_CONNECT_SECONDS = 5.0
"""Seconds to wait for a connection."""
_MARGIN_SECONDS = 5.0
"""Seconds beyond the gateway's own limit to wait for a response, so that the gateway reports its timeout first."""
_EXCERPT_CHARACTERS = 200
"""Characters of an unexpected response that an error message contains."""


class Method(NamedTuple):
    """The message types of one method of `PipelineStore`."""

    arguments: type[msgspec.Struct]
    """A struct with a field for each parameter."""
    decode: Callable[[bytes], msgspec.Struct]
    """Decodes the arguments. It is created when the module is imported, because creating msgspec's decoders in several
    threads may crash (see `lakesync.staging.table_values`)."""
    result_type: Any
    """The type of the return value."""


def _method_of(name: str) -> Method:
    """Return the message types of a method, from its signature in `PipelineStore`."""
    function = getattr(PipelineStore, name)
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    fields = [
        (each.name, hints[each.name], msgspec.NODEFAULT if each.default is each.empty else each.default)
        for each in parameters
    ]
    arguments = msgspec.defstruct(name, fields, frozen=True, forbid_unknown_fields=True)
    return Method(arguments, msgspec.json.Decoder(arguments).decode, hints["return"])


METHODS = {name: _method_of(name) for name in dir(PipelineStore) if not name.startswith("_")}
"""Every method of `PipelineStore`, by name."""


def dispatch(store: PipelineStore, method: str, body: bytes) -> bytes:
    """Call a method of `store` by name, and return its result as JSON.

    Args:
        store: the gateway's store.
        method: the method's name.
        body: the method's arguments by name, as a JSON object; empty for none.

    Raises:
        NotFoundError: `PipelineStore` has no such method.
        ValidationError: the arguments do not fit the method.
        LakeSyncError: an error that the method raised.
    """
    message_types = METHODS.get(method)
    if message_types is None:
        raise NotFoundError(f"staging has no method {method!r}: it has {', '.join(sorted(METHODS))}")
    arguments = read(f"the arguments do not fit staging's {method}", message_types.decode, body or b"{}")
    return msgspec.json.encode(getattr(store, method)(**msgspec.structs.asdict(arguments)))


class _ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error response."""

    error: str
    code: str
    rejected: tuple[Rejection, ...] = ()
    """The rejected deltas of a push."""


class GatewayCalls:
    """Sends requests to the internal routes of a gateway process, never through a proxy. All of them can be repeated.

    So a request without a complete response, or that the gateway did not complete in time, is repeated at least once,
    and then until `retry_seconds` is over.
    """

    def __init__(
        self, base_url: str, service_token: str, *, timeout: float = 30.0, retry_seconds: float = 30.0
    ) -> None:
        """Create the HTTP session; nothing is sent yet.

        Args:
            base_url: the gateway's address, `http://HOST:PORT`.
            service_token: the token for the gateway's internal routes.
            timeout: seconds in which the gateway responds, the setting `limits.request_timeout_seconds`.
            retry_seconds: seconds during which a failed request is retried.
        """
        self._root = base_url.rstrip("/") + "/internal/"
        self._timeout = timeout + _MARGIN_SECONDS
        self._retry_seconds = retry_seconds
        self._session = RedirectSession()
        self._session.trust_env = False  # an HTTP proxy cannot reach ports of this machine
        bundles = (os.environ.get(name) for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
        self._session.verify = next(filter(None, bundles), True)  # `requests` would read them with `trust_env`
        self._session.auth = BearerAuth(service_token)
        self._session.headers["Content-Type"] = "application/json"

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def post(self, route: str, body: bytes) -> bytes:
        """Send a request, and return the body of the response.

        Args:
            route: the path below `/internal/`.
            body: the request's body, as JSON.

        Raises:
            StagingUnavailableError: the gateway or its store was not reached within `retry_seconds` seconds, by two
                requests or more.
            LakeSyncError: the error that the gateway reported, with the same class.
        """
        deadline, attempts = time.monotonic() + self._retry_seconds, 0

        def may_repeat(error: Exception) -> bool:
            return isinstance(error, StagingUnavailableError) and (attempts < 2 or time.monotonic() < deadline)

        for attempt in stamina.retry_context(on=may_repeat, attempts=None, timeout=None):
            with attempt:
                attempts += 1
                return self._post_once(self._root + route, body)
        raise AssertionError("stamina raises when it gives up")

    def _post_once(self, url: str, body: bytes) -> bytes:
        """Send one request; raises StagingUnavailableError without a complete response, or the reported error."""
        try:
            response = self._session.post(url, data=body, timeout=(_CONNECT_SECONDS, self._timeout))
        except _NO_RESPONSE as exc:
            raise StagingUnavailableError(f"the gateway did not answer at {url} ({exc}): see whether it runs") from exc
        if response.ok:
            return response.content
        raise error_of(response)


class RemoteStore(GatewayCalls):
    """The store of a gateway process, through its internal route: it has every method of `PipelineStore`.

    Raises (from every method):
        StagingUnavailableError: the gateway or its store was not reached, as by `post`.
        LakeSyncError: the error that the store raised, with the same class.
    """

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method of `PipelineStore` that sends the call."""
        if name not in METHODS:
            raise AttributeError(name)
        return partial(self._call, name)

    def _call(self, name: str, *values: Any, **named: Any) -> Any:
        """Call a method, and return its result, decoded as the type in its signature."""
        method = METHODS[name]
        body = msgspec.json.encode(method.arguments(*values, **named))
        return msgspec.json.decode(self.post(f"staging/{name}", body), type=method.result_type)


def error_of(response: requests.Response) -> LakeSyncError:
    """Return the error that a response reports, with the class of the error that the store raised."""
    try:
        body = msgspec.json.decode(response.content, type=_ErrorBody)
    except msgspec.MsgspecError:
        shown = response.text[:_EXCERPT_CHARACTERS]
        return StagingUnavailableError(f"{response.url} answered {response.status_code}, not as a gateway: {shown!r}")
    kind = _classes().get(body.code, LakeSyncError)
    if issubclass(kind, RejectedError):
        return kind(body.error, body.rejected)
    if not issubclass(kind, TransientError):
        return kind(body.error)
    after = response.headers.get("Retry-After", "")
    return kind(body.error, retry_after=float(after) if after.isdecimal() else None)


def _classes() -> dict[str, type[LakeSyncError]]:
    """Return the error class of each error code; `error_of` creates errors from it.

    Of several classes with one code, it is the one nearest to `LakeSyncError`, which has the code's general meaning.
    """
    by_code: dict[str, type[LakeSyncError]] = {}
    waiting: deque[type[LakeSyncError]] = deque([LakeSyncError])
    while waiting:
        kind = waiting.popleft()
        by_code.setdefault(kind.code, kind)
        waiting.extend(kind.__subclasses__())
    return by_code
