"""HTTP client for connectors: allowed hosts, bounded answers, retries by class of error, a count of calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import Any

import requests
import stamina
from urllib3.exceptions import HTTPError

from lakesync.connectors.host_policy import HostPolicy, PinnedAdapter
from lakesync.model.errors import (
    AdapterError,
    ConfigurationError,
    LakeSyncError,
    RateLimitedError,
    TransientError,
    ValidationError,
)
from lakesync.wire.http_auth import no_auth

ErrorMapper = Callable[[requests.Response], LakeSyncError | None]
"""Maps an answer to a LakeSync error; None if the answer is a success."""

TIMEOUT_S = (10, 60)
"""Seconds to connect, and between two reads."""
TOTAL_S = 300.0
"""Seconds for a whole answer."""
MAX_ANSWER_BYTES = 256 << 20
"""Of one answer, decompressed."""
_CHUNK_BYTES = 65_536


class CursorLostError(AdapterError):
    """The API has discarded the position in a result. Retrying the call is useless; the query must be started again."""


class HttpApi:
    """Calls one API. Transient errors are retried unless the API asks for a longer wait than the retry timeout."""

    def __init__(
        self,
        base_url: str,
        map_error: ErrorMapper,
        *,
        attempts: int = 6,
        retry_timeout_s: float = 60.0,
        hosts: HostPolicy | None = None,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        """Create a session; nothing is sent yet.

        Args:
            base_url: prefix of all paths.
            map_error: maps the API's own errors.
            attempts: maximum attempts per call.
            retry_timeout_s: seconds for all attempts of a call together.
            hosts: the hosts that may be called; None allows every public host.
            max_bytes: maximum size of an answer.
        """
        self.base_url = base_url.rstrip("/")
        self.session = requests.Session()
        self.session.auth = no_auth
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, PinnedAdapter(hosts or HostPolicy()))
        self.calls = 0
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
        """Send a request and return the successful answer.

        Args:
            method: the HTTP method.
            path: below the base URL, or an absolute URL.
            repeatable: whether the call may be repeated after a lost answer. Calls rejected by a rate limit are always
                repeated.
            params: of the query string.
            json: the body as JSON.
            headers: in addition to the session's.
            data: the body as form or bytes.

        Raises:
            LakeSyncError: the API's error, after all attempts.
            AdapterError: the API cannot be reached, or its answer is too large or too slow.
            ConfigurationError: the host is not allowed.
        """
        url = path if path.startswith(("https://", "http://")) else self.base_url + path

        def again(error: Exception) -> bool | float:
            if not isinstance(error, TransientError) or isinstance(error, CursorLostError):
                return False
            if not (repeatable or isinstance(error, RateLimitedError)):
                return False
            if error.retry_after is None:
                return True
            return error.retry_after if error.retry_after <= self._retry_timeout else False

        for attempt in stamina.retry_context(
            on=again, attempts=self._attempts, timeout=self._retry_timeout, wait_initial=0.2, wait_max=15.0
        ):
            with attempt:
                return self._once(method, url, params=params, json=json, headers=headers, data=data)
        raise AssertionError("the loop ends with an answer or an error")

    def close(self) -> None:
        """Close the connections."""
        self.session.close()

    def _once(self, method: str, url: str, **more: Any) -> requests.Response:
        self.calls += 1
        try:
            answer = self.session.request(method, url, timeout=TIMEOUT_S, allow_redirects=False, stream=True, **more)
            answer.raw = BytesIO(self._read(answer))
        except (OSError, HTTPError) as error:
            raise AdapterError(
                f"{method} {url} got no answer ({_reason(error)}): check that the address is correct and reachable "
                "from this machine"
            ) from error
        if (fault := self._map_error(answer)) is not None:
            raise fault
        return answer

    def _read(self, answer: requests.Response) -> bytes:
        """Read an answer's body.

        Raises:
            AdapterError: the body is too large or too slow.
        """
        until = time.monotonic() + TOTAL_S
        chunks, size = [], 0
        with answer:
            for chunk in answer.raw.stream(_CHUNK_BYTES, decode_content=True):
                chunks.append(chunk)
                size += len(chunk)
                if size > self._max_bytes:
                    raise AdapterError(f"{answer.url} returned more than {self._max_bytes} bytes, which is the limit")
                if time.monotonic() > until:
                    raise AdapterError(f"{answer.url} took more than {TOTAL_S:.0f} s to answer")
        return b"".join(chunks)


StatusMessages = Mapping[int, tuple[type[LakeSyncError], str]]
"""By status: an error class, and its message with the fields `{path}` and `{said}`."""


def error_for_status(answer: requests.Response, vendor: str, said: str, words: StatusMessages) -> LakeSyncError:
    """Return the error for an answer's status.

    Args:
        answer: the answer.
        vendor: the API's name, for the message.
        said: the vendor's own message.
        words: the vendor's meaning of statuses; others have their usual meaning.
    """
    status, path = answer.status_code, answer.request.path_url.partition("?")[0]
    kind, text = words.get(status) or _usual(status, vendor)
    message = text.format(path=path, said=said, status=status, url=answer.url, to=answer.headers.get("Location"))
    return kind(message, retry_after=retry_after(answer)) if issubclass(kind, TransientError) else kind(message)


def _usual(status: int, vendor: str) -> tuple[type[LakeSyncError], str]:
    if status < 400:
        return ConfigurationError, "{url} redirects to {to!r}: check the address"
    if status < 500:
        return ValidationError, vendor + " rejects {path} with status {status} ({said})"
    return AdapterError, vendor + " failed at {path} with status {status} ({said})"


def retry_after(answer: requests.Response, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> float | None:
    """Return the seconds of an answer's `Retry-After` (a number or a date); None if it is absent or invalid.

    Args:
        answer: the answer.
        now: the current time.
    """
    value = answer.headers.get("Retry-After", "").strip()
    if value.replace(".", "", 1).isdecimal():
        return float(value)
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    # a date with the zone -0000 is in UTC, and is parsed without a zone
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - now()).total_seconds())


def int_header(value: str | None) -> int | None:
    """Parse a header as an integer; None if it is not one."""
    return int(value) if value is not None and value.strip().isdecimal() else None


def _reason(error: BaseException) -> str:
    """Return the innermost cause, without the URL that every layer repeats."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return f"{type(error).__name__}: {error}"
