"""The lag of a client: the age of the oldest change by others that the client may see and was not sent.

`SyncGateway.submit_unsent` calls `oldest_unsent`. The console, `lakesync clients`, `/admin/metrics`, `/metrics` and the
explain route show the result. The lag is computed from the page that a pull of the client would return, so that it
agrees with what the client is sent next.

- A *gateway* is one app's stream of changes. A *shard* is a store with some of its tables.
- Changes are *deltas*: INSERTs, UPDATEs or DELETEs of rows. An *arrival* is the gateway's timestamp of a commit, by a
  hybrid logical clock (HLC).
- A *bucket key* names a bucket of the sync rules with the claims that may see it. The *feed* of a key has its rows in
  the order of their latest arrivals. An *entry* is a row's history under one key.
- A *cursor* is the number that a client stores and sends to continue. It determines the client's *position* in the
  feed. A position has a *base*: the latest arrival at which the client certainly had everything that it could see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lakesync.engine.active_rules import RulesCache
from lakesync.engine.inspection.client_position import TrackedCursor, claims_of, position_of
from lakesync.engine.inspection.explain import next_pull
from lakesync.feed.client_state import current_record
from lakesync.feed.positions import Position
from lakesync.feed.pull import group_by_row, pull_page
from lakesync.model.types import RowDelta, RowKey
from lakesync.staging.records import DELETED, ClientRecord, Entry, Range, StoredRow
from lakesync.staging.store.feed import ClientView, FeedView

_MAX_ROWS = 32
"""The most unsent rows that a query reads; the oldest change is the oldest one of these."""
_MAX_READS = 20
"""The most reads of the feed in one query: about 600 entries."""


class ScanProgress(NamedTuple):
    """How far the feed was read for a client. The next query continues there if the client was sent nothing since.

    One query reads only a part of the feed, so that many clients can be queried often.
    """

    start: tuple[object, ...]
    """The client's position, rules and bucket keys when the scan began."""
    read_up_to: int
    """Arrival up to which the feed was read."""
    rescan: tuple[Range, ...]
    """Earlier ranges of the feed that are still to be read."""


class Unsent(NamedTuple):
    """The oldest unsent change of a client."""

    since: int
    """The change's arrival (the gateway's own HLC timestamp of its push); 0 if everything was sent."""
    row: RowKey | None = None
    """The changed row; None if everything was sent, or over several shards."""
    progress: ScanProgress | None = None
    """Where the next query continues."""
    is_complete: bool = True
    """Whether the feed was read to its end, or to unsent rows; False if the next query has to continue."""
    shards: Mapping[str, Unsent] = {}
    """The result of each shard, by shard name; empty without sharding."""


class LagQuery(NamedTuple):
    """A client whose lag is wanted."""

    client_id: str
    tracked: TrackedCursor
    """What this process knows of the client's cursor."""
    before: Unsent | None = None
    """The result of the previous query, from which this one continues; None to read from the client's position."""


def oldest_unsent(view: ClientView, query: LagQuery, rules: RulesCache) -> Unsent | None:
    """Return the oldest change by others that a client may see and was not sent.

    A query reads the next part of the feed that the client was not sent, as a pull does. If it finds nothing that the
    client lacks, the next query continues there. A row that the client lacks counts from when it became visible to it.
    A row that the client has counts from the oldest column value that it lacks. Only the newest value of a column is
    stored, so a value that was overwritten counts from the newer one, unless the previous query already found the row.

    Args:
        view: a consistent read of the gateway's store.
        query: the client, with the result of the previous query.
        rules: the gateway's cache of compiled sync rules.

    Returns:
        The change, or an `Unsent` with `since` 0 if none was found; None if the client never pulled.
    """
    client_id, tracked, before = query
    record = view.client(client_id)
    if tracked.cursor is None and tracked.state is None and not _has_pulled(record):
        return None
    _, claims = claims_of(record, client_id, tracked)
    access = rules.access(view, claims)
    known = current_record(record, view, access.keys)
    position = position_of(view, known, client_id, access, rules, tracked)
    start = (position.base, position.read_up_to, position.rescan, access.rules_version, access.keys)
    resumed = position
    if before is not None and before.progress is not None and before.progress.start == start:
        resumed = position._replace(read_up_to=before.progress.read_up_to, rescan=before.progress.rescan)
    page = pull_page(view, client_id, resumed, access, _MAX_ROWS, max_reads=_MAX_READS)
    lacking = _lacking(view, client_id, page.deltas, position)
    if not lacking:
        return Unsent(0, progress=ScanProgress(start, page.read_up_to, page.rescan), is_complete=not page.has_more)
    # the next query reads this part again, because the client still lacks these rows
    progress = ScanProgress(start, resumed.read_up_to, resumed.rescan)
    since, row = min(lacking)
    # a row that the previous query found, and that the next pull still sends, keeps its time even if it was overwritten
    if (
        before is not None
        and before.row is not None
        and before.since < since
        and next_pull(view, before.row, client_id, position, access)
    ):
        return Unsent(before.since, before.row, progress)
    return Unsent(since, row, progress)


def _has_pulled(record: ClientRecord | None) -> bool:
    """Return whether the client ever pulled: it was sent deltas, or the cursor of a client that lacks nothing."""
    return record is not None and (
        record.last_sent_cursor > 0 or any(scope.has_complete_cursor for scope in record.scopes)
    )


def _lacking(
    view: FeedView, client_id: str, deltas: Sequence[RowDelta], position: Position
) -> list[tuple[int, RowKey]]:
    """Return, for each row of a page, the arrival since which the client has lacked a change of the row.

    Rows that the client deleted itself are skipped, although a pull may return the DELETE once more.

    Args:
        view: a consistent read of the gateway's store.
        client_id: the client's id.
        deltas: the page's deltas.
        position: the client's position.
    """
    deltas_of = group_by_row(deltas)
    rows = view.rows(deltas_of)
    # the bucket keys that concern the client: those active at its base, those active now, and those it was sent between
    keys = sorted({*position.old_keys, *position.new_keys, *position.sent})
    entries = group_by_row(view.entries_of(deltas_of, keys))
    return [
        (_oldest_lacking_arrival(rows[key], entries[key], deltas_of_row, position), key)
        for key, deltas_of_row in deltas_of.items()
        if deltas_of_row[-1].op != "DELETE" or not _deleted_itself(rows[key], entries[key], client_id)
    ]


def _deleted_itself(row: StoredRow, entries: Sequence[Entry], client_id: str) -> bool:
    """Return whether the client itself deleted the row last."""
    writer = row.writers.get(client_id)
    # `DELETED`: the client's last delta for the row was a DELETE. The row has left no bucket since.
    return writer is not None and writer.own_copy == DELETED and all(entry.left <= writer.latest for entry in entries)


def _oldest_lacking_arrival(
    row: StoredRow, entries: Sequence[Entry], deltas: Sequence[RowDelta], position: Position
) -> int:
    """Return the arrival of the oldest change of a row that the client lacks.

    Args:
        row: the stored row.
        entries: its feed entries: its history under each bucket key that concerns the client.
        deltas: the deltas that a pull would return for the row.
        position: the client's position.
    """
    if deltas[-1].op == "DELETE":
        left = [entry.left for entry in entries if entry.left > position.base]
        return max(left, default=row.arrival)
    columns = [cell.column for delta in deltas for cell in delta.columns]
    touched = row.state.touched  # column → arrival of its newest value
    changed = [touched[name] for name in columns if touched.get(name, 0) > position.base]
    joined = [entry.since for entry in entries if entry.inside and entry.since > position.base]
    lacks_row = deltas[0].op != "UPDATE"  # otherwise the client has the row, and lacks some columns
    # a missing row counts from when it joined a bucket, or else from its change; missing columns the other way round
    arrivals = joined or changed if lacks_row else changed or joined
    return min(arrivals, default=row.arrival)
