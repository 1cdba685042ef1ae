"""Explains why a client has a row or lacks it, from the stored rules, rows and client records. It stores nothing.

`SyncGateway.submit_explain` calls `explain` for the admin route behind `lakesync explain`; `inspection.lag` calls
`next_pull`. The sync rules put rows into *buckets*, and a client sees the rows in the buckets that its token's *claims*
allow. A *bucket key* names a bucket with the claims that may see it. The client's *record* says what the client was
sent; it belongs to an *epoch*, which ends when the store is rebuilt. A *gateway* is one app's stream of changes. Its
*feed* has the rows in the order of their latest *arrivals* (the gateway's own timestamps of commits), and a client's
*position* says up to where the client was sent it. A *cursor* is the number from which the client pulls next.
`inspection.explanation` has the result, and makes sentences of it.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from lakesync.engine.active_rules import RulesCache
from lakesync.engine.inspection.client_position import TrackedCursor, claims_of, position_at, position_of
from lakesync.engine.inspection.explanation import (
    ExplainedBucket,
    ExplainedClient,
    ExplainedColumn,
    ExplainedFilter,
    ExplainedRow,
    Explanation,
    Verdict,
    bucket_reasons,
    reasons_of,
)
from lakesync.feed.client_state import current_record
from lakesync.feed.positions import Position
from lakesync.feed.pull import pull_page
from lakesync.feed.scopes import Access
from lakesync.model.hlc import wall_of
from lakesync.model.types import Claims, Op, RowKey
from lakesync.rules.model import Bucket, holds, operands_of, text_of_raw
from lakesync.staging.records import ClientRecord, Entry, GatewayConfig, StoredRow
from lakesync.staging.store import View
from lakesync.staging.store.feed import ClientView, FeedView

_NO_LIMIT = 1 << 30
"""A page limit that one row never reaches."""


def explain(
    view: View,
    client_id: str,
    table: str,
    row_id: str,
    claims: Claims | None,
    rules: RulesCache,
    tracked: TrackedCursor = TrackedCursor(),  # noqa: B008 immutable
) -> Explanation:
    """Explain why a client has a row or lacks it.

    Args:
        view: a consistent read of the gateway's store.
        client_id: the client's id.
        table: the row's table.
        row_id: the row's id.
        claims: the client's claims; None uses those of its last pull, or its client id alone.
        rules: the gateway's cache of compiled sync rules.
        tracked: what this process knows of the client; its WebSocket may be ahead of the stored record.

    Returns:
        The explanation, also for a row or client that the gateway does not know.
    """
    record = view.client(client_id)
    source, effective_claims = claims_of(record, client_id, tracked, claims)
    access = rules.access(view, effective_claims)
    key = (table, row_id)
    row = view.rows([key]).get(key)
    buckets = tuple(_bucket(bucket, table, row, effective_claims) for bucket in _buckets(view.config))
    shown = row is not None and row.state.visible and any(stored in access.keys for stored in row.keys)
    valid_record = current_record(record, view, access.keys)
    position = position_of(view, valid_record, client_id, access, rules, tracked)
    pending_ops = next_pull(view, key, client_id, position, access)
    verdict = _verdict(row, pending_ops, shown=shown)
    is_current = record is not None and record.epoch == view.epoch
    client = ExplainedClient(
        client_id=client_id,
        known=record is not None,
        current=is_current,
        last_seen_ms=record.last_seen_ms if record is not None else None,
        sent_hlc=record.last_sent_cursor if record is not None else None,
        newest_hlc=view.arrival,
        mid_pages=position.read_up_to not in (0, position.base),  # neither at the start nor at a cursor with everything
        followed_elsewhere=record is not None and is_current and record.gets_broadcasts and tracked.cursor is None,
        claims=effective_claims,
        claims_from=source,
        bucket_keys=tuple(sorted(access.keys)),
    )
    explained = _row(row, rules, view.config, client_id)
    erased = max((each.requested_ms for each in view.erasures() if (each.table, each.row_id) == key), default=None)
    unconfirmed = () if pending_ops else _unconfirmed(view, key, client_id, valid_record, access, tracked)
    explanation = Explanation(verdict, (), explained, client, buckets, pending_ops, unconfirmed, erased)
    return replace(explanation, reasons=tuple(reasons_of(explanation, key, view.config.schemas)))


def next_pull(view: FeedView, key: RowKey, client_id: str, position: Position, access: Access) -> tuple[Op, ...]:
    """Return the operations on one row that the client's next pull contains, in order; empty if none is left to send.

    Args:
        view: a consistent read of the gateway's store.
        key: the row's table and id.
        client_id: the client that pulls.
        position: the position from which the client pulls.
        access: the claims and bucket keys that decide what the client may see.
    """
    page = pull_page(_OneRowView(view, key), client_id, position, access, _NO_LIMIT)
    return tuple(delta.op for delta in page.deltas)


def _unconfirmed(
    view: ClientView, key: RowKey, client_id: str, record: ClientRecord | None, access: Access, tracked: TrackedCursor
) -> tuple[Op, ...]:
    """Return the operations on the row that were sent, and that no later request of the client confirms yet.

    They are those that a pull from the cursor of the client's last request would return.

    Args:
        view: a consistent read of the gateway's store.
        key: the row's table and id.
        client_id: the client's id.
        record: the client's record in this epoch; None if it has none.
        access: the claims and bucket keys that decide what the client may see.
        tracked: what this process knows of the client. A connected client confirms everything that it was sent.
    """
    if record is None or tracked.state is not None:
        return ()
    confirmed = record.confirmed_cursor if tracked.confirmed is None else tracked.confirmed
    return next_pull(view, key, client_id, position_at(view, record, client_id, confirmed, access, tracked), access)


class _OneRowView:
    """A `FeedView` of one row only, so that `pull_page` computes what a pull returns of this row.

    So an explanation agrees with what the client is really sent, and reads no other rows. An *entry* is the row's
    history under one bucket key: when the row joined the bucket, left it, and last changed in it.
    """

    def __init__(self, view: FeedView, key: RowKey) -> None:
        self._view = view
        self._key = key
        self.arrival = view.arrival
        self.rows = view.rows
        self.entries_of = view.entries_of

    def entries_after(self, buckets: Collection[str], after: int, limit: int) -> list[Entry]:
        """Return the row's entries that changed later than the arrival `after`, oldest first."""
        entries = (entry for entry in self._view.entries_of([self._key], buckets) if entry.changed > after)
        return sorted(entries, key=lambda entry: entry.changed)[:limit]

    def changed_after(self, buckets: Collection[str], after: int) -> bool:
        """Return whether the row has an entry that changed later than the arrival `after`."""
        return bool(self.entries_after(buckets, after, 1))

    def read_range(self, *_: object) -> None:
        """Return None: ranges are encoded pages of many rows."""
        return


def _verdict(row: StoredRow | None, pending_ops: tuple[Op, ...], *, shown: bool) -> Verdict:
    """Return the verdict; `shown` says whether the client may see the row by its stored bucket keys."""
    if pending_ops:
        return "waiting"
    if row is None:
        return "absent"
    if not row.state.visible:
        return "deleted"
    return "delivered" if shown else "hidden"


def _buckets(config: GatewayConfig) -> tuple[Bucket, ...]:
    """Return the buckets of the active rules; empty without rules."""
    return config.rules.buckets if config.rules is not None else ()


def _bucket(bucket: Bucket, table: str, row: StoredRow | None, claims: Claims) -> ExplainedBucket:
    """Evaluate one bucket of the rules for a row and a client's claims.

    Args:
        bucket: the bucket.
        table: the row's table.
        row: the stored row; None if it does not exist, so that it fails every filter.
        claims: the client's claims.
    """
    values = row.state.values() if row is not None else {}
    filters = []
    for condition in bucket.filters:
        value = values.get(condition.column)
        text = None if value is None else text_of_raw(value)
        operands = tuple(operands_of(condition, claims))
        passes = text is not None and holds(condition.op, text, operands)
        filters.append(ExplainedFilter(condition.column, condition.op, condition.value, text, operands, passes))
    covers = bucket.covers(table)
    visible = row is not None and row.state.visible
    shows = visible and covers and all(each.holds for each in filters)
    reasons = tuple(bucket_reasons(bucket.name, table, filters, covers=covers, shows=shows))
    return ExplainedBucket(bucket.name, covers, shows, tuple(filters), reasons)


def _row(row: StoredRow | None, rules: RulesCache, config: GatewayConfig, client_id: str) -> ExplainedRow:
    """Describe a row's merged state, without its values.

    Args:
        row: the stored row; None if it does not exist.
        rules: the gateway's cache of compiled sync rules.
        config: the gateway's configuration, with the active rules.
        client_id: the client whose own writes to the row are described too.
    """
    if row is None:
        return ExplainedRow(
            exists=False,
            visible=False,
            changed_ms=None,
            arrival_hlc=None,
            tombstone_hlc=None,
            tombstone_client_id=None,
            bucket_keys=(),
            keys_by_rules=(),
            columns=(),
            client_wrote_ms=None,
        )
    state = row.state
    tombstone_hlc, tombstone_client_id = state.tombstone or (None, None)
    keys = rules.index(config).row_keys(row.table, state.values()) if state.visible else frozenset()
    columns = [
        ExplainedColumn(
            column,
            client_id=cell.origin.client_id,
            hlc=cell.origin.hlc,
            delta_id=cell.origin.delta_id,
            touched_ms=wall_of(cell.at) if cell.at else None,
        )
        for column, cell in state.cells.items()
    ]
    return ExplainedRow(
        exists=True,
        visible=state.visible,
        changed_ms=wall_of(row.arrival),
        arrival_hlc=row.arrival,
        tombstone_hlc=tombstone_hlc,
        tombstone_client_id=tombstone_client_id,
        bucket_keys=row.keys,
        keys_by_rules=tuple(sorted(keys)),
        columns=tuple(sorted(columns, key=lambda each: each.column)),
        client_wrote_ms=wall_of(row.writers[client_id].latest) if client_id in row.writers else None,
    )
