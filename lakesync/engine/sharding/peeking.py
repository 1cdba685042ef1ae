"""Reads what claims may see in all shards: one after another, until the page is full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lakesync.engine.peek import NOW, PeekPage, no_cursor
from lakesync.engine.sharding.part import Part
from lakesync.engine.sharding.pulling import joined
from lakesync.engine.sharding.steps import Steps, of_shard
from lakesync.feed import MAX_PAGE_BYTES
from lakesync.model.types import Claims, RowDelta
from lakesync.wire.encoded import encoded_size


def peek(parts: Mapping[str, Part], claims: Claims, since: str | None, limit: int) -> Steps[PeekPage]:
    """Like `engine.peek.peek`; a cursor consists of one cursor per shard.

    Args:
        parts: by shard.
        claims: a client's.
        since: cursor of the page before; None for all rows; `now` for later changes only.
        limit: most deltas.

    Raises:
        StagingUnavailableError: a shard cannot be reached.
    """
    first = since if since == NOW else None
    places = {} if since is None or since == NOW else _places(since)
    pages: list[Sequence[RowDelta]] = []
    left, room, more = limit, MAX_PAGE_BYTES, False
    for name, part in parts.items():
        if left <= 0 or room <= 0:
            more = True  # perhaps: the next page shows it
            break
        page = yield from of_shard(name, part.submit_peek(claims, places.get(name, first), left))
        places[name], more = page.cursor, more or page.has_more
        if page.deltas:
            pages.append(page.deltas)
            left, room = left - len(page.deltas), room - encoded_size(page.deltas)
    return PeekPage(joined(pages), ",".join(f"{name}={place}" for name, place in places.items()), more)


def _places(since: str) -> dict[str, str]:
    found = [each.partition("=") for each in since.split(",")]
    if not all(equals for _, equals, _ in found):
        raise no_cursor(since)
    return {name: place for name, _, place in found}
