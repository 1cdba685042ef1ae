"""How much one request carries."""

from __future__ import annotations

import msgspec


class CoreLimits(msgspec.Struct, frozen=True):
    """What a client asks for and sends at once."""

    push_deltas: int = 500
    push_bytes: int = 900_000
    """Of JSON; a gateway takes 1 MiB. A longer edit is sent alone."""
    pull_deltas: int = 8000
    """At most; a pull starts with 1,000, and asks for more at a time while there is more."""
