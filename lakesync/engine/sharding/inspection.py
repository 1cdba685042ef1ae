"""Lag of clients and explanations over all shards; see `inspection.lag` and `inspection.explain` for one store.

A *shard* is a staging store (a database that pushes are committed to) with some of the tables of a gateway, one app's
stream of changes. The *lag* of a client is the age of the oldest change that it was not sent yet. An *explanation* says
why a client has a row or lacks it. `ShardedGateway` runs `oldest_unsent` and `explain`, which are generators
(`engine.futures.Steps`), and so yield futures and get their results. `Vectors` looks up the *vector* of a client's
cursor: a cursor in each shard. 0 and `NEVER_PULLED` (1, of a client that pushed before its first pull) have none. A
client on a WebSocket has a *subscription*, whose state says up to where its connection was sent changes. *Claims* are
the fields of its token.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from lakesync.engine.futures import Steps
from lakesync.engine.inspection.client_position import TrackedCursor
from lakesync.engine.inspection.explanation import Explanation
from lakesync.engine.inspection.lag import LagQuery, Unsent
from lakesync.engine.sharding.shard_gateway import ShardGateway, of_shard
from lakesync.engine.sharding.subscriptions import ShardedSubscriptionState
from lakesync.engine.sharding.vectors import Vectors
from lakesync.feed.positions import NEVER_PULLED
from lakesync.model.types import Claims


def oldest_unsent(
    shards: Mapping[str, ShardGateway], vectors: Vectors, queries: Sequence[LagQuery]
) -> Steps[list[Unsent | None]]:
    """Return the oldest unsent change of each client over all shards; see `inspection.lag.oldest_unsent` for one store.

    Args:
        shards: the gateway of each shard, by shard name.
        vectors: resolves and creates client cursors.
        queries: the clients, each with the result of its previous query.

    Returns:
        The oldest unsent change of each client in any shard; None for a client that never pulled.

    Raises:
        StagingUnavailableError: a shard cannot be reached.
    """
    positions = yield from _in_shards(shards, vectors, [(query.client_id, query.tracked) for query in queries])
    by_client: list[dict[str, Unsent]] = [{} for _ in queries]
    for name, shard in shards.items():
        in_shard = [_in_shard(name, query, tracked[name]) for query, tracked in zip(queries, positions, strict=True)]
        results = yield from of_shard(name, shard.submit_unsent(in_shard))
        for by_shard, result in zip(by_client, results, strict=True):
            if result is not None:
                by_shard[name] = result
    return [_oldest(by_shard) for by_shard in by_client]


def explain(
    shard: ShardGateway,
    name: str,
    vectors: Vectors,
    client_id: str,
    table: str,
    row_id: str,
    claims: Claims | None,
    tracked: TrackedCursor,
) -> Steps[Explanation]:
    """Explain why a client has or lacks a row of one shard; see `inspection.explain.explain`.

    Args:
        shard: the shard's gateway.
        name: the shard's name.
        vectors: resolves and creates client cursors.
        client_id: the client's id.
        table: the row's table.
        row_id: the row's id.
        claims: the client's claims; None uses those of its last pull, or its client id alone.
        tracked: what this process knows of the client, with cursors of the sharded gateway.

    Raises:
        StagingUnavailableError: the shard or the default shard cannot be reached.
    """
    (by_shard,) = yield from _in_shards([name], vectors, [(client_id, tracked)])
    explaining = shard.submit_explain(client_id, table, row_id, claims, by_shard[name])
    explanation: Explanation = yield from of_shard(name, explaining)
    return explanation


def _in_shard(name: str, query: LagQuery, tracked: TrackedCursor) -> LagQuery:
    """Return a query for the shard `name`, with this shard's part of the previous result."""
    return LagQuery(query.client_id, tracked, query.before.shards.get(name) if query.before is not None else None)


def _oldest(by_shard: Mapping[str, Unsent]) -> Unsent | None:
    """Return the oldest of the shards' results; None if the client pulled from no shard.

    The result is complete if every shard's feed was read to its end, or to an unsent row.
    """
    if not by_shard:
        return None
    # a shard's `since` is 0 if everything was sent
    oldest = min((each.since for each in by_shard.values() if each.since), default=0)
    return Unsent(oldest, is_complete=all(each.is_complete for each in by_shard.values()), shards=by_shard)


def _in_shards(
    names: Collection[str], vectors: Vectors, clients: Sequence[tuple[str, TrackedCursor]]
) -> Steps[list[dict[str, TrackedCursor]]]:
    """Return what this process knows of each client's cursor in each of the named shards, by shard name.

    Args:
        names: the shards' names.
        vectors: resolves client cursors.
        clients: client id, and what this process knows of the client, with cursors of the sharded gateway.
    """
    # by shard name; None for a cursor that is 0, None or unknown
    sent: list[dict[str, int] | None] = yield vectors.submit_vectors(
        [(client, tracked.cursor) for client, tracked in clients]
    )
    confirmed: list[dict[str, int] | None] = yield vectors.submit_vectors(
        [(client, tracked.confirmed) for client, tracked in clients]
    )
    return [
        {name: _cursor_in_shard(name, tracked, sent_cursors, confirmed_cursors) for name in names}
        for (_, tracked), sent_cursors, confirmed_cursors in zip(clients, sent, confirmed, strict=True)
    ]


def _cursor_in_shard(
    name: str, tracked: TrackedCursor, sent: dict[str, int] | None, confirmed: dict[str, int] | None
) -> TrackedCursor:
    """Return what this process knows of a client's cursor in one shard.

    Args:
        name: the shard's name.
        tracked: the same for the sharded gateway.
        sent: the vector of `tracked.cursor`, a cursor in each shard; None if it has no such cursors.
        confirmed: the same for `tracked.confirmed`.
    """
    state = tracked.state
    # The state of its WebSocket subscription has a part for each shard. While more pages follow (`has_more`), the parts
    # are not at the client's cursor, so its vector is used instead.
    parts = state.parts if isinstance(state, ShardedSubscriptionState) and not state.has_more else None
    # without a vector: a client that never pulled has nothing of the shard; for any other, the shard's record decides
    unresolved = 0 if tracked.cursor is not None and tracked.cursor <= NEVER_PULLED else None
    return tracked._replace(
        cursor=sent.get(name, 0) if sent is not None else unresolved,
        confirmed=confirmed.get(name, 0) if confirmed is not None else None,
        state=parts.get(name) if parts is not None else None,
    )
