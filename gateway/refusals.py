"""What was refused lately, by row: why a row that somebody pushed is not there. In memory, of this process alone."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from gateway.errors import shortened
from lakesync.engine.reasons import moment
from lakesync.model.errors import LakeSyncError, RefusedError, Rejection
from lakesync.model.schema import is_identifier
from lakesync.model.types import RowDelta
from lakesync.model.validation import check_id

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
        return (
            f"what {self.client_id!r} pushed of it at {moment(self.at_ms)} was not taken: {self.code}: {self.message}"
        )


class Refusals:
    """The latest refusal of each row. Belongs to the event loop's thread."""

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._now_ms = now_ms
        self._rows: OrderedDict[tuple[str, str, str], tuple[Refusal, int]] = OrderedDict()
        """Each with the gateway's newest arrival when it was refused."""

    def note(
        self, gateway: str, pusher: str, deltas: Sequence[RowDelta], error: LakeSyncError, newest: int = 0
    ) -> None:
        """A push was refused, all of it.

        Args:
            gateway: its id.
            pusher: the client that was let in, whatever name it pushed in.
            deltas: of the push.
            error: may name those for which it was refused; then the others are told by the first of these.
            newest: the gateway's newest arrival; 0 where that is not known.
        """
        if check_id("clientId", pusher) is not None:
            return
        reasons = {each.delta_id: each for each in error.rejected} if isinstance(error, RefusedError) else {}
        named = [delta for delta in deltas if delta.delta_id in reasons]
        beside = [delta for delta in deltas if delta.delta_id not in reasons]
        for delta in (*named[:_MOST_OF_A_PUSH], *beside[: max(0, _MOST_OF_A_PUSH - len(named))]):
            if not _can_be_asked_for(delta):
                continue
            code, message = _why(delta, error, reasons, named)
            key = (gateway, delta.table, delta.row_id)
            refusal = Refusal(pusher, delta.delta_id, code, shortened(message), self._now_ms())
            self._rows[key] = (refusal, newest)
            self._rows.move_to_end(key)
        while len(self._rows) > _MOST:
            self._rows.popitem(last=False)

    def of(self, gateway: str, table: str, row_id: str, changed: int = 0) -> Refusal | None:
        """The latest refusal of a row's delta since the row's arrival `changed`, where it is remembered."""
        refusal, newest = self._rows.get((gateway, table, row_id), (None, 0))
        if refusal is None or changed > max(newest, refusal.at_ms << 16):
            return None
        return refusal


def _why(
    delta: RowDelta, error: LakeSyncError, reasons: Mapping[str, Rejection], named: Sequence[RowDelta]
) -> tuple[str, str]:
    """Code and message for one delta of a push that was refused."""
    reason = reasons.get(delta.delta_id)
    if reason is not None:
        return reason.code, reason.message
    if not named:
        return error.code, str(error)
    first = named[0]
    why = reasons[first.delta_id]
    return why.code, f"in the same push, row {first.row_id!r} of table {first.table!r} was refused: {why.message}"


def _can_be_asked_for(delta: RowDelta) -> bool:
    """Whether its names are such as rows have; others may be as long as a push."""
    ids = (("rowId", delta.row_id), ("deltaId", delta.delta_id))
    return is_identifier(delta.table) and all(check_id(name, value) is None for name, value in ids)
