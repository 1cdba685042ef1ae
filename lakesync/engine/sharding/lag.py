"""Lag and explanations of clients over several shards, each of which has its own cursors. `ShardedGateway` calls it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from lakesync.engine.client_position import ClientPosition
from lakesync.engine.explanation import Explanation
from lakesync.engine.lag import LagQuery, Unsent
from lakesync.engine.pushing import NEVER_PULLED
from lakesync.engine.sharding.shard_gateway import ShardGateway
from lakesync.engine.sharding.steps import Steps, of_shard
from lakesync.engine.sharding.subscriptions import ShardedSubscriptionState
from lakesync.engine.sharding.vectors import Vectors
from lakesync.model.types import Claims


def oldest_unsent(
    parts: Mapping[str, ShardGateway], vectors: Vectors, queries: Sequence[LagQuery]
) -> Steps[list[Unsent | None]]:
    """As `engine.lag.oldest_unsent`, for several clients over all shards.

    Args:
        parts: the gateway of each shard, by shard name.
        vectors: resolves and creates client cursors.
        queries: the clients.

    Raises:
        StagingUnavailableError: a shard cannot be reached.
    """
    positions = yield from _in_shards(parts, vectors, [(query.client_id, query.position) for query in queries])
    found: list[dict[str, Unsent]] = [{} for _ in queries]
    for name, part in parts.items():
        there = [_in_shard(name, query, position[name]) for query, position in zip(queries, positions, strict=True)]
        answers = yield from of_shard(name, part.submit_unsent(there))
        for each, answer in zip(found, answers, strict=True):
            if answer is not None:
                each[name] = answer
    return [_of_all(each) for each in found]


def _in_shard(name: str, query: LagQuery, position: ClientPosition) -> LagQuery:
    return LagQuery(query.client_id, position, query.before.shards.get(name) if query.before is not None else None)


def _of_all(found: Mapping[str, Unsent]) -> Unsent | None:
    """Return the oldest of the shards' results; None if the client pulled from no shard."""
    if not found:
        return None
    oldest = min((each.since for each in found.values() if each.since), default=0)
    return Unsent(oldest, done=all(each.done for each in found.values()), shards=found)


def explain(
    part: ShardGateway,
    name: str,
    vectors: Vectors,
    query: tuple[str, str, str, Claims | None],
    position: ClientPosition,
) -> Steps[Explanation]:
    """As `engine.explain.explain`, for a row of one shard.

    Args:
        part: the shard's.
        name: of the shard.
        vectors: resolves and creates client cursors.
        query: client id, table, row id and claims.
        position: of the client.
    """
    (by_shard,) = yield from _in_shards([name], vectors, [(query[0], position)])
    explanation: Explanation = yield from of_shard(name, part.submit_explain(*query, by_shard[name]))
    return explanation


def _in_shards(
    names: Collection[str], vectors: Vectors, clients: Sequence[tuple[str, ClientPosition]]
) -> Steps[list[dict[str, ClientPosition]]]:
    """Return the positions of clients in some shards."""
    sent_cursors: list[dict[str, int] | None] = yield vectors.submit_parts([(name, at.cursor) for name, at in clients])
    shown: list[dict[str, int] | None] = yield vectors.submit_parts([(name, at.confirmed) for name, at in clients])
    return [
        {name: _position_in(name, at, cursors, seen) for name in names}
        for (_, at), cursors, seen in zip(clients, sent_cursors, shown, strict=True)
    ]


def _position_in(
    name: str, at: ClientPosition, cursors: dict[str, int] | None, shown: dict[str, int] | None
) -> ClientPosition:
    state = at.state
    parts = state.parts if isinstance(state, ShardedSubscriptionState) and not state.has_more else None
    began = 0 if at.cursor is not None and at.cursor <= NEVER_PULLED else None
    return at._replace(
        cursor=cursors.get(name, 0) if cursors is not None else began,
        confirmed=shown.get(name, 0) if shown is not None else None,
        state=parts.get(name) if parts is not None else None,
    )
