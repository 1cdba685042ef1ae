"""R8: the write scope of a gateway that has sync rules, by which a client changes only rows that they show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

from lakesync.model import hlc
from lakesync.model.errors import ForbiddenError, Rejection
from lakesync.model.merge import RowState
from lakesync.model.types import Claims, RowDelta, RowKey
from lakesync.rules.keys import BucketIndex
from lakesync.staging.records import StoredRow

_OUTSIDE = "the row is outside of what this client may write"


def check_scope(
    deltas: Sequence[RowDelta],
    claims: Claims,
    index: BucketIndex,
    scope: Literal["visible", "rules"],
    now_ms: int,
    stored: Mapping[RowKey, StoredRow],
    keys: AbstractSet[str] = frozenset(),
) -> None:
    """Refuse deltas of rows that are outside of the sender's buckets.

    The check uses copies of the rows. It ignores stored bucket keys, which may be older than the rules in force, unless
    it is given `keys`. A row that is not visible, before or after the push, is not outside at that time. But a client
    that was never shown a row has no reason to delete it: such a DELETE would cancel another client's later INSERT.

    Args:
        deltas: those that are new.
        claims: the verified claims of the sender's token.
        index: of the rules in force.
        scope: `visible` checks each row as it is, `rules` also as the push would make it.
        now_ms: server wall time in milliseconds since 1970.
        stored: the rows of `deltas` as they are.
        keys: the sender's, where the stored keys of all rows are those of the rules in force.

    Raises:
        ForbiddenError: with every delta of a row that is outside. Its words do not tell whether the row exists.
    """
    if index.everything:
        return
    asked = deltas
    if scope == "visible" and keys:  # skips rows that the stored keys show to the sender: ten times faster
        shown = {key for key, row in stored.items() if not keys.isdisjoint(row.keys)}
        asked = [delta for delta in deltas if delta.key not in shown]
    before = {delta.key: stored[delta.key].fold().state for delta in asked if delta.key in stored}
    outside = _unfounded(before, asked, now_ms)
    versions = list(before.items())
    if scope == "rules":
        after = {key: state.copy() for key, state in before.items()}
        for delta in asked:
            after.setdefault(delta.key, RowState()).merge(delta)
        versions += after.items()
    keyed = [(key, index.row_keys(key[0], state.values())) for key, state in versions if state.visible]
    in_use = sorted({bucket for _, keys in keyed for bucket in keys})
    allowed = index.client_keys(claims, lambda prefix: [key for key in in_use if key.startswith(prefix)])
    outside.update(key for key, keys in keyed if keys.isdisjoint(allowed))
    if outside:
        refused = [Rejection(each.delta_id, ForbiddenError.code, _OUTSIDE) for each in asked if each.key in outside]
        raise ForbiddenError(f"{len(refused)} of {len(deltas)} deltas refused: {_OUTSIDE}; set those aside", refused)


def _unfounded(before: Mapping[RowKey, RowState], deltas: Sequence[RowDelta], now_ms: int) -> set[RowKey]:
    """Rows that are not there and that the push deletes, without having written them or ahead of the server's clock."""
    written = {delta.key for delta in deltas if delta.op != "DELETE"}
    found = set()
    for delta in deltas:
        if delta.op == "DELETE":
            known = before.get(delta.key)
            never_seen = known is None and delta.key not in written
            ahead = (known is None or not known.visible) and hlc.wall_of(delta.hlc) > now_ms
            if never_seen or ahead:
                found.add(delta.key)
    return found
