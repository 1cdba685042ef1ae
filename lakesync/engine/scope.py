"""The write scope: with sync rules, a client may change only rows that the rules show it (promise R8 in docs/spec.md).

`engine.pushing` calls `check_scope` in the transaction that stores the push. The rules put rows into buckets; a client
sees the rows in the buckets that its token's claims allow.
"""

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
    """Reject deltas of rows that are outside of the sender's buckets.

    The rules are evaluated for the rows' values. A row that does not exist or is deleted, before or after the push, is
    not outside at that time. One case is rejected nevertheless: the DELETE of a row that the client can never have been
    sent. It would cancel an INSERT of another client that arrives later.

    Args:
        deltas: the push's deltas that are not stored yet.
        claims: the verified claims of the sender's token.
        index: the bucket index of the active rules.
        scope: `visible` checks each row as it is stored, `rules` also as the push would make it.
        now_ms: server wall time in milliseconds since 1970.
        stored: the rows of `deltas` as they are stored; rows that do not exist yet are absent.
        keys: the bucket keys that the sender may see, with which rows are skipped quickly. Empty while the rows' stored
            keys may be older than the active rules.

    Raises:
        ForbiddenError: `rejected` has every delta of a row that is outside. The message does not reveal whether the row
            exists.
    """
    if index.everything:
        return
    unchecked = deltas
    if scope == "visible" and keys:  # skips rows that the stored keys show to the sender: ten times faster
        shown = {key for key, row in stored.items() if not keys.isdisjoint(row.keys)}
        if len(shown) == len(deltas):  # each delta has a row of its own, and the sender may see all of them
            return
        unchecked = [delta for delta in deltas if delta.key not in shown]
    before = {delta.key: stored[delta.key].fold().state for delta in unchecked if delta.key in stored}
    outside = _invalid_deletes(before, unchecked, now_ms)
    versions = list(before.items())
    if scope == "rules":
        after = {key: state.copy() for key, state in before.items()}
        for delta in unchecked:
            after.setdefault(delta.key, RowState()).merge(delta)
        versions += after.items()
    keyed = [(key, index.row_keys(key[0], state.values())) for key, state in versions if state.visible]
    in_use = sorted({bucket for _, keys in keyed for bucket in keys})
    allowed = index.client_keys(claims, lambda prefix: [key for key in in_use if key.startswith(prefix)])
    outside.update(key for key, keys in keyed if keys.isdisjoint(allowed))
    if outside:
        rejected = [
            Rejection(each.delta_id, ForbiddenError.code, _OUTSIDE) for each in unchecked if each.key in outside
        ]
        raise ForbiddenError(f"{len(rejected)} of {len(deltas)} deltas rejected: {_OUTSIDE}; set those aside", rejected)


def _invalid_deletes(before: Mapping[RowKey, RowState], deltas: Sequence[RowDelta], now_ms: int) -> set[RowKey]:
    """Return the rows that do not exist or are deleted, and that the push must not delete.

    A DELETE of such a row is invalid if the row never existed and the push does not write it either, or if its
    timestamp is ahead of the server's clock: it would cancel INSERTs that others make until then.

    Args:
        before: the stored rows' states.
        deltas: the push's deltas.
        now_ms: server wall time in milliseconds since 1970.
    """
    written = {delta.key for delta in deltas if delta.op != "DELETE"}
    invalid = set()
    for delta in deltas:
        if delta.op == "DELETE":
            state = before.get(delta.key)
            never_seen = state is None and delta.key not in written
            ahead = (state is None or not state.visible) and hlc.wall_of(delta.hlc) > now_ms
            if never_seen or ahead:
                invalid.add(delta.key)
    return invalid
