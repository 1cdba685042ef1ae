"""An HTTP API as a connector calls it: allowed hosts, bounded answers, repeats by class of error, a count of calls."""

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

from lakesync.connectors.hosts import HostPolicy, PinnedAdapter
from lakesync.model.errors import (
    AdapterError,
    ConfigurationError,
    LakeSyncError,
    RateLimitedError,
    TransientError,
    ValidationError,
)

Fault = Callable[[requests.Response], LakeSyncError | None]
"""What an answer's error is in our tree; None where it is none."""

TIMEOUT_S = (10, 60)
"""Seconds to connect, and between two pieces of an answer."""
TOTAL_S = 300.0
"""Seconds for a whole answer."""
MAX_ANSWER_BYTES = 256 << 20
"""Of one answer, decompressed."""
_PIECE_BYTES = 65_536


class PlaceLostError(AdapterError):
    """The API keeps the place in a result no more: the same call is in vain, and the query is asked again."""


class HttpApi:
    """Calls one API. What may pass is tried again, as long as the API's own advice is not to wait longer than that."""

    def __init__(
        self,
        base_url: str,
        fault: Fault,
        *,
        attempts: int = 6,
        patience_s: float = 60.0,
        hosts: HostPolicy | None = None,
        max_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        """Args:
        base_url: with which paths begin, without a slash at the end.
        fault: the API's own errors.
        attempts: how often a call is tried at most.
        patience_s: seconds that may pass over all tries of a call; who is told to wait longer is told so.
        hosts: that may be called; without, every host at a public address.
        max_bytes: of one answer.
        """
        self.base_url = base_url.rstrip("/")
        self.session = requests.Session()
        self.session.auth = no_auth
        for scheme in ("http://", "https://"):
            self.session.mount(scheme, PinnedAdapter(hosts or HostPolicy()))
        self.calls = 0
        self._fault = fault
        self._attempts = attempts
        self._patience = patience_s
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
        """The answer of a call, which is no error.

        Args:
            path: below the base, or a whole address.
            repeatable: whether a call whose answer was lost may be made again; one that was refused because of too many
                calls always is.

        Raises:
            LakeSyncError: what the API answered, by its class, after the tries that it is worth.
            AdapterError: it could not be reached, or its answer is too large or too slow.
            ConfigurationError: its host may not be called.
        """
        url = path if path.startswith(("https://", "http://")) else self.base_url + path

        def again(error: Exception) -> bool | float:
            if not isinstance(error, TransientError) or isinstance(error, PlaceLostError):
                return False
            if not (repeatable or isinstance(error, RateLimitedError)):
                return False
            if error.retry_after is None:
                return True
            return error.retry_after if error.retry_after <= self._patience else False

        for attempt in stamina.retry_context(
            on=again, attempts=self._attempts, timeout=self._patience, wait_initial=0.2, wait_max=15.0
        ):
            with attempt:
                return self._once(method, url, params=params, json=json, headers=headers, data=data)
        raise AssertionError("a loop of tries ends in an answer or an error")

    def close(self) -> None:
        """Close its connections."""
        self.session.close()

    def _once(self, method: str, url: str, **more: Any) -> requests.Response:
        self.calls += 1
        try:
            answer = self.session.request(method, url, timeout=TIMEOUT_S, allow_redirects=False, stream=True, **more)
            answer.raw = BytesIO(self._read(answer))
        except (OSError, HTTPError) as error:
            raise AdapterError(
                f"{method} {url} got no answer ({_reason(error)}): see whether the address is right, and reachable "
                "from this machine"
            ) from error
        if (fault := self._fault(answer)) is not None:
            raise fault
        return answer

    def _read(self, answer: requests.Response) -> bytes:
        """Read an answer's body.

        Raises:
            AdapterError: it is too large or too slow.
        """
        until = time.monotonic() + TOTAL_S
        pieces, size = [], 0
        with answer:
            for piece in answer.raw.stream(_PIECE_BYTES, decode_content=True):
                pieces.append(piece)
                size += len(piece)
                if size > self._max_bytes:
                    raise AdapterError(f"{answer.url} answers with more than {self._max_bytes} bytes: that is not read")
                if time.monotonic() > until:
                    raise AdapterError(f"{answer.url} takes more than {TOTAL_S:.0f} s for one answer")
        return b"".join(pieces)


def no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Add nothing: without this, passwords of the server's own ~/.netrc would be sent."""
    return request


Words = Mapping[int, tuple[type[LakeSyncError], str]]
"""By status: the class of an error, and what is said of it, with `{path}` and `{said}`."""


def by_status(answer: requests.Response, vendor: str, said: str, words: Words) -> LakeSyncError:
    """What an answer's status is in our tree; `said` is what the vendor said of it.

    Args:
        words: what the vendor means by a status; the others have their usual meaning.
    """
    status, path = answer.status_code, answer.request.path_url.partition("?")[0]
    kind, text = words.get(status) or _usual(status, vendor)
    message = text.format(path=path, said=said, status=status, url=answer.url, to=answer.headers.get("Location"))
    return kind(message, retry_after=retry_after(answer)) if issubclass(kind, TransientError) else kind(message)


def _usual(status: int, vendor: str) -> tuple[type[LakeSyncError], str]:
    if status < 400:
        return ConfigurationError, "{url} redirects to {to!r}: check the address"
    if status < 500:
        return ValidationError, vendor + " refuses {path} with status {status} ({said})"
    return AdapterError, vendor + " failed at {path} with status {status} ({said})"


def retry_after(answer: requests.Response, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> float | None:
    """The seconds of an answer's `Retry-After`: a number, or a date; None where it has none that can be read."""
    value = answer.headers.get("Retry-After", "").strip()
    if value.replace(".", "", 1).isdigit():
        return float(value)
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return None
    # a date with the zone -0000 is of UTC, and has none
    return max(0.0, (at.replace(tzinfo=at.tzinfo or UTC) - now()).total_seconds())


def number(value: str | None) -> int | None:
    """A header's number, if it is one."""
    return int(value) if value is not None and value.strip().isdigit() else None


def _reason(error: BaseException) -> str:
    """The innermost reason, without the address that every layer repeats."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return f"{type(error).__name__}: {error}"
