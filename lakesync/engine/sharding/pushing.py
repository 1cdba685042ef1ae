"""Commits a push in the shards of its tables. `ShardedGateway` calls it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import CancelledError, Future
from typing import NamedTuple

from lakesync.engine.pushing import NEVER_PULLED
from lakesync.engine.sharding.shard_gateway import ShardGateway
from lakesync.engine.sharding.steps import Steps, begin, of_shard
from lakesync.engine.sharding.vectors import Place, Vectors
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import RefusedError, StagingUnavailableError
from lakesync.model.types import Claims, PushResult, RowDelta, SyncPush
from lakesync.staging.shards import ShardMap


class ShardedPush(NamedTuple):
    """A push that passed the checks that need no store."""

    push: SyncPush
    claims: Claims
    seen: int | None
    """The newest cursor that the client certainly has when it gets the response."""
    trusted: bool
    """Whether the write scope does not apply."""
    outcome: Future[PushResult]
    """The caller may cancel it; once a shard has stored its part, the push is completed all the same."""


def split(push: SyncPush, shards: ShardMap) -> dict[str, SyncPush]:
    """Return each shard's part of a push, in the order of the shards; shards without a part are absent."""
    found: dict[str, list[RowDelta]] = {}
    for delta in push.deltas:
        found.setdefault(shards.of(delta.table), []).append(delta)
    return {name: SyncPush(push.client_id, tuple(found[name])) for name in shards.names if name in found}


def push(
    parts: Mapping[str, ShardGateway], shards: ShardMap, vectors: Vectors, given: ShardedPush
) -> Steps[PushResult]:
    """Commit a push shard by shard, after all of them have accepted it.

    A crash in between is completed by the client's repeat: each shard recognises its deltas by their ids. Every shard
    is asked for its part of the response's cursor, also one without deltas: what the client was sent there since its
    last pull may be in doubt. For a shard that does not answer, the cursor that the client certainly has is used.

    Args:
        parts: the gateway of each shard, by shard name.
        shards: which tables belong to which shard.
        vectors: resolves and creates client cursors.
        given: the push.

    Raises:
        RefusedError, BackpressureError: nothing was stored.
        CancelledError: the caller cancelled it, and nothing was stored.
        StagingUnavailableError: a shard of the push, or the default one, cannot be reached.
    """
    client_id = given.push.client_id
    seen = yield from _seen(parts, vectors, given)
    own = split(given.push, shards)
    several = len(own) > 1
    if several:
        yield from _check(parts, own, given)
    cursors: dict[str, int] = {}
    for name, part in own.items():
        if not cursors and given.outcome.cancelled():
            raise CancelledError
        taking = parts[name].submit_part(part, given.claims, seen.get(name), admitted=several, trusted=given.trusted)
        kept = yield from of_shard(name, taking)
        if not cursors:
            begin(given.outcome)
        cursors[name] = kept.server_hlc
        crash_point("sharding.after_part")
    nothing = SyncPush(client_id, ())
    others: dict[str, Future[PushResult]] = {
        name: part.submit_part(nothing, given.claims, seen.get(name), admitted=True)
        for name, part in parts.items()
        if name not in own
    }
    for name, asked in others.items():
        try:
            answer: PushResult = yield asked
        except StagingUnavailableError:  # not needed: what the client was sent there since is in doubt
            cursors[name] = seen[name] if name in seen else (yield vectors.submit_surely(client_id)).get(name, 0)
        else:
            cursors[name] = answer.server_hlc
    cursor = max(cursors.values())
    if cursor > NEVER_PULLED:
        cursor = yield vectors.submit_issue(client_id, cursors, above=given.seen or 0)
    return PushResult(cursor, len(given.push.deltas))


def _seen(parts: Iterable[str], vectors: Vectors, given: ShardedPush) -> Steps[dict[str, int]]:
    """Return the cursor in each shard that the client certainly has."""
    if given.seen is None:
        return {}
    if given.seen <= NEVER_PULLED:
        return dict.fromkeys(parts, given.seen)
    place: Place = yield vectors.submit_place(given.push.client_id, given.seen)
    return dict(place.vector.parts) if place.vector is not None else {}


def _check(parts: Mapping[str, ShardGateway], own: Mapping[str, SyncPush], given: ShardedPush) -> Steps[None]:
    """Check the push in every shard before any of them stores anything.

    Raises:
        RefusedError: of the first shard that rejects deltas, with the rejections of all.
        BackpressureError: too much is unflushed in a shard.
    """
    refusals: list[RefusedError] = []
    for name, part in own.items():
        try:
            yield from of_shard(name, parts[name].submit_check(part, given.claims, trusted=given.trusted))
        except RefusedError as error:
            refusals.append(error)
    if refusals:
        rejected = [each for error in refusals for each in error.rejected]
        raise type(refusals[0])(str(refusals[0]), rejected)
