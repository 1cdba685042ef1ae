"""Settings of the core: the size of a request, and the retry policy."""

from __future__ import annotations

import msgspec


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
    """Seconds, at most; the gateway's `Retry-After` may be longer."""
    pushes: int | None = None
    """After how many consecutive RATE_LIMITED or BACKPRESSURE_ERROR answers the edits of a push are marked as refused;
    None: never. Other failures do not count, because the gateway may have stored the push."""
    actions: int = 5
    """After how many failed attempts an action is marked as failed."""
