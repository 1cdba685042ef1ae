"""The base class of the faults that checks of the lake find. `assets.checks` reports them."""

from __future__ import annotations

import msgspec


class Fault(msgspec.Struct, frozen=True):
    """A fault in the lake.

    A subclass's own first field names the row, delta, client, table or day that it concerns. It may also have a field
    `day`, in any place.
    """

    gateway: str

    @property
    def name(self) -> str:
        """Gateway, own first field, and `day` if there is one, for messages: without values of rows."""
        names = [str(field) for field in msgspec.structs.astuple(self)[:2]]
        day = getattr(self, "day", "")
        return " ".join(names if not day or day in names else [*names, day])
