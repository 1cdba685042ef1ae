"""What was refused lately, by row: why a row that somebody pushed is not there. In memory, of this process alone."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from gateway.errors import shortened
from lakesync.exceptions import RefusedError
from lakesync.schema import is_identifier
from lakesync.types import RowDelta
from lakesync.validation import check_id

_MOST = 10_000
"""Rows that are remembered, over all gateways."""
_MOST_OF_A_PUSH = 100


class Refusal(msgspec.Struct, frozen=True, rename="camel"):
    """A delta that was not taken."""

    client_id: str
    """Who pushed it."""
    delta_id: str
    code: str
    message: str
    at_ms: int
    """Server wall time."""

    @property
    def said(self) -> str:
        """In words."""
        when = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
        return f"what {self.client_id!r} pushed of it at {when} was refused: {self.code}: {self.message}"


class Refusals:
    """The latest refusal of each row. Belongs to the event loop's thread."""

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._now_ms = now_ms
        self._rows: OrderedDict[tuple[str, str, str], Refusal] = OrderedDict()

    def note(self, gateway: str, pusher: str, deltas: Sequence[RowDelta], error: RefusedError) -> None:
        """A push was refused.

        Args:
            gateway: its id.
            pusher: the client that was let in, whatever name it pushed in.
            deltas: of the push.
            error: names those that were not taken.
        """
        if check_id("clientId", pusher) is not None:
            return
        reasons = {each.delta_id: each for each in error.rejected[:_MOST_OF_A_PUSH]}
        for delta in deltas if reasons else ():
            why = reasons.get(delta.delta_id)
            if why is None or not _can_be_asked_for(delta):
                continue
            key = (gateway, delta.table, delta.row_id)
            self._rows[key] = Refusal(pusher, delta.delta_id, why.code, shortened(why.message), self._now_ms())
            self._rows.move_to_end(key)
        while len(self._rows) > _MOST:
            self._rows.popitem(last=False)

    def of(self, gateway: str, table: str, row_id: str) -> Refusal | None:
        """The latest refusal of a row's delta, where it is remembered."""
        return self._rows.get((gateway, table, row_id))


def _can_be_asked_for(delta: RowDelta) -> bool:
    """Whether its names are such as rows have; others may be as long as a push."""
    ids = (("rowId", delta.row_id), ("deltaId", delta.delta_id))
    return is_identifier(delta.table) and all(check_id(name, value) is None for name, value in ids)
