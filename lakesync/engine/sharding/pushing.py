"""Commits a push in the shards of its tables. `ShardedGateway` runs `push` with `engine.futures.run`.

`push` is a generator (`Steps`): it yields futures, and gets their results.

A *shard* is a staging store (a database that pushes are committed to) with some of the tables of a gateway, one app's
stream of changes. There is no transaction over several shards. So a push of deltas (changes of rows) to several is
first checked in all of them, and then committed in one after another. A client pulls next from its *cursor*, for which
the store keeps a *vector*, a cursor in each shard; the response has a new cursor. Two cursors need no vector: 0 (the
client starts) and `NEVER_PULLED` (1: it pushed before its first pull).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import CancelledError, Future

from lakesync.engine.futures import Steps, mark_running
from lakesync.engine.pushing import PushRequest
from lakesync.engine.sharding.shard_gateway import NewNamesError, ShardGateway, of_shard
from lakesync.engine.sharding.vectors import ResolvedCursor, Vectors
from lakesync.feed.positions import NEVER_PULLED
from lakesync.model.crash_points import crash_point
from lakesync.model.errors import RejectedError, StagingUnavailableError, TransientError
from lakesync.model.types import PushResult, SyncPush
from lakesync.staging.shards import ShardMap


def split(push: SyncPush, shard_map: ShardMap) -> dict[str, SyncPush]:
    """Return each shard's part of a push, by shard name; shards without a part are absent.

    Args:
        push: the push.
        shard_map: which tables belong to which shard; the result has its order.
    """
    by_shard = shard_map.divide(push.deltas)
    return {name: SyncPush(push.client_id, tuple(by_shard[name])) for name in shard_map.names if name in by_shard}


def push(
    shards: Mapping[str, ShardGateway],
    shard_map: ShardMap,
    vectors: Vectors,
    request: PushRequest,
    outcome: Future[PushResult],
) -> Steps[PushResult]:
    """Commit a push shard by shard, after all of its shards have accepted it.

    The steps: 1. check the push in each shard that has a part of it; 2. commit the parts, one after another; 3. get a
    cursor from each other shard; 4. create the cursor of the response.

    After a crash in between, the client repeats the push, which completes it: each shard recognises the deltas that it
    has by their ids.

    The response's cursor needs a cursor in every shard. So a shard without deltas gets an empty push: the client may
    not have received the last pages that it was sent, and the shard returns a cursor from which it misses nothing. If
    such a shard cannot be reached, the cursor that the client certainly has there is used.

    Args:
        shards: the gateway of each shard, by shard name.
        shard_map: which tables belong to which shard.
        vectors: resolves and creates client cursors.
        request: the push, after the checks that need no store. `known_cursor` is the newest cursor that the client
            certainly has. `trusted` says that the write scope (to which rows clients may write) does not apply.
        outcome: the result for the caller, who may cancel it. Once a shard has stored its part, the push is completed
            anyway.

    Raises:
        RejectedError, BackpressureError: a shard rejects deltas, or has too many unflushed bytes; nothing was stored.
        CancelledError: the caller cancelled the push, and nothing was stored.
        StagingUnavailableError: a shard of the push, or the default one, cannot be reached. Some shards may have stored
            their part; the push can be repeated.
    """
    client_id = request.push.client_id
    known_cursors = yield from _known_cursors(shards, vectors, request)
    parts = split(request.push, shard_map)
    # 1. check
    has_several_parts = len(parts) > 1  # then all are checked first, so that no shard rejects its part after a commit
    if has_several_parts or request.fault is not None:
        yield from _check(shards, parts, request)
    # 2. commit
    cursors: dict[str, int] = {}
    for name, part in parts.items():
        if not cursors and outcome.cancelled():  # nothing is stored yet, so the push may still be cancelled
            raise CancelledError
        shard_request = request._replace(
            push=part, known_cursor=known_cursors.get(name), already_accepted=has_several_parts
        )
        result = yield from of_shard(name, shards[name].submit_push_part(shard_request))
        if not cursors:
            mark_running(outcome)
        cursors[name] = result.server_hlc
        crash_point("sharding.after_part")
    # 3. other shards
    empty = request._replace(push=SyncPush(client_id, ()), already_accepted=True)
    others: dict[str, Future[PushResult]] = {
        name: shard.submit_push_part(empty._replace(known_cursor=known_cursors.get(name)))
        for name, shard in shards.items()
        if name not in parts
    }
    for name, future in others.items():
        try:
            other_result: PushResult = yield future
        except StagingUnavailableError:  # its answer is not needed: a pull from the older cursor repeats what was sent
            confirmed = known_cursors if name in known_cursors else (yield vectors.submit_confirmed(client_id))
            cursors[name] = confirmed.get(name, 0)
        else:
            cursors[name] = other_result.server_hlc
    # 4. cursor
    cursor = max(cursors.values())
    if cursor > NEVER_PULLED:  # otherwise no shard has a real cursor for the client yet: there is no vector
        above = request.known_cursor or 0
        cursor = (yield vectors.submit_issue(client_id, request.claims, cursors, above=above)).cursor
    return PushResult(cursor, len(request.push.deltas))


def _known_cursors(shards: Iterable[str], vectors: Vectors, request: PushRequest) -> Steps[dict[str, int]]:
    """Return the cursor in each shard that the client certainly has, by shard name; empty if none is known.

    Args:
        shards: the names of all shards.
        vectors: looks up client cursors.
        request: the push, with the cursor that the client certainly has.
    """
    if request.known_cursor is None:
        return {}
    if request.known_cursor <= NEVER_PULLED:
        return dict.fromkeys(shards, request.known_cursor)
    sent: ResolvedCursor = yield vectors.submit_resolve(request.push.client_id, request.known_cursor)
    return dict(sent.vector.parts) if sent.vector is not None else {}


def _check(shards: Mapping[str, ShardGateway], parts: Mapping[str, SyncPush], request: PushRequest) -> Steps[None]:
    """Check the push in all of its shards before any of them stores anything.

    Args:
        shards: the gateway of each shard, by shard name.
        parts: the push's part for each of its shards, by shard name.
        request: the whole push.

    Raises:
        RejectedError: the push's own fault, or the error of the first shard that rejects deltas, with the rejections of
            all shards.
        BackpressureError: a shard has too many unflushed bytes, and no shard rejects deltas.
        StagingUnavailableError: a shard cannot be reached, and no other one rejects deltas.
    """
    errors = [] if request.fault is None else [request.fault]
    transient: TransientError | None = None
    with_new_names: list[str] = []  # stored once no shard has rejected anything: a stored spelling stays for ever
    for name, part in parts.items():
        try:
            yield from of_shard(name, shards[name].submit_check(request._replace(push=part, fault=None)))
        except NewNamesError:
            with_new_names.append(name)
        except RejectedError as error:
            errors.append(error)
        except TransientError as error:  # deltas that can never be accepted matter more to the client
            transient = transient or error
    if errors:
        raise errors[0].with_rejections_of(errors[1:])
    if transient is not None:
        raise transient
    for name in with_new_names:
        yield from of_shard(
            name, shards[name].submit_check(request._replace(push=parts[name], fault=None), stores_names=True)
        )
