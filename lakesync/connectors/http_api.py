"""The base of connectors that call an HTTP API: the client `HttpApi`, and `ApiActions`, which executes actions by it.

The client checks hosts, limits responses, retries by class of error, and counts calls. An action is a request of a
LakeSync client to do something in the external system, such as to create an issue. The connectors for Jira, Salesforce
and webhooks use this module.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from json import loads
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
import requests
import stamina
from urllib3.exceptions import HTTPError

from lakesync.connectors.host_policy import HostPolicy, PinnedAdapter
from lakesync.model.action_handlers import ActionContext, ActionDescriptor
from lakesync.model.errors import (
    AdapterError,
    ConfigurationError,
    LakeSyncError,
    RateLimitedError,
    TransientError,
    ValidationError,
)
from lakesync.model.types import Action
from lakesync.wire.http_sessions import mount, no_auth
from lakesync.wire.malformed import replace_lone_surrogates

ErrorMapper = Callable[[requests.Response], LakeSyncError | None]
"""Maps a response to a LakeSync error; None if the response is a success."""

TIMEOUT_S = (10, 60)
"""Time limits in seconds: to connect, and between two reads of a response."""
_TOTAL_SECONDS = 300.0
"""Time limit in seconds of a whole response."""
MAX_RESPONSE_BYTES = 256 << 20
"""Limit of a response's body after decompression."""
_MAX_DIGITS = 18
"""Most digits of a header's integer. Python raises an error for very long ones."""
_CHUNK_BYTES = 65_536
"""Bytes of a response that are read at once, between two checks of its limits."""


class CursorLostError(AdapterError):
    """The API has forgotten the position in a paged result. A retry is useless: the query must be started again."""


class HttpApi:
    """Calls one API. It retries transient errors, unless the API asks for a longer wait than `retry_timeout_s`."""

    def __init__(
        self,
        base_url: str,
        map_error: ErrorMapper,
        *,
        attempts: int = 6,
        retry_timeout_s: float = 60.0,
        hosts: HostPolicy | None = None,
        max_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        """Create a session; nothing is sent yet.

        Args:
            base_url: prefix of all paths.
            map_error: maps the API's error responses.
            attempts: maximum attempts per call.
            retry_timeout_s: seconds for all attempts of a call together.
            hosts: the hosts that may be called; None allows every public host.
            max_bytes: maximum size of a response's body.
        """
        self.base_url = base_url.rstrip("/")
        """Prefix of all paths, without a slash at its end."""
        self.session = requests.Session()
        """The session of all requests; connectors set its headers and credentials."""
        self.session.auth = no_auth  # otherwise requests would send credentials of a `.netrc` file
        mount(self.session, PinnedAdapter(hosts or HostPolicy()))
        self.calls = 0
        """Number of requests sent so far."""
        self._map_error = map_error
        self._attempts = attempts
        self._retry_timeout = retry_timeout_s
        self._max_bytes = max_bytes

    def call(
        self,
        method: str,
        path: str,
        *,
        repeatable: bool = True,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        data: Mapping[str, str] | bytes | None = None,
    ) -> requests.Response:
        """Send a request and return the successful response.

        Args:
            method: the HTTP method.
            path: below the base URL, or an absolute URL.
            repeatable: whether the call may be repeated if the response was lost. Calls that a rate limit rejected are
                always repeated.
            params: parameters of the query string.
            json: the body, to encode as JSON.
            headers: headers in addition to the session's.
            data: the body as form fields or bytes, instead of `json`.

        Raises:
            LakeSyncError: the API's error, after all attempts.
            AdapterError: the API cannot be reached, or its response is too large or too slow.
            ConfigurationError: the host is not allowed.
        """
        url = path if path.startswith(("https://", "http://")) else self.base_url + path

        def should_retry(error: Exception) -> bool | float:
            """Return whether to retry, or after how many seconds, as `stamina` expects it."""
            if not isinstance(error, TransientError) or isinstance(error, CursorLostError):
                return False
            if not (repeatable or isinstance(error, RateLimitedError)):
                return False
            if error.retry_after is None:
                return True
            return error.retry_after if error.retry_after <= self._retry_timeout else False

        for attempt in stamina.retry_context(
            on=should_retry, attempts=self._attempts, timeout=self._retry_timeout, wait_initial=0.2, wait_max=15.0
        ):
            with attempt:
                return self._send_once(method, url, params=params, json=json, headers=headers, data=data)
        raise AssertionError("the loop ends with a response or an error")

    def close(self) -> None:
        """Close the connections."""
        self.session.close()

    def _send_once(self, method: str, url: str, **arguments: Any) -> requests.Response:
        """Send a request once; raise the error that its response means, or AdapterError without a response."""
        self.calls += 1
        shown = _url_for_messages(url, self.base_url)
        try:
            response = self.session.request(
                method, url, timeout=TIMEOUT_S, allow_redirects=False, stream=True, **arguments
            )
            response.raw = BytesIO(self._read(response, shown))
        except (OSError, HTTPError) as error:
            raise AdapterError(
                f"{method} {shown} got no response ({_reason(error)}): check that the address is correct and reachable "
                "from this machine"
            ) from error
        if (mapped := self._map_error(response)) is not None:
            raise mapped
        return response

    def _read(self, response: requests.Response, shown: str) -> bytes:
        """Read a response's body.

        Args:
            response: the response; its body is not read yet.
            shown: the request's URL for messages.

        Raises:
            AdapterError: the body is too large or too slow.
        """
        deadline = time.monotonic() + _TOTAL_SECONDS
        chunks, size = [], 0
        with response:
            for chunk in response.raw.stream(_CHUNK_BYTES, decode_content=True):
                chunks.append(chunk)
                size += len(chunk)
                if size > self._max_bytes:
                    raise AdapterError(f"{shown} returned more than {self._max_bytes} bytes, which is the limit")
                if time.monotonic() > deadline:
                    raise AdapterError(f"{shown} took more than {_TOTAL_SECONDS:.0f} s to respond")
        return b"".join(chunks)


def decode_json(response: requests.Response) -> Any:
    """Return the JSON of a response's body. Lone surrogates, which are no Unicode text, become U+FFFD.

    Args:
        response: a response of the API.

    Raises:
        AdapterError: the body is not JSON.
    """
    try:
        return loads(replace_lone_surrogates(response.content))
    except (ValueError, RecursionError) as error:  # for an integer of thousands of digits too
        shown = _url_for_messages(response.url, "")
        raise AdapterError(f"{shown} did not return JSON but {response.text[:80]!r}") from error


StatusMessages = Mapping[int, tuple[type[LakeSyncError], str]]
"""HTTP status → an error class, and its message. `error_for_status` replaces the placeholders `{path}` and
`{reason}`."""


def error_for_status(response: requests.Response, vendor: str, reason: str, messages: StatusMessages) -> LakeSyncError:
    """Return the error for a response with an error status.

    Args:
        response: the response.
        vendor: the API's name, for the message.
        reason: the vendor's own message.
        messages: errors for statuses with a special meaning; others get an error by their class.
    """
    status, path = response.status_code, response.request.path_url.partition("?")[0]
    error_class, template = messages.get(status) or _error_by_class(status, vendor)
    message = template.format(
        path=path, reason=reason, status=status, url=response.url, to=response.headers.get("Location")
    )
    return (
        error_class(message, retry_after=retry_after(response))
        if issubclass(error_class, TransientError)
        else error_class(message)
    )


def retry_after(response: requests.Response, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> float | None:
    """Return the seconds of a response's `Retry-After` (a number or a date); None if it is absent or invalid.

    Args:
        response: the response.
        now: returns the current time.
    """
    value = response.headers.get("Retry-After", "").strip()
    if value.replace(".", "", 1).isdecimal():
        seconds = float(value)
        return seconds if math.isfinite(seconds) else None
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    # a date with the zone -0000 is in UTC, and is parsed without a zone
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - now()).total_seconds())


def int_header(value: str | None) -> int | None:
    """Parse a header as an integer; None if it is not one of at most 18 digits."""
    text = (value or "").strip()
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else None


class _Closable(Protocol):
    """A client with open connections."""

    def close(self) -> None:
        """Close the connections."""


C = TypeVar("C", bound=_Closable)
"""The vendor's client."""

Params = Mapping[str, Any]
"""The parameters of an action."""
ActionFunction = Callable[[C, Action, Params, ActionContext], Mapping[str, Any]]
"""Executes an action whose params are valid, and returns its result. The context has the action's gateway (the app) and
the number of the attempt, from 1."""


class ApiActions(Generic[C]):
    """The `ActionHandler` of one connector."""

    def __init__(
        self, connect: Callable[[], C], functions: Sequence[tuple[ActionDescriptor, ActionFunction[C]]]
    ) -> None:
        """Register the actions.

        Args:
            connect: creates a client; must not send requests yet.
            functions: each action's descriptor, and the function that executes it.
        """
        self.supported_actions = tuple(descriptor for descriptor, _ in functions)
        self._connect = connect
        self._functions = {descriptor.action_type: function for descriptor, function in functions}

    def execute_action(self, action: Action, context: ActionContext) -> Mapping[str, Any]:
        """Execute an action and return its result.

        Raises:
            LakeSyncError: the vendor rejected it. The error's class says whether a retry may help.
        """
        client = self._connect()
        try:
            return self._functions[action.action_type](client, action, msgspec.json.decode(action.params), context)
        finally:
            client.close()


def _error_by_class(status: int, vendor: str) -> tuple[type[LakeSyncError], str]:
    """Return the error class and message of a redirect, a client error or a server error."""
    if status < 400:
        return ConfigurationError, "{url} redirects to {to!r}: check the address"
    if status < 500:
        return ValidationError, vendor + " rejects {path} with status {status} ({reason})"
    return AdapterError, vendor + " failed at {path} with status {status} ({reason})"


def _url_for_messages(url: str, base_url: str) -> str:
    """Return a URL for messages, which clients and the log get: without credentials and query.

    The URL of a webhook is its base URL, and often a secret: only its host is shown.
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    if url.rstrip("/") == base_url:
        return f"{parts.scheme}://{host}"
    return parts._replace(netloc=host, query="", fragment="").geturl()


def _reason(error: BaseException) -> str:
    """Return the innermost cause of an error, because the outer messages only repeat the URL."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return f"{type(error).__name__}: {error}"
