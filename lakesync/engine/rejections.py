"""The latest rejected delta of each row, in memory: `explain` shows why a row that was pushed is missing.

`SyncGateway.submit_push` records every rejected push of a client; the gateways of an engine share one log.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lakesync.engine.reasons import moment
from lakesync.model.errors import LakeSyncError, RefusedError, Rejection, shortened
from lakesync.model.schema import is_identifier
from lakesync.model.types import RowDelta
from lakesync.model.validation import check_id

_MAX_ROWS = 10_000
"""Rows that are recorded, over all gateways."""
_MAX_OF_A_PUSH = 100
"""Rejected deltas that are recorded of one push."""


class RejectedDelta(msgspec.Struct, frozen=True, rename="camel"):
    """A delta of a rejected push."""

    client_id: str
    """The token's `sub`."""
    delta_id: str
    code: str
    message: str
    at_ms: int
    """Server wall time."""

    @property
    def sentence(self) -> str:
        """The rejection as a sentence for an operator."""
        return (
            f"what {self.client_id!r} pushed of it at {moment(self.at_ms)} was not taken: {self.code}: {self.message}"
        )


class RejectionLog:
    """Keeps the latest rejected delta of each row. All methods may be called from any thread."""

    def __init__(self, wall: Callable[[], int]) -> None:
        """Args: wall: returns the server's wall time in milliseconds."""
        self._wall = wall
        self._lock = threading.Lock()
        self._rows: OrderedDict[tuple[str, str, str], tuple[RejectedDelta, int]] = OrderedDict()
        """By gateway, table and row id: the rejection, and the gateway's newest arrival at that time."""

    def record(
        self, gateway: str, pusher: str, deltas: Sequence[RowDelta], error: LakeSyncError, newest: int = 0
    ) -> None:
        """Record the deltas of a rejected push.

        Args:
            gateway: the gateway's id.
            pusher: the token's `sub`, whatever client id the push has.
            deltas: the push's deltas.
            error: may name the deltas that caused the rejection; the others are recorded with the first of these.
            newest: the gateway's newest arrival; 0 if it is unknown.
        """
        if check_id("clientId", pusher) is not None:
            return
        reasons = {each.delta_id: each for each in error.rejected} if isinstance(error, RefusedError) else {}
        named = [delta for delta in deltas if delta.delta_id in reasons]
        others = [delta for delta in deltas if delta.delta_id not in reasons]
        with self._lock:
            for delta in (*named[:_MAX_OF_A_PUSH], *others[: max(0, _MAX_OF_A_PUSH - len(named))]):
                if not _has_valid_ids(delta):
                    continue
                code, message = _reason(delta, error, reasons, named)
                key = (gateway, delta.table, delta.row_id)
                rejected = RejectedDelta(pusher, delta.delta_id, code, shortened(message), self._wall())
                self._rows[key] = (rejected, newest)
                self._rows.move_to_end(key)
            while len(self._rows) > _MAX_ROWS:
                self._rows.popitem(last=False)

    def latest(self, gateway: str, table: str, row_id: str, changed: int = 0) -> RejectedDelta | None:
        """Return the latest rejected delta of a row; None if it is not recorded, or the row changed since.

        Args:
            gateway: the gateway's id.
            table: the row's.
            row_id: the row's.
            changed: arrival of the row's latest change.
        """
        with self._lock:
            rejected, newest = self._rows.get((gateway, table, row_id), (None, 0))
        if rejected is None or changed > max(newest, rejected.at_ms << 16):
            return None
        return rejected


def _reason(
    delta: RowDelta, error: LakeSyncError, reasons: Mapping[str, Rejection], named: Sequence[RowDelta]
) -> tuple[str, str]:
    """Return code and message for one delta of a rejected push."""
    reason = reasons.get(delta.delta_id)
    if reason is not None:
        return reason.code, reason.message
    if not named:
        return error.code, str(error)
    first = named[0]
    why = reasons[first.delta_id]
    return why.code, f"in the same push, row {first.row_id!r} of table {first.table!r} was refused: {why.message}"


def _has_valid_ids(delta: RowDelta) -> bool:
    """Return whether table, row id and delta id are valid; invalid ones may be as long as a whole push."""
    ids = (("rowId", delta.row_id), ("deltaId", delta.delta_id))
    return is_identifier(delta.table) and all(check_id(name, value) is None for name, value in ids)
