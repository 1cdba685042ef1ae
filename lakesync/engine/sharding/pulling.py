"""Reads pages over all shards: one shard after another, until the page is full.

A *shard* is a staging store (a database that pushes are committed to) with some of the tables of a gateway, one app's
stream of changes. It has a *feed* of its own: its rows in order of their latest change. The *claims* (fields) of a
client's token decide which rows it sees. The client pulls *deltas* (changes of rows) from its *cursor*. `Vectors` looks
up the cursor's *vector*, a cursor in each shard, and stores new ones. Three cursors are special:

- 0: the client starts, and has nothing of the shard.
- `NEVER_PULLED` (1): the client has pushed to the shard, and was sent nothing of it.
- `UNKNOWN_CURSOR`: what the client has of the shard is unknown. The shard sends it every row as DELETE and INSERT.

All real cursors are higher. `ShardedGateway` runs `pull` and `peek`; `sharding.subscriptions` calls `shard_cursors`.
These are generators (`engine.futures.Steps`) that yield futures and get their results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from lakesync.engine.futures import Steps
from lakesync.engine.inspection.peek import NOW, PeekPage, invalid_cursor
from lakesync.engine.page_reading import PullRequest
from lakesync.engine.sharding.shard_gateway import ShardGateway, of_shard
from lakesync.engine.sharding.vectors import UNKNOWN_CURSOR, IssuedCursor, ResolvedCursor, Vectors
from lakesync.engine.source_reading import with_deletes
from lakesync.feed.positions import NEVER_PULLED
from lakesync.feed.pull import MAX_PAGE_BYTES
from lakesync.model.errors import ResyncRequiredError
from lakesync.model.types import Claims, RowDelta, SyncPage
from lakesync.wire.encoded import EncodedDeltas, encoded_size


def shard_cursors(shards: Mapping[str, ShardGateway], client_id: str, sent: ResolvedCursor) -> Steps[dict[str, int]]:
    """Return the cursor in each shard that a client's cursor means, by shard name.

    Args:
        shards: the gateway of each shard, by shard name.
        client_id: the client's id.
        sent: the cursor that the client sent, as `Vectors.submit_resolve` returned it.

    Raises:
        StagingUnavailableError: a shard cannot be reached.
    """
    if sent.vector is not None:  # cursor 0 has an empty vector
        known = dict(sent.vector.parts)
        return {name: known.get(name, 0) for name in shards}  # a shard that was added later is missing
    if sent.feed_cursor != NEVER_PULLED:
        return dict.fromkeys(shards, UNKNOWN_CURSOR)
    # The client has pushed and never pulled. A shard that has a record of the client has its writes, so that the client
    # needs everything but these. It needs all rows of the other shards.
    cursors = {}
    for name, part in shards.items():
        has_record = yield from of_shard(name, part.submit_has_record(client_id))
        cursors[name] = NEVER_PULLED if has_record else 0
    return cursors


def pull(shards: Mapping[str, ShardGateway], vectors: Vectors, request: PullRequest) -> Steps[SyncPage]:
    """Return a page of what the client lacks in any shard.

    Args:
        shards: the gateway of each shard, by shard name.
        vectors: looks up and creates client cursors.
        request: the pull, which passed the checks that need no store, with a cursor of the sharded gateway.

    Returns:
        The page, with a cursor of the sharded gateway.

    Raises:
        ResyncRequiredError: the cursor is unknown, and `request.knows_resync` is true.
        StagingUnavailableError: a shard cannot be reached.
    """
    client_id, since = request.pull.client_id, request.pull.since_hlc
    # `requested`: the cursor as it was sent; `feed_cursor`: the one of the gateway's own feed that it means, which
    # differs after a page of a source (a database beside the feed)
    sent: ResolvedCursor = yield vectors.submit_resolve(client_id, since)
    is_unknown = sent.vector is None and sent.feed_cursor != NEVER_PULLED
    if is_unknown and request.knows_resync:
        raise ResyncRequiredError(
            f"the cursor {since} is not one of this gateway's: pull again from 0, keeping what was not pushed yet"
        )
    cursors = yield from shard_cursors(shards, client_id, sent)
    read = yield from _read_shards(shards, request, cursors, sent.vector.next_shard if sent.vector is not None else "")
    # Whether the client sent the cursor itself, and it is one that was made for this client and this feed: neither that
    # of a broadcast to many clients nor that of a source's page. Only such a cursor may be returned unchanged.
    is_own_cursor = request.confirmed and not sent.is_broadcast and sent.requested == sent.feed_cursor
    if is_own_cursor and not read.deltas and not is_unknown and sent.feed_cursor > NEVER_PULLED:
        # No shard's page had deltas. A shard's page with more to follow has deltas, so the client lacks nothing that
        # the cursors in the shards do not say already, and its cursor still means the same.
        return SyncPage((), since, read.has_more)
    if max(read.cursors.values()) <= NEVER_PULLED:  # no shard has a real cursor for the client yet: there is no vector
        return SyncPage(read.deltas, max(sent.feed_cursor, *read.cursors.values()), read.has_more)
    confirms = sent if request.confirmed else None
    issued: IssuedCursor = yield vectors.submit_issue(
        client_id, request.claims, read.cursors, read.next_shard, confirms, above=sent.feed_cursor
    )
    deltas = read.deltas
    # the client may have the same rows from a source: put a DELETE before their INSERTs
    if issued.record.sources:
        deltas = with_deletes(deltas, issued.record)
    return SyncPage(deltas, issued.cursor, read.has_more)


def joined(pages: Sequence[Sequence[RowDelta]]) -> Sequence[RowDelta]:
    """Return the deltas of several pages as one sequence; it stays encoded as JSON if all pages are."""
    if len(pages) == 1:
        return pages[0]
    encoded = [page for page in pages if isinstance(page, EncodedDeltas)]
    if pages and len(encoded) == len(pages):
        return EncodedDeltas([part for page in encoded for part in page.parts], sum(len(page) for page in encoded))
    return [delta for page in pages for delta in page]


def peek(shards: Mapping[str, ShardGateway], claims: Claims, since: str | None, limit: int) -> Steps[PeekPage]:
    """Read a page of what claims may see, without a client's record; see `inspection.peek`.

    The cursor is text with one cursor per shard: `SHARD=CURSOR,SHARD=CURSOR`. It names every shard, in the order in
    which the next page reads them: first those that this page did not reach, last the one that filled it, so that a
    busy shard does not delay the others.

    Args:
        shards: the gateway of each shard, by shard name.
        claims: the verified claims of a client's token.
        since: the cursor that the previous page returned; None for all rows; `now` for later changes only.
        limit: deltas at which the page is full.

    Raises:
        ValidationError: `since` is not a cursor that `peek` returned.
        ResyncRequiredError: the shards or the rules changed since the cursor was returned.
        StagingUnavailableError: a shard cannot be reached.
    """
    cursors = dict.fromkeys(shards, since) if since is None or since == NOW else _split_cursor(since)
    if cursors.keys() != shards.keys():
        raise ResyncRequiredError(
            f"the shards changed since the cursor {str(since)[:60]!r} was returned: read without one"
        )
    unread = list(cursors)
    pages: list[Sequence[RowDelta]] = []
    deltas_left, bytes_left, more = limit, MAX_PAGE_BYTES, False
    while unread and deltas_left > 0 and bytes_left > 0:
        name = unread.pop(0)
        part_page = shards[name].submit_peek_part(claims, cursors.pop(name), deltas_left, bytes_left)
        page = yield from of_shard(name, part_page)
        cursors[name], more = page.cursor, more or page.has_more  # at the end now: the next page reads it last
        if page.deltas:
            pages.append(page.deltas)
            deltas_left, bytes_left = deltas_left - len(page.deltas), bytes_left - encoded_size(page.deltas)
    more = more or bool(unread)  # possibly; the next page shows it
    return PeekPage(joined(pages), ",".join(f"{name}={cursor or ''}" for name, cursor in cursors.items()), more)


class _ShardPages(NamedTuple):
    """The parts of one page that were read from all shards."""

    deltas: Sequence[RowDelta]
    """The deltas of all parts."""
    cursors: Mapping[str, int]
    """The client's cursor in each shard after the page, by shard name."""
    next_shard: str
    """The shard at which the next page begins: the one after that which filled this page. If none did, the shard at
    which this page began."""
    has_more: bool
    """Whether any shard has more for the client."""


def _read_shards(
    shards: Mapping[str, ShardGateway], request: PullRequest, cursors: Mapping[str, int], first_shard: str
) -> Steps[_ShardPages]:
    """Read one shard after another until the page is full, and check whether the others have anything.

    Reading begins at the shard after the one that filled the last page, so that a busy shard does not delay the others.

    Args:
        shards: the gateway of each shard, by shard name.
        request: the pull, with the limits of the page.
        cursors: the client's cursor in each shard, by shard name.
        first_shard: the shard at which the page begins; empty for any.
    """
    names = list(shards)
    first = names.index(first_shard) if first_shard in shards else 0
    pages: list[Sequence[RowDelta]] = []
    after, next_shard, has_more = dict(cursors), first_shard, False
    deltas_left, bytes_left = request.pull.max_deltas, request.max_bytes
    for name in names[first:] + names[:first]:
        is_full = deltas_left <= 0 or bytes_left <= 0
        # of a full page's other shards, one row shows whether they have anything
        shard_request = request._replace(
            pull=replace(request.pull, since_hlc=cursors[name], max_deltas=1 if is_full else deltas_left),
            max_bytes=max(1, bytes_left),
        )
        if is_full:
            has_changes = yield from _has_changes(name, shards[name], shard_request)
            has_more = has_more or has_changes
            continue
        page = yield from of_shard(name, shards[name].submit_page(shard_request))
        after[name], has_more = page.server_hlc, has_more or page.has_more
        if page.deltas:
            pages.append(page.deltas)
            deltas_left, bytes_left = deltas_left - len(page.deltas), bytes_left - encoded_size(page.deltas)
        if deltas_left <= 0 or bytes_left <= 0:
            next_shard = names[(names.index(name) + 1) % len(names)]
    return _ShardPages(joined(pages), after, next_shard, has_more)


def _has_changes(name: str, part: ShardGateway, request: PullRequest) -> Steps[bool]:
    """Return whether a shard has anything for the client. The page is full, so nothing is sent.

    If the client starts again in this shard, that is recorded. Otherwise, the response to a push before the client's
    next page would be computed from the position that the client had in this shard before.

    Args:
        name: the shard's name.
        part: the shard's gateway.
        request: the pull of this shard.
    """
    restarts = request.confirmed and request.pull.since_hlc in (0, UNKNOWN_CURSOR)
    submit = part.submit_restart if restarts else part.submit_has_changes
    has_changes: bool = yield from of_shard(name, submit(request))
    return has_changes


def _split_cursor(since: str) -> dict[str, str | None]:
    """Return the cursor of each shard in a cursor of `peek`; None for a shard that no page has read yet.

    Raises:
        ValidationError: `since` has another form.
    """
    parts = [each.partition("=") for each in since.split(",")]
    if not all(equals for _, equals, _ in parts):
        raise invalid_cursor(since)
    return {name: cursor or None for name, _, cursor in parts}
