"""How far clients are behind, and why one lacks a row, where each shard has cursors of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from lakesync.engine.client_position import ClientPosition
from lakesync.engine.explanation import Explanation
from lakesync.engine.lag import LagQuery, Unsent
from lakesync.engine.pushing import NEVER_PULLED
from lakesync.engine.sharding.part import Part
from lakesync.engine.sharding.steps import Steps, of_shard
from lakesync.engine.sharding.subscriptions import ShardedSubscriptionState
from lakesync.engine.sharding.vectors import Vectors
from lakesync.model.types import Claims


def oldest_unsent(parts: Mapping[str, Part], vectors: Vectors, looks: Sequence[LagQuery]) -> Steps[list[Unsent | None]]:
    """As `engine.lag.oldest_unsent` for several clients: the oldest in any shard.

    Raises:
        StagingUnavailableError: a shard cannot be reached.
    """
    wheres = yield from _in_shards(parts, vectors, [(look.client_id, look.where) for look in looks])
    found: list[dict[str, Unsent]] = [{} for _ in looks]
    for name, part in parts.items():
        there = [_in_shard(name, look, where[name]) for look, where in zip(looks, wheres, strict=True)]
        answers = yield from of_shard(name, part.submit_unsent(there))
        for each, answer in zip(found, answers, strict=True):
            if answer is not None:
                each[name] = answer
    return [_of_all(each) for each in found]


def _in_shard(name: str, look: LagQuery, where: ClientPosition) -> LagQuery:
    return LagQuery(look.client_id, where, look.before.shards.get(name) if look.before is not None else None)


def _of_all(found: Mapping[str, Unsent]) -> Unsent | None:
    """What was found in all shards; None where the client pulled from none."""
    if not found:
        return None
    oldest = min((each.since for each in found.values() if each.since), default=0)
    return Unsent(oldest, done=all(each.done for each in found.values()), shards=found)


def explain(
    part: Part, name: str, vectors: Vectors, asked: tuple[str, str, str, Claims | None], where: ClientPosition
) -> Steps[Explanation]:
    """As `engine.explain.explain`, of a row in one shard."""
    (where_in,) = yield from _in_shards([name], vectors, [(asked[0], where)])
    explanation: Explanation = yield from of_shard(name, part.submit_explain(*asked, where_in[name]))
    return explanation


def _in_shards(
    names: Collection[str], vectors: Vectors, clients: Sequence[tuple[str, ClientPosition]]
) -> Steps[list[dict[str, ClientPosition]]]:
    """Where clients are in each of some shards."""
    handed: list[dict[str, int] | None] = yield vectors.submit_parts([(name, at.cursor) for name, at in clients])
    shown: list[dict[str, int] | None] = yield vectors.submit_parts([(name, at.confirmed) for name, at in clients])
    return [
        {name: _where(name, at, cursors, seen) for name in names}
        for (_, at), cursors, seen in zip(clients, handed, shown, strict=True)
    ]


def _where(
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
