"""Clients that are connected, told of what is new in any shard.

Those who stand at one place in every shard, and may see the same, are looked at once and told by one page, whose cursor
is kept for all of them at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lakesync.engine.following import Found, Group, Interest, Standing
from lakesync.engine.pushing import NEVER_PULLED
from lakesync.engine.sharding.part import Part
from lakesync.engine.sharding.pulling import start
from lakesync.engine.sharding.steps import Steps, of_shard
from lakesync.engine.sharding.vectors import Place, Vectors, Wanted
from lakesync.feed.positions import Access
from lakesync.model.types import Claims, RowDelta, SyncResponse


@dataclass(frozen=True, slots=True, eq=False)
class ShardedStanding(Standing):
    """Where followers stand in every shard. Its `access` only says whether all of them know what they may see."""

    parts: Mapping[str, Standing] | None = None
    """By shard. Their cursors may be older than what `cursor` stands for, where all that lies between is their own."""

    def value(self) -> tuple[object, ...]:
        """Equal for standings of which one may stand for the other."""
        parts = self.parts or {}
        return (self.cursor, self.limit, self.more, self.access is None, *(each.value() for each in parts.values()))


def follow(
    parts: Mapping[str, Part], vectors: Vectors, newcomers: Sequence[tuple[str, Claims, Standing]]
) -> Steps[list[Standing]]:
    """The newcomers' standings in every shard.

    Who found nothing has nothing but what it writes itself, so it stands where one does that never pulled.
    """
    asked = [(client_id, max(standing.cursor, NEVER_PULLED)) for client_id, _, standing in newcomers]
    places: list[Place] = yield vectors.submit_places(asked)
    cursors = []
    for (client_id, _), place in zip(asked, places, strict=True):
        found = yield from start(parts, client_id, place)
        cursors.append(found)
    inner: dict[str, list[Standing]] = {}
    for name, part in parts.items():
        there = [
            (client_id, claims, _in_shard(name, own[name], standing))
            for (client_id, claims, standing), own in zip(newcomers, cursors, strict=True)
        ]
        inner[name] = yield from of_shard(name, part.submit_follow(there))
    known: dict[tuple[object, ...], Standing] = {}
    standings: list[Standing] = []
    for place_of, (_, cursor) in enumerate(asked):
        made = _joined(newcomers[place_of][2], cursor, {name: inner[name][place_of] for name in parts})
        standings.append(known.setdefault(made.value(), made))
    return standings


def resume(parts: Mapping[str, Part], vectors: Vectors, client_id: str) -> Steps[int | None]:
    """A cursor from which a client can be sent what is new before it pulls; None where no shard knows where it was."""
    surely: dict[str, int] = yield vectors.submit_surely(client_id)
    found: dict[str, int | None] = {}
    for name, part in parts.items():
        found[name] = yield from of_shard(name, part.submit_resume(client_id))
    if all(cursor is None for cursor in found.values()):
        return None
    cursors = {name: surely.get(name, 0) if cursor is None else cursor for name, cursor in found.items()}
    outer: int = yield vectors.submit_hand_out(client_id, cursors)
    return outer


def look(parts: Mapping[str, Part], vectors: Vectors, groups: Sequence[Group]) -> Steps[list[Found]]:
    """What the followers of each group lack in any shard."""
    found: list[Found] = [Found(group.standing, pull=True) for group in groups]
    several = {
        place: group.standing.parts
        for place, group in enumerate(groups)
        if isinstance(group.standing, ShardedStanding)
        and group.standing.parts is not None
        and group.standing.access is not None
        and not group.standing.more
    }
    told: dict[str, list[Found]] = {}
    for name, part in parts.items():
        inner = [groups[place]._replace(standing=standings[name]) for place, standings in several.items()]
        told[name] = yield from of_shard(name, part.submit_look(inner))
    wanted: dict[tuple[object, ...], Wanted] = {}
    lacking: list[tuple[int, ShardedStanding, tuple[object, ...], dict[str, Found]]] = []
    for turn, place in enumerate(several):
        group, each = groups[place], {name: told[name][turn] for name in parts}
        after = _joined(group.standing, group.standing.cursor, {name: one.standing for name, one in each.items()})
        if any(one.pull for one in each.values()):
            found[place] = Found(replace(after, access=None), pull=True)
        elif not any(one.page is not None or any(one.own.values()) for one in each.values()):
            found[place] = Found(after)
        else:
            goal = {name: one.standing.cursor for name, one in each.items()}
            key: tuple[object, ...] = tuple(goal.items())
            above = max(after.cursor, wanted[key].above if key in wanted else 0)
            wanted[key] = Wanted(above, goal)
            lacking.append((place, after, key, each))
    if lacking:
        shared: list[int] = yield vectors.submit_share(list(wanted.values()))
        cursors = dict(zip(wanted, shared, strict=True))
        known: dict[tuple[object, ...], ShardedStanding] = {}
        for place, standing, goal_of, each in lacking:
            after = replace(standing, cursor=cursors[goal_of])
            found[place] = _told(known.setdefault(after.value(), after), groups[place], each)
    return found


def _told(after: ShardedStanding, group: Group, each: Mapping[str, Found]) -> Found:
    """What a group is told, of what was found in each shard."""
    apart = {client_id for one in each.values() for client_id in one.own}
    own = {
        client_id: _page([one.own.get(client_id, one.page) for one in each.values()], after.cursor)
        for client_id in apart & group.clients
    }
    remembered = frozenset().union(*(one.remembered for one in each.values()))
    return Found(after, _page([one.page for one in each.values()], after.cursor), own, remembered)


def _page(pages: Sequence[SyncResponse | None], cursor: int) -> SyncResponse | None:
    deltas: list[RowDelta] = [delta for page in pages if page is not None for delta in page.deltas]
    return SyncResponse(tuple(deltas), cursor) if deltas else None


def _joined(standing: Standing, cursor: int, parts: Mapping[str, Standing]) -> ShardedStanding:
    knows = all(part.access is not None for part in parts.values())
    claims = next((part.access.claims for part in parts.values() if part.access is not None), {})
    interests = [standing.interest, *(part.interest for part in parts.values())]
    return ShardedStanding(
        cursor=cursor,
        limit=standing.limit,
        more=standing.more,
        access=Access(claims, frozenset(), 0) if knows else None,
        knows_resync=standing.knows_resync,
        unplaced=standing.unplaced,
        interest=Interest(
            frozenset().union(*(each.buckets for each in interests)),
            frozenset().union(*(each.prefixes for each in interests)),
        ),
        parts=parts,
    )


def _in_shard(name: str, cursor: int, standing: Standing) -> Standing:
    return Standing(
        cursor,
        standing.limit,
        interest=_interest_in(name, standing),
        knows_resync=standing.knows_resync,
        unplaced=standing.unplaced,
    )


def _interest_in(name: str, standing: Standing) -> Interest:
    """What concerned a follower in one shard before."""
    known = standing.parts if isinstance(standing, ShardedStanding) else None
    return known[name].interest if known is not None and name in known else standing.interest
