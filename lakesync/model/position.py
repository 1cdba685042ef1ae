"""A place in a walk over deltas, as adapters order them and staging remembers it."""

from __future__ import annotations

import msgspec


class Position(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A place in an adapter's deltas: after one delta, before the next. Positions compare in the order of reading."""

    value: int
    """Arrival or hlc, by the order in which was read."""
    hlc: int
    client_id: str
    delta_id: str
    gateway: str
