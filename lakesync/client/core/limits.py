"""How much one request carries, and when one that failed is tried again."""

from __future__ import annotations

import msgspec


class CoreLimits(msgspec.Struct, frozen=True):
    """What a client asks for and sends at once."""

    push_deltas: int = 500
    push_bytes: int = 900_000
    """Of JSON; a gateway takes 1 MiB. A longer edit is sent alone."""
    pull_deltas: int = 8000
    """At most; a pull starts with 1,000, and asks for more at a time while there is more."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """When a client tries again. Delays double after each failure, spread at random over their upper half."""

    first_delay: float = 1.0
    """Seconds after a first failure, of a request, an action or a WebSocket."""
    longest_delay: float = 30.0
    """Seconds at most; more only where the gateway asks for it."""
    pushes: int | None = None
    """How often in a row the gateway may put a push off (RATE_LIMITED, BACKPRESSURE_ERROR) before its changes are set
    aside, as refused ones are. None: never. After any other failure nobody knows whether the gateway has them."""
    actions: int = 5
    """How often an action may fail before it is set aside."""
