"""A position in an adapter's deltas: adapters read from it, staging stores how far clients and followers are."""

from __future__ import annotations

import msgspec


class Position(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A position after one delta and before the next. Positions compare in the order of reading."""

    value: int
    """Arrival or hlc, by the order of reading."""
    hlc: int
    client_id: str
    delta_id: str
    gateway: str
