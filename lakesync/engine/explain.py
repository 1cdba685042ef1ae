"""Why a client has a row or lacks it, from what is stored alone: nothing is changed by asking."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import cast

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
from lakesync.feed import pull_page
from lakesync.feed.memory import current
from lakesync.feed.positions import Access, Position, again, locate
from lakesync.hlc import wall_of
from lakesync.rules.evaluation import holds, operands_of, text_of_raw
from lakesync.rules.model import Bucket
from lakesync.staging.records import ClientRecord, Entry, GatewayConfig, StoredRow
from lakesync.staging.store import View
from lakesync.staging.stretch import Reader, Stretch
from lakesync.staging.whole import WholeRow, whole_rows
from lakesync.types import Claims, Op, RowKey

_ALL = 1 << 30


def explain(
    view: View, client_id: str, table: str, row_id: str, claims: Claims | None, rules: RulesCache
) -> Explanation:
    """Why the client has the row or lacks it.

    Args:
        view: the gateway, at the moment of asking.
        client_id: the client's.
        table: the row's table.
        row_id: the row's id.
        claims: the client's claims; None: those that the gateway remembers of its last pull.
        rules: the gateway's.
    """
    record = view.client(client_id)
    source, used = _claims(record, client_id, claims)
    access = rules.access(view, used)
    key = (table, row_id)
    row = view.rows([key]).get(key)
    buckets = tuple(_bucket(bucket, table, row, used) for bucket in _buckets(view.config))
    shown = row is not None and row.state.visible and any(stored in access.keys for stored in row.keys)
    at = _position(view, record, access)
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
        claims=used,
        claims_from=source,
        bucket_keys=tuple(sorted(access.keys)),
    )
    told = _row(row, rules, view.config)
    reasons = tuple(_reasons(verdict, told, client, buckets, coming, key))
    return Explanation(verdict, reasons, told, client, buckets, coming)


def _claims(record: ClientRecord | None, client_id: str, given: Claims | None) -> tuple[ClaimsSource, Claims]:
    if given is not None:
        return "request", {**given, "sub": client_id}
    if record is not None:
        for newest in record.scopes[-1:]:
            return "record", {**newest.claims, "sub": client_id}
    return "client id", {"sub": client_id}


def _position(view: View, record: ClientRecord | None, access: Access) -> Position:
    known = current(record, view.epoch)
    if known is None:
        return cast("Position", locate(None, 0, view.arrival, access))
    return locate(known, known.last, view.arrival, access) or again(known, view.arrival, access)


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


def _row(row: StoredRow | None, rules: RulesCache, config: GatewayConfig) -> ExplainedRow:
    if row is None:
        return ExplainedRow(False, False, None, None, None, None, (), (), ())
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
    )


def _reasons(
    verdict: Verdict,
    row: ExplainedRow,
    client: ExplainedClient,
    buckets: tuple[ExplainedBucket, ...],
    coming: tuple[Op, ...],
    key: RowKey,
) -> Iterator[str]:
    named = f"row {key[1]!r} of table {key[0]!r}"
    if not row.exists:
        yield f"{named} was never accepted by this gateway: its push was refused, or went to another gateway"
        return
    if verdict == "waiting":
        yield f"the client's next pull from the cursor that it was last sent brings {', '.join(coming)} of {named}"
    elif verdict == "delivered":
        yield f"the client was sent all that it may see of {named}, or wrote it itself; nothing waits for it"
    elif verdict == "hidden":
        yield f"no bucket shows {named} to this client, and it holds nothing of it"
    if not row.visible and row.tombstone_hlc is not None:
        yield (
            f"{named} is deleted, by client {row.tombstone_client_id!r} at {_when(_wall_ms(row.tombstone_hlc))} "
            "of its clock: what is stamped no later than that stays dead"
        )
    elif not buckets:
        yield "there are no buckets: everyone sees every row"
    else:
        for bucket in buckets:
            yield from _bucket_reasons(bucket, key[0])
    yield from _client_reasons(client)
    if set(row.bucket_keys) != set(row.keys_by_rules):
        yield "the row is stored under other bucket keys than the rules give it: a change of rules is being worked in"


def _bucket_reasons(bucket: ExplainedBucket, table: str) -> Iterator[str]:
    if not bucket.covers_table:
        yield f"bucket {bucket.bucket!r} is not about table {table!r}"
        return
    if bucket.shows:
        yield f"bucket {bucket.bucket!r} shows it"
    for each in bucket.filters:
        if each.holds:
            continue
        claim = each.value.removeprefix("jwt:") if each.value.startswith("jwt:") else None
        wanted = " or ".join(map(repr, each.operands))
        if claim is not None and not each.operands:
            why = f"the client has no claim {claim!r}"
        elif each.found is None:
            why = f"the row has no column {each.column!r}"
        else:
            of = f", the client's claim {claim!r}" if claim is not None else ""
            why = f"column {each.column!r} is {each.found!r}, which is not {each.op} {wanted}{of}"
        yield f"bucket {bucket.bucket!r} does not show it: {why}"


def _client_reasons(client: ExplainedClient) -> Iterator[str]:
    if not client.known:
        yield f"client {client.client_id!r} was never seen, or its record is gone: its first pull brings everything"
        return
    if not client.current:
        yield "the client was last seen before the store was replaced: its next pull begins again"
    elif not client.sent_hlc:
        yield "the client has pushed but never pulled"
    elif client.walking:
        yield "the client is in the middle of a walk: it was sent a page with more to come"
    yield f"the client was last handed something new at {_when(client.last_seen_ms)}"
    if client.claims_from == "record":
        yield "its claims are those of its last pull that the rules read; give claims to try others"


def _wall_ms(hlc: int | None) -> int | None:
    return None if hlc is None else wall_of(hlc)


def _when(ms: int | None) -> str:
    return "a time unknown" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
