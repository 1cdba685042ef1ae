"""Lag and explanations of clients over several shards, each of which has its own cursors.

The *lag* of a client is the age of the oldest change that it was not sent yet; an *explanation* says why a client has a
row or lacks it. A *shard* is a staging store with some of the gateway's tables. `ShardedGateway` runs `oldest_unsent`
and `explain` with `steps.run`; they translate what is known of the client's cursors for each shard.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from lakesync.engine.client_position import TrackedCursor
from lakesync.engine.explanation import Explanation
from lakesync.engine.lag import LagQuery, Unsent
from lakesync.engine.sharding.shard_gateway import ShardGateway
from lakesync.engine.sharding.steps import Steps, of_shard
from lakesync.engine.sharding.subscriptions import ShardedSubscriptionState
from lakesync.engine.sharding.vectors import Vectors
from lakesync.feed.positions import NEVER_PULLED
from lakesync.model.types import Claims


def oldest_unsent(
    parts: Mapping[str, ShardGateway], vectors: Vectors, queries: Sequence[LagQuery]
) -> Steps[list[Unsent | None]]:
    """Return the oldest unsent change of each client over all shards; see `engine.lag.oldest_unsent` for one store.

    Args:
        parts: the gateway of each shard, by shard name.
        vectors: resolves and creates client cursors.
        queries: the clients, each with the result of its previous query.

    Returns:
        The oldest unsent change of each client in any shard; None for a client that never pulled.

    Raises:
        StagingUnavailableError: a shard cannot be reached.
    """
    positions = yield from _in_shards(parts, vectors, [(query.client_id, query.tracked) for query in queries])
    by_client: list[dict[str, Unsent]] = [{} for _ in queries]
    for name, part in parts.items():
        in_shard = [_in_shard(name, query, tracked[name]) for query, tracked in zip(queries, positions, strict=True)]
        results = yield from of_shard(name, part.submit_unsent(in_shard))
        for by_shard, result in zip(by_client, results, strict=True):
            if result is not None:
                by_shard[name] = result
    return [_oldest(by_shard) for by_shard in by_client]


def _in_shard(name: str, query: LagQuery, tracked: TrackedCursor) -> LagQuery:
    """Return the query for one shard, with the shard's part of the previous result."""
    return LagQuery(query.client_id, tracked, query.before.shards.get(name) if query.before is not None else None)


def _oldest(by_shard: Mapping[str, Unsent]) -> Unsent | None:
    """Return the oldest of the shards' results; None if the client pulled from no shard."""
    if not by_shard:
        return None
    oldest = min((each.since for each in by_shard.values() if each.since), default=0)
    return Unsent(oldest, done=all(each.done for each in by_shard.values()), shards=by_shard)


def explain(
    part: ShardGateway,
    name: str,
    vectors: Vectors,
    query: tuple[str, str, str, Claims | None],
    tracked: TrackedCursor,
) -> Steps[Explanation]:
    """Explain why a client has or lacks a row of one shard; see `engine.explain.explain`.

    Args:
        part: the shard's gateway.
        name: the shard's name.
        vectors: resolves and creates client cursors.
        query: client id, table, row id, and the client's claims or None, as for `SyncGateway.submit_explain`.
        tracked: what this process knows of the client, with cursors of the sharded gateway.

    Raises:
        StagingUnavailableError: the shard or the default shard cannot be reached.
    """
    (by_shard,) = yield from _in_shards([name], vectors, [(query[0], tracked)])
    explanation: Explanation = yield from of_shard(name, part.submit_explain(*query, by_shard[name]))
    return explanation


def _in_shards(
    names: Collection[str], vectors: Vectors, clients: Sequence[tuple[str, TrackedCursor]]
) -> Steps[list[dict[str, TrackedCursor]]]:
    """Return the position of each client in each of the named shards, by shard name.

    Args:
        names: the shards' names.
        vectors: resolves client cursors.
        clients: client id, and position with cursors of the sharded gateway.
    """
    # by shard name; None for a cursor that is 0, None or unknown
    sent: list[dict[str, int] | None] = yield vectors.submit_parts(
        [(client, tracked.cursor) for client, tracked in clients]
    )
    confirmed: list[dict[str, int] | None] = yield vectors.submit_parts(
        [(client, tracked.confirmed) for client, tracked in clients]
    )
    return [
        {name: _cursor_in_shard(name, tracked, sent_cursors, confirmed_cursors) for name in names}
        for (_, tracked), sent_cursors, confirmed_cursors in zip(clients, sent, confirmed, strict=True)
    ]


def _cursor_in_shard(
    name: str, tracked: TrackedCursor, sent: dict[str, int] | None, confirmed: dict[str, int] | None
) -> TrackedCursor:
    """Return a client's position in one shard.

    Args:
        name: the shard's name.
        tracked: the client's position, with cursors of the sharded gateway.
        sent: the cursor in each shard that `at.cursor` stands for; None if it stands for none.
        confirmed: the same for `at.confirmed`.
    """
    state = tracked.state
    # in the middle of pages, the shards' states are not those of the client's cursor
    parts = state.parts if isinstance(state, ShardedSubscriptionState) and not state.has_more else None
    # without a vector: a client that never pulled has nothing of the shard; for any other, the shard's record decides
    unresolved = 0 if tracked.cursor is not None and tracked.cursor <= NEVER_PULLED else None
    return tracked._replace(
        cursor=sent.get(name, 0) if sent is not None else unresolved,
        confirmed=confirmed.get(name, 0) if confirmed is not None else None,
        state=parts.get(name) if parts is not None else None,
    )
