"""The latest rejected delta of each row, in memory. The explain route reads it to show why a pushed row is missing.

A *gateway* is one app's stream of changes. `SyncGateway.submit_push` records the deltas (changes of rows) of rejected
pushes; the gateways of an engine share one log, which is lost when the process ends. An *arrival* is a gateway's own
timestamp of a commit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lakesync.model.errors import LakeSyncError, RejectedError, Rejection, shortened
from lakesync.model.hlc import iso_time, start_of
from lakesync.model.schema import is_identifier
from lakesync.model.types import RowDelta
from lakesync.model.validation import check_id

_MAX_ROWS = 10_000
"""The most rows in the log, over all gateways; the oldest are removed first."""
_MAX_OF_A_PUSH = 100
"""The most deltas that are recorded of one rejected push."""


class RejectedDelta(msgspec.Struct, frozen=True, rename="camel"):
    """A delta of a rejected push."""

    client_id: str
    """The `sub` of the token that it was pushed with."""
    delta_id: str
    code: str
    """The error's code, for example `SCHEMA_ERROR`."""
    message: str
    at_ms: int
    """Server wall time of the rejection, in milliseconds since 1970."""

    @property
    def sentence(self) -> str:
        """The rejection as a sentence for an operator who asked about the row."""
        return (
            f"a push of {self.client_id!r} that changed it was rejected at {iso_time(self.at_ms)}: "
            f"{self.code}: {self.message}"
        )


class RejectionLog:
    """Keeps the latest rejected delta of each row. All methods may be called from any thread."""

    def __init__(self, wall: Callable[[], int]) -> None:
        """Create an empty log.

        Args:
            wall: returns the server's wall time in milliseconds since 1970.
        """
        self._wall = wall
        self._lock = threading.Lock()
        self._rows: OrderedDict[tuple[str, str, str], tuple[RejectedDelta, int]] = OrderedDict()
        """By gateway id, table and row id: the rejection, and the gateway's newest arrival at that time."""

    def record(
        self, gateway: str, pusher: str, deltas: Sequence[RowDelta], error: LakeSyncError, newest: int = 0
    ) -> None:
        """Record the deltas of a rejected push, at most `_MAX_OF_A_PUSH`; those with invalid ids are skipped.

        Args:
            gateway: the gateway's id.
            pusher: the token's `sub`, whatever client id the push has. If it is no valid client id, nothing is
                recorded.
            deltas: the push's deltas.
            error: why the push was rejected. If it names the deltas that caused this, the push's other deltas are
                recorded with the reason of the first named one.
            newest: the gateway's newest arrival (its own HLC timestamp of a commit); 0 if it is unknown.
        """
        if check_id("clientId", pusher) is not None:
            return
        reasons = {each.delta_id: each for each in error.rejected} if isinstance(error, RejectedError) else {}
        named = [delta for delta in deltas if delta.delta_id in reasons]  # those that the error names
        others = [delta for delta in deltas if delta.delta_id not in reasons]
        recordable = [delta for delta in (*named, *others) if _has_valid_ids(delta)][:_MAX_OF_A_PUSH]
        with self._lock:
            # named ones last: of one row's deltas, one that caused the rejection is kept
            for delta in reversed(recordable):
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
            table: the row's table.
            row_id: the row's id.
            changed: arrival of the row's latest change; 0 if the row does not exist.
        """
        with self._lock:
            rejected, newest = self._rows.get((gateway, table, row_id), (None, 0))
        # arrivals may be ahead of the wall clock, and `newest` may be unknown: the later of the two decides
        if rejected is None or changed > max(newest, start_of(rejected.at_ms)):
            return None
        return rejected


def _reason(
    delta: RowDelta, error: LakeSyncError, reasons: Mapping[str, Rejection], named: Sequence[RowDelta]
) -> tuple[str, str]:
    """Return code and message for one delta of a rejected push; `RejectionLog.record` explains the arguments."""
    reason = reasons.get(delta.delta_id)
    if reason is not None:
        return reason.code, reason.message
    if not named:
        return error.code, str(error)
    first = named[0]
    why = reasons[first.delta_id]
    return why.code, f"in the same push, row {first.row_id!r} of table {first.table!r} was rejected: {why.message}"


def _has_valid_ids(delta: RowDelta) -> bool:
    """Return whether table, row id and delta id are valid; invalid ones may be as long as a whole push."""
    ids = (("rowId", delta.row_id), ("deltaId", delta.delta_id))
    return is_identifier(delta.table) and all(check_id(name, value) is None for name, value in ids)
