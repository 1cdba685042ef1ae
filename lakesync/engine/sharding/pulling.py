"""Reads pages over all shards: one shard after another, until the page is full. `ShardedGateway` calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from lakesync.engine.peek import NOW, PeekPage, no_cursor
from lakesync.engine.pulling import PullRequest
from lakesync.engine.pushing import NEVER_PULLED
from lakesync.engine.sharding.cursors import UNKNOWN_CURSOR
from lakesync.engine.sharding.shard_gateway import ShardGateway
from lakesync.engine.sharding.steps import Steps, of_shard
from lakesync.engine.sharding.vectors import Place, Vectors
from lakesync.engine.source_pages import with_deletes
from lakesync.feed import MAX_PAGE_BYTES
from lakesync.model.errors import ResyncRequiredError
from lakesync.model.types import Claims, RowDelta, SyncPage
from lakesync.wire.encoded import EncodedDeltas, encoded_size


def start(parts: Mapping[str, ShardGateway], client_id: str, place: Place) -> Steps[dict[str, int]]:
    """Return the cursor in each shard of a client at `place`.

    Args:
        parts: the gateway of each shard, by shard name.
        client_id: the client's id.
        place: its resolved cursor.
    """
    if place.vector is not None:
        known = dict(place.vector.parts)
        return {name: known.get(name, 0) for name in parts}
    if place.since != NEVER_PULLED:
        return dict.fromkeys(parts, UNKNOWN_CURSOR)
    # it pushed and never pulled: it wrote to shards that know it, and has nothing of others
    cursors = {}
    for name, part in parts.items():
        known_there = yield from of_shard(name, part.submit_knows(client_id))
        cursors[name] = NEVER_PULLED if known_there else 0
    return cursors


def pull(parts: Mapping[str, ShardGateway], vectors: Vectors, asked: PullRequest) -> Steps[SyncPage]:
    """Return a page of what the client lacks in any shard.

    The shard that filled the last page is read last, so that a busy one does not delay the others.

    Args:
        parts: the gateway of each shard, by shard name.
        vectors: resolves and creates client cursors.
        asked: the pull.

    Raises:
        ResyncRequiredError: the cursor is unknown, and the client handles that.
        StagingUnavailableError: a shard cannot be reached.
    """
    request = asked.pull
    place: Place = yield vectors.submit_place(request.client_id, request.since_hlc)
    unknown = place.vector is None and place.since != NEVER_PULLED
    if unknown and asked.resync_refused:
        raise ResyncRequiredError(
            f"the cursor {request.since_hlc} is not one of this gateway's: "
            "pull again from 0, keeping what was not pushed yet"
        )
    cursors = yield from start(parts, request.client_id, place)
    next_shard = place.vector.next_shard if place.vector is not None else ""
    pages: list[Sequence[RowDelta]] = []
    left, room, more = request.max_deltas, asked.max_bytes, False
    names = list(parts)
    first = names.index(next_shard) if next_shard in parts else 0
    for name in names[first:] + names[:first]:
        there = replace(request, since_hlc=cursors[name], max_deltas=max(left, 1))
        if left <= 0 or room <= 0:
            begins = asked.confirmed and cursors[name] in (0, UNKNOWN_CURSOR)
            look = parts[name].submit_begin if begins else parts[name].submit_lacks
            lacking = look(there, asked.claims, resync_refused=asked.resync_refused, confirmed=asked.confirmed)
            lacks = yield from of_shard(name, lacking)
            more = more or lacks
            continue
        page = yield from of_shard(name, parts[name].submit_share(asked, there, room))
        cursors[name] = page.server_hlc
        if page.deltas:
            pages.append(page.deltas)
            left, room = left - len(page.deltas), room - encoded_size(page.deltas)
        if left <= 0 or room <= 0:
            next_shard = names[(names.index(name) + 1) % len(names)]
        more = more or page.has_more
    deltas = joined(pages)
    keeps_cursor = asked.confirmed and not place.shared  # the client's own cursor, which must not move
    if keeps_cursor and not deltas and not unknown and place.since > NEVER_PULLED and place.asked == place.since:
        return SyncPage((), request.since_hlc, more)  # nothing was sent, so the cursor still means the same
    if max(cursors.values()) <= NEVER_PULLED:
        return SyncPage(deltas, max(place.since, *cursors.values()), more)
    came_from = place if asked.confirmed else None
    cursor: int = yield vectors.submit_issue(request.client_id, cursors, next_shard, came_from, place.since)
    if place.record is not None and place.record.sources:
        deltas = with_deletes(deltas, place.record)
    return SyncPage(deltas, cursor, more)


def joined(pages: Sequence[Sequence[RowDelta]]) -> Sequence[RowDelta]:
    """Return the deltas of several pages as one sequence, encoded if all of them are."""
    if len(pages) == 1:
        return pages[0]
    encoded = [page for page in pages if isinstance(page, EncodedDeltas)]
    if pages and len(encoded) == len(pages):
        return EncodedDeltas([page.text for page in encoded if page], sum(len(page) for page in encoded))
    return [delta for page in pages for delta in page]


def peek(parts: Mapping[str, ShardGateway], claims: Claims, since: str | None, limit: int) -> Steps[PeekPage]:
    """Like `engine.peek.peek`: reads what claims may see; a cursor consists of one cursor per shard.

    Args:
        parts: the gateway of each shard, by shard name.
        claims: the verified claims of a client's token.
        since: cursor of the page before; None for all rows; `now` for later changes only.
        limit: the most deltas to return.

    Raises:
        StagingUnavailableError: a shard cannot be reached.
    """
    first = since if since == NOW else None
    places = {} if since is None or since == NOW else _places(since)
    pages: list[Sequence[RowDelta]] = []
    left, room, more = limit, MAX_PAGE_BYTES, False
    for name, part in parts.items():
        if left <= 0 or room <= 0:
            more = True  # possibly; the next page shows it
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
