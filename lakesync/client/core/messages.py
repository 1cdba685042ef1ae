"""What the core and its driver exchange: requests, responses, and the settings of their sizes and retries.

The core is the client's state machine, which does no input or output; its driver, `lakesync.client.sync`, sends the
requests to the gateway server. A push sends edits, which are changes of the app. A pull fetches a *page*: changes of
other clients after the client's cursor, and the next cursor. Both consist of *deltas*, changes of some columns of one
row. A *broadcast* is a page without a pull. An *action* is a request to an external system, which the gateway executes
once; the driver sends actions without the core. `SyncPush`, `SyncPull` and their results are the wire's own types; the
others are defined here. Apps pass `CoreLimits` and `RetryPolicy` to `lakesync.open`; `Backoff` computes the delays of
retries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from lakesync.model.backoff import doubled_wait
from lakesync.model.errors import Rejection
from lakesync.model.types import PushResult, SyncPull, SyncPush, SyncResponse


class FetchCheckpoint(NamedTuple):
    """Request for the gateway's checkpoint: a stored snapshot of all rows that the client may see, for its first sync.

    The driver passes each `CheckpointFrame` and then `CheckpointEnd` to the core; or `ErrorResponse` or `NoResponse`.
    """

    client_id: str


class Wait(NamedTuple):
    """Returned in place of a request if no request is due."""

    seconds: float | None
    """Seconds until one is due; None: until an edit is made, a pull is requested or a broadcast arrives."""


Request = SyncPush | SyncPull | FetchCheckpoint
"""What `ClientCore.next_request` returns for the driver to send."""


class CheckpointFrame(NamedTuple):
    """A part of a checkpoint: all deltas of some rows."""

    page: SyncResponse
    """The deltas, in the form of a page; its cursor is not used."""


class CheckpointEnd(NamedTuple):
    """All frames of a checkpoint were received."""

    cursor: int
    """The cursor of the pull that follows it (header `X-Checkpoint-Hlc`)."""
    highest_hlc: int = 0
    """The highest hlc (hybrid logical clock) of deltas that the driver stored itself, above which the core's clock must
    continue; 0 if the core got them all as frames."""


class Broadcast(NamedTuple):
    """A page that the gateway sent over a WebSocket without a pull."""

    page: SyncResponse


class ErrorResponse(NamedTuple):
    """The gateway responded with an error."""

    code: str
    """The error code, such as `VALIDATION_ERROR`."""
    message: str
    rejected: tuple[Rejection, ...] = ()
    """The rejected deltas of a push."""
    retry_after: float | None = None
    """Seconds after which the gateway asks for a retry; None if it does not."""


class NoResponse(NamedTuple):
    """No complete response arrived; the gateway may or may not have processed the request."""

    reason: str
    """Why no response arrived, as a sentence for the user."""


CALLER_ERRORS = frozenset({"AUTH_ERROR", "FORBIDDEN", "NOT_FOUND"})
"""Codes with which the gateway rejects the caller; a retry helps only after the token or the gateway has changed."""

Response = PushResult | SyncResponse | CheckpointFrame | CheckpointEnd | Broadcast | ErrorResponse | NoResponse
"""What the driver passes to `ClientCore.receive`: answers to requests, and broadcasts, which need no request."""


class CoreLimits(msgspec.Struct, frozen=True):
    """The size of one push and of one pulled page."""

    push_deltas: int = 500
    """Deltas of a push, at most."""
    push_bytes: int = 900_000
    """Bytes of a push as JSON, at most; a gateway accepts 1 MiB. An edit that is larger is pushed alone."""
    pull_deltas: int = 8000
    """Deltas of a page, at most. A pull starts with 1,000 and doubles while the gateway has more."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """When a client retries. Delays double after each failure and are spread at random over their upper half."""

    first_delay: float = 1.0
    """Seconds after the first failure of a request, an action or a WebSocket."""
    longest_delay: float = 30.0
    """Seconds, at most. If the gateway asks for a longer delay (`Retry-After`), the client waits that long."""
    pushes: int | None = None
    """After this many consecutive RATE_LIMITED or BACKPRESSURE_ERROR responses, the edits of a push are marked as
    refused, and are not sent until the app retries them; None: never. Other failures do not count, because the gateway
    may have stored the push."""
    actions: int = 5
    """After how many failed attempts an action is marked as failed."""

    def delay(self, earlier_failures: int) -> float:
        """Return the most seconds to wait after a failure: the first delay, doubled for each earlier one in a row.

        `Backoff` waits at random from half of it to all of it.
        """
        return doubled_wait(self.first_delay, self.longest_delay, earlier_failures)


class Backoff:
    """When a request of one kind may be sent again: a push, a pull, or opening a WebSocket. Each kind has its own."""

    def __init__(self, monotonic: Callable[[], float], jitter: Callable[[], float], policy: RetryPolicy) -> None:
        """Start without a delay.

        Args:
            monotonic: returns seconds that never go back.
            jitter: returns a random number from 0 to 1.
            policy: the first and the longest delay.
        """
        self._monotonic = monotonic
        self._jitter = jitter
        self._policy = policy
        self._failures = 0
        """Consecutive failures."""
        self._due_at = 0.0
        """When a request may be sent, on the monotonic clock."""

    def delay(self) -> float:
        """Return the seconds until a request may be sent; 0 if it may be sent now."""
        return max(0.0, self._due_at - self._monotonic())

    @property
    def is_over(self) -> bool:
        """Whether a request may be sent now."""
        return not self.delay()

    @property
    def longest_delay(self) -> float:
        """Seconds to wait after an error that a retry alone will not fix."""
        return self._policy.longest_delay

    def failed(self, at_least: float | None = None) -> None:
        """Record a failure and double the delay.

        Args:
            at_least: seconds that the gateway asked for (`Retry-After`); None if it did not.
        """
        delay = self._policy.delay(self._failures) * (1 + self._jitter()) / 2
        self._failures += 1
        self._due_at = self._monotonic() + max(delay, at_least or 0.0)

    def reset(self) -> None:
        """Clear the delay, after a success or when the network is back."""
        self._failures = 0
        self._due_at = 0.0
