"""Why a client has a row or lacks it, from what is stored alone: nothing is changed by asking."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, cast

from msgspec.structs import replace

from lakesync.engine.access import RulesCache
from lakesync.engine.explanation import (
    ClaimsSource,
    ExplainedBucket,
    ExplainedClient,
    ExplainedColumn,
    ExplainedFilter,
    ExplainedRow,
    Explanation,
    Verdict,
)
from lakesync.engine.following import Standing, as_of_now, place_of
from lakesync.engine.reasons import reasons_of
from lakesync.feed import pull_page
from lakesync.feed.memory import current, stranger, with_broadcasts
from lakesync.feed.positions import Access, Position, again, locate
from lakesync.hlc import wall_of
from lakesync.identity import user_of
from lakesync.rules.evaluation import holds, operands_of, text_of_raw
from lakesync.rules.model import Bucket
from lakesync.staging.records import ClientRecord, Entry, GatewayConfig, StoredRow
from lakesync.staging.store import View
from lakesync.staging.stretch import Reader, Stretch
from lakesync.staging.whole import WholeRow, whole_rows
from lakesync.types import Claims, Op, RowKey

_ALL = 1 << 30


class Whereabouts(NamedTuple):
    """Where a client is, as far as the process knows that it talks to; its record is not always as new."""

    cursor: int | None = None
    """What it was handed last and may be taken to have; None: what the record says."""
    confirmed: int | None = None
    """What it showed last, so that it has all that this stands for; None: what the record says."""
    knows_resync: bool = False
    """It takes an INSERT of a row that it has."""
    standing: Standing | None = None
    """Up to where it is told of what is new, while it is connected."""
    told: bool = False
    """It is connected and told of what is new, by cursors that are not this store's."""


def explain(
    view: View,
    client_id: str,
    table: str,
    row_id: str,
    claims: Claims | None,
    rules: RulesCache,
    where: Whereabouts = Whereabouts(),  # noqa: B008, it never changes
) -> Explanation:
    """Why the client has the row or lacks it.

    Args:
        view: the gateway, at the moment of asking.
        client_id: the client's.
        table: the row's table.
        row_id: the row's id.
        claims: the client's claims; None: those that the gateway remembers of its last pull.
        rules: the gateway's.
        where: what more is known of the client.
    """
    record = view.client(client_id)
    source, used = _claims(record, client_id, claims)
    access = rules.access(view, used)
    key = (table, row_id)
    row = view.rows([key]).get(key)
    buckets = tuple(_bucket(bucket, table, row, used) for bucket in _buckets(view.config))
    shown = row is not None and row.state.visible and any(stored in access.keys for stored in row.keys)
    known = current(record, view.epoch, access.keys)
    at = _position(view, known, client_id, access, rules, where)
    coming = _next_pull(view, key, client_id, at, access)
    verdict = _verdict(row, coming, shown=shown)
    client = ExplainedClient(
        client_id=client_id,
        known=record is not None,
        current=record is not None and record.epoch == view.epoch,
        last_seen_ms=record.last_seen_ms if record is not None else None,
        sent_hlc=record.last if record is not None else None,
        newest_hlc=view.arrival,
        walking=0 < at.after != at.base,
        elsewhere=record is not None and record.followed and where.cursor is None and not where.told,
        claims=used,
        claims_from=source,
        bucket_keys=tuple(sorted(access.keys)),
    )
    told = _row(row, rules, view.config, client_id)
    erased = max((each.requested_ms for each in view.erasures() if (each.table, each.row_id) == key), default=None)
    unconfirmed = () if coming else _unconfirmed(view, key, client_id, known, access, where)
    explanation = Explanation(verdict, (), told, client, buckets, coming, unconfirmed, erased)
    return replace(explanation, reasons=tuple(reasons_of(explanation, key)))


def _claims(record: ClientRecord | None, client_id: str, given: Claims | None) -> tuple[ClaimsSource, Claims]:
    if given is not None:
        return "request", {**given, "sub": user_of(client_id)}
    if record is not None:
        for newest in record.scopes[-1:]:
            return "record", {**newest.claims, "sub": user_of(client_id)}
    return "client id", {"sub": user_of(client_id)}


def _position(
    view: View, known: ClientRecord | None, client_id: str, access: Access, rules: RulesCache, where: Whereabouts
) -> Position:
    cursor = where.cursor
    if where.told:
        return place_of(Standing(view.arrival, _ALL, access=access), access, view.arrival)
    if where.standing is not None:
        standing = as_of_now(view, where.standing, rules)
        if not standing.more and standing.access is not None and standing.access.keys == access.keys:
            return place_of(standing, standing.access, view.arrival)
        cursor = standing.cursor
    if cursor is None:
        cursor = known.last if known is not None else 0
    return _place(view, known, client_id, cursor, access, where)


def _place(
    view: View, known: ClientRecord | None, client_id: str, cursor: int, access: Access, where: Whereabouts
) -> Position:
    """What a pull from a cursor starts from."""
    heard = known if known is None else with_broadcasts(known, view.arrival)
    at = locate(heard, cursor, view.arrival, access)
    if at is None:
        known = known or stranger(client_id, view.epoch, access.keys)
        at = again(known, view.arrival, access)
    return at._replace(haunted=known is not None and known.haunted and not where.knows_resync)


def _unconfirmed(
    view: View, key: RowKey, client_id: str, known: ClientRecord | None, access: Access, where: Whereabouts
) -> tuple[Op, ...]:
    if known is None or where.standing is not None or where.told:
        return ()
    confirmed = known.seen if where.confirmed is None else where.confirmed
    return _next_pull(view, key, client_id, _place(view, known, client_id, confirmed, access, where), access)


class _OneRow:
    """A view in which only one row ever changed: as much of `View` as a page is read from."""

    def __init__(self, view: View, key: RowKey) -> None:
        self._view = view
        self._key = key
        self.arrival = view.arrival
        self.rows = view.rows
        self.entries_of = view.entries_of

    def entries_after(self, buckets: Collection[str], since: int, limit: int) -> list[Entry]:
        """The row's entries above `since`."""
        found = (entry for entry in self._view.entries_of([self._key], buckets) if entry.changed > since)
        return sorted(found, key=lambda entry: entry.changed)[:limit]

    def changed_after(self, buckets: Collection[str], since: int) -> bool:
        """Whether the row has an entry above `since`."""
        return bool(self.entries_after(buckets, since, 1))

    def whole_rows(self, bucket: str, since: int, limit: int) -> list[WholeRow]:
        """The row's entry under one bucket, with the row."""
        entries = self.entries_after((bucket,), since, limit)
        return whole_rows(entries, self.rows({entry.key for entry in entries}))

    def stretch(self, buckets: Sequence[str], since: int, until: int, limit: int, reader: Reader) -> Stretch | None:  # noqa: ARG002
        """None: there is one row."""
        return None


def _next_pull(view: View, key: RowKey, client_id: str, at: Position, access: Access) -> tuple[Op, ...]:
    page = pull_page(cast("View", _OneRow(view, key)), client_id, at, access, _ALL)
    return tuple(delta.op for delta in page.deltas)


def _verdict(row: StoredRow | None, coming: tuple[Op, ...], *, shown: bool) -> Verdict:
    if coming:
        return "waiting"
    if row is None:
        return "absent"
    if not row.state.visible:
        return "deleted"
    return "delivered" if shown else "hidden"


def _buckets(config: GatewayConfig) -> tuple[Bucket, ...]:
    return config.rules.buckets if config.rules is not None else ()


def _bucket(bucket: Bucket, table: str, row: StoredRow | None, claims: Claims) -> ExplainedBucket:
    values = row.state.values() if row is not None else {}
    filters = []
    for condition in bucket.filters:
        value = values.get(condition.column)
        found = None if value is None else text_of_raw(value)
        operands = tuple(operands_of(condition, claims))
        met = found is not None and holds(condition.op, found, operands)
        filters.append(ExplainedFilter(condition.column, condition.op, condition.value, found, operands, met))
    covers = not bucket.tables or table in bucket.tables
    visible = row is not None and row.state.visible
    shows = visible and covers and all(each.holds for each in filters)
    return ExplainedBucket(bucket.name, covers, shows, tuple(filters))


def _row(row: StoredRow | None, rules: RulesCache, config: GatewayConfig, client_id: str) -> ExplainedRow:
    if row is None:
        return ExplainedRow(False, False, None, None, None, None, (), (), (), None)
    state = row.state
    hlc, by = state.tombstone or (None, None)
    keys = rules.index(config).row_keys(row.table, state.values()) if state.visible else frozenset()
    columns = [
        ExplainedColumn(column, part.client_id, part.hlc, part.delta_id, _wall_ms(row.touched.get(column)))
        for part in state.live
        for column in part.columns
    ]
    return ExplainedRow(
        exists=True,
        visible=state.visible,
        changed_ms=_wall_ms(row.arrival),
        arrival_hlc=row.arrival,
        tombstone_hlc=hlc,
        tombstone_client_id=by,
        bucket_keys=row.keys,
        keys_by_rules=tuple(sorted(keys)),
        columns=tuple(sorted(columns, key=lambda each: each.column)),
        client_wrote_ms=_wall_ms(row.writers[client_id][1]) if client_id in row.writers else None,
    )


def _wall_ms(hlc: int | None) -> int | None:
    return None if hlc is None else wall_of(hlc)
