"""R8: where a gateway's write scope is `rules`, a client changes only rows that its sync rules show it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lakesync.exceptions import ForbiddenError, Rejection
from lakesync.lww import RowState
from lakesync.rules.keys import BucketIndex
from lakesync.staging.store import Commit
from lakesync.types import Claims, RowDelta, RowKey

_OUTSIDE = "the row is outside of what this client may write"


def check_scope(commit: Commit, deltas: Sequence[RowDelta], claims: Claims, index: BucketIndex) -> None:
    """Whether every row that a push names is inside the sender's buckets, as it is and as the push would make it.

    Looks at copies; a row that is not visible before, or after, is not outside then. Stored bucket keys are not used:
    they may be older than the rules in force.

    Raises:
        ForbiddenError: with every delta of a row that is outside. It does not tell whether the row exists.
    """
    stored = commit.rows({delta.key for delta in deltas})
    before = {key: row.state for key, row in stored.items()}
    after = {key: _copy(state) for key, state in before.items()}
    for delta in deltas:
        after.setdefault(delta.key, RowState()).merge(delta)
    versions = [(key, _keys(key, state, index)) for states in (before, after) for key, state in states.items()]
    in_use = sorted({bucket for _, keys in versions if keys is not None for bucket in keys})
    allowed = index.client_keys(claims, lambda prefix: [key for key in in_use if key.startswith(prefix)])
    outside = {key for key, keys in versions if keys is not None and keys.isdisjoint(allowed)}
    if outside:
        refused = [Rejection(each.delta_id, ForbiddenError.code, _OUTSIDE) for each in deltas if each.key in outside]
        raise ForbiddenError(f"{len(refused)} of {len(deltas)} deltas refused: {_OUTSIDE}; set those aside", refused)


def _copy(state: RowState) -> RowState:
    live = [msgspec.structs.replace(part, columns=dict(part.columns)) for part in state.live]
    return RowState(live, state.tombstone, state.inserted)


def _keys(key: RowKey, state: RowState, index: BucketIndex) -> frozenset[str] | None:
    """The bucket keys of a row; None while it is not visible."""
    return index.row_keys(key[0], state.values()) if state.visible else None
