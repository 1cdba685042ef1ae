"""Clients that are connected, told of what is new in any shard.

No page is made for several of them: their cursors are vectors of their own. Each that lacks something is pulled for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lakesync.engine.following import Found, Group, Standing
from lakesync.engine.pushing import NEVER_PULLED
from lakesync.engine.sharding.part import Part
from lakesync.engine.sharding.pulling import start
from lakesync.engine.sharding.steps import Steps, of_shard
from lakesync.engine.sharding.vectors import Place, Vectors
from lakesync.exceptions import ResyncRequiredError
from lakesync.feed.positions import Access
from lakesync.types import Claims, SyncPull


def follow(newcomers: Sequence[tuple[str, Claims, Standing]]) -> Steps[list[Standing]]:
    """A standing for each newcomer alone, which knows its claims.

    Who found nothing has nothing but what it writes itself, so it stands where one does that never pulled.
    """
    yield from ()
    return [
        replace(standing, cursor=max(standing.cursor, NEVER_PULLED), access=Access(claims, frozenset(), 0))
        for _, claims, standing in newcomers
    ]


def look(parts: Mapping[str, Part], vectors: Vectors, groups: Sequence[Group]) -> Steps[list[Found]]:
    """Whether each lacks anything, and what concerns it from now on."""
    found: list[Found] = []
    for group in groups:
        told = yield from _look_at(parts, vectors, group)
        found.append(told)
    return found


def _look_at(parts: Mapping[str, Part], vectors: Vectors, group: Group) -> Steps[Found]:
    standing = group.standing
    access = standing.access
    if access is None or standing.more:
        return Found(standing, pull=True)
    (client_id,) = group.clients
    place: Place = yield vectors.submit_place(client_id, standing.cursor)
    cursors = yield from start(parts, client_id, place)
    interest, lacks = standing.interest, False
    for name, part in parts.items():
        pull = SyncPull(client_id, cursors[name])
        try:
            seen = yield from of_shard(name, part.submit_glance(pull, access.claims, interest))
        except ResyncRequiredError:
            return Found(standing, pull=True)
        lacks, interest = lacks or seen[0], seen[1]
    return Found(replace(standing, interest=interest), pull=lacks)
