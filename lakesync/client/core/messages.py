"""What the core and its driver exchange: requests, responses, and the settings of their sizes and retries.

The core is the client's state machine, which does no input or output; its driver, `lakesync.client.sync`, sends the
requests. `SyncPush`, `SyncPull` and their results are the wire's own types; the others are defined here. Apps pass
`CoreLimits` and `RetryPolicy` to `lakesync.open`; `Backoff` computes the delays of retries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from lakesync.model.errors import Rejection
from lakesync.model.types import PushResult, SyncPull, SyncPush, SyncResponse


class FetchCheckpoint(NamedTuple):
    """Request for the gateway's checkpoint: all rows that the client may see, for its first sync.

    The driver passes each `CheckpointFrame` and then `CheckpointEnd` to the core; or `ErrorResponse` or `NoResponse`.
    """

    client_id: str


class Wait(NamedTuple):
    """Returned in place of a request if no request is due."""

    seconds: float | None
    """Seconds until one is due; None: until an edit is made, a pull is requested or a broadcast arrives."""


Request = SyncPush | SyncPull | FetchCheckpoint


class CheckpointFrame(NamedTuple):
    """A part of a checkpoint."""

    page: SyncResponse
    """The deltas of some rows; its cursor is not used."""


class CheckpointEnd(NamedTuple):
    """All frames of a checkpoint were received."""

    cursor: int
    """The cursor of the pull that follows it (header `X-Checkpoint-Hlc`)."""
    highest_hlc: int = 0
    """The highest hlc (hybrid logical clock) of the checkpoint's deltas, if the driver stored them itself; else 0.

    The core's clock continues above it."""


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


Response = PushResult | SyncResponse | CheckpointFrame | CheckpointEnd | Broadcast | ErrorResponse | NoResponse


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


class Backoff:
    """The retry delays of one kind of request: pushes, pulls, or opening a WebSocket."""

    def __init__(
        self, monotonic: Callable[[], float], jitter: Callable[[], float], policy: RetryPolicy | None = None
    ) -> None:
        """Start without a delay.

        Args:
            monotonic: returns seconds that never go back.
            jitter: returns a random number from 0 to 1.
            policy: the first and the longest delay; None for the defaults.
        """
        self._monotonic = monotonic
        self._jitter = jitter
        self._policy = policy or RetryPolicy()
        self._failures = 0
        """Consecutive failures."""
        self._due_at = 0.0
        """When a request may be sent, on the monotonic clock."""

    def delay(self) -> float:
        """Return the seconds until a request may be sent; 0 if it may be sent now."""
        return max(0.0, self._due_at - self._monotonic())

    @property
    def longest_delay(self) -> float:
        """Seconds to wait after an error that a retry alone will not fix."""
        return self._policy.longest_delay

    def failed(self, at_least: float | None = None) -> None:
        """Record a failure and double the delay.

        Args:
            at_least: seconds that the gateway asked for (`Retry-After`); None if it did not.
        """
        longest = min(self._policy.longest_delay, self._policy.first_delay * 2.0 ** min(self._failures, 10))
        self._failures += 1
        delay = longest * (1 + self._jitter()) / 2
        self._due_at = self._monotonic() + max(delay, at_least or 0.0)

    def reset(self) -> None:
        """Clear the delay, after a success or when the network is back."""
        self._failures = 0
        self._due_at = 0.0
