"""The result of `inspection.explain`: why a client has a row or lacks it, as values and as sentences.

The sync rules put rows into *buckets* by filters; a client sees the rows in the buckets that the *claims* (fields) of
its token allow. A *delta* is a change of a row. The gateway's *record* of a client says what the client was sent, and
its *cursor* up to where. A *bucket key* names a bucket with the claims that may see it; a row is stored with those of
its buckets. An *hlc* is the writing client's timestamp of a delta. `inspection.explain` fills these structs and calls
`reasons_of` for the sentences. The admin route returns the whole as JSON; the console and `lakesync explain` show it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from typing import Literal

import msgspec

from lakesync.model.hlc import iso_time, wall_of
from lakesync.model.types import Claims, Op, RowKey
from lakesync.staging.erased_rows import ERASER

ClaimsSource = Literal["request", "record", "pull", "client id"]
"""Where the claims of an explanation are from: the operator's request, the client's stored record, its last pull in
this process, or, if all of these lack claims, the client id alone."""

Verdict = Literal["absent", "deleted", "hidden", "waiting", "delivered"]
"""`absent`: never pushed here. `deleted`: it was deleted, or has neither an INSERT nor a value. `hidden`: no bucket
shows it to this client. `waiting`: the client's next pull brings a change of it. `delivered`: the client was sent what
it may see."""


_NOT_PUSHED = (
    "its writer has not pushed it yet, or the push was rejected: db.pending() at the writer lists unsent and rejected "
    "changes; a change that it does not list was not committed, is in a table without a schema there, or went to "
    "another gateway"
)
_UNKNOWN_CLAIMS = (
    "its claims are not known here, so the rules were evaluated with its id alone: pass its token's claims (`--as`)"
)
_IF_STILL_MISSING = (
    "if the client lacks it nevertheless: the table must be among its schemas, db.pending() may list a newer change of "
    "its own, and db.verify() pulls everything again"
)


class ExplainedFilter(msgspec.Struct, frozen=True, rename="camel"):
    """One filter of a bucket, evaluated for the row and the claims."""

    column: str
    op: str
    """The comparison, for example `eq`, `in` or `lt`."""
    value: str
    """The right side as written in the rules: a constant, or `jwt:CLAIM`."""
    found: str | None
    """The row's value as text; null if the row has no such column."""
    operands: tuple[str, ...]
    """The values that `found` is compared with: the constant, or the claim's values. Empty if the client lacks the
    claim."""
    holds: bool
    """Whether the row passes the filter."""


class ExplainedBucket(msgspec.Struct, frozen=True, rename="camel"):
    """One bucket, evaluated for the row and the claims."""

    bucket: str
    """The bucket's name in the sync rules."""
    covers_table: bool
    """Whether the bucket's tables include the row's table."""
    shows: bool
    """Whether the bucket shows the row to the client: it covers the table, and every filter holds."""
    filters: tuple[ExplainedFilter, ...]
    reasons: tuple[str, ...]
    """Sentences that say whether the bucket shows the row, and each filter that does not match."""


class ExplainedColumn(msgspec.Struct, frozen=True, rename="camel"):
    """The writer of a column's value."""

    column: str
    client_id: str
    hlc: int
    """HLC (hybrid logical clock) timestamp that the writer gave the value."""
    delta_id: str
    touched_ms: int | None
    """Server wall time when the value last changed, or a push with an older value lost to it; null if it is not known.
    As every `…_ms` here, it is in milliseconds since 1970."""


class ExplainedRow(msgspec.Struct, frozen=True, rename="camel"):
    """The row's merged state, without its values."""

    exists: bool
    """Whether the gateway ever accepted a delta of the row."""
    visible: bool
    """Whether the row is not deleted, and has a value or an INSERT."""
    changed_ms: int | None
    """Server wall time of the row's latest change; null if the row does not exist."""
    arrival_hlc: int | None
    """The same time as the gateway's own HLC timestamp (the row's arrival)."""
    tombstone_hlc: int | None
    """HLC timestamp of the row's newest DELETE; null if it was never deleted."""
    tombstone_client_id: str | None
    """The client that made this DELETE."""
    bucket_keys: tuple[str, ...]
    """Bucket keys under which the row is stored."""
    keys_by_rules: tuple[str, ...]
    """Bucket keys by the active rules; they differ from the stored ones while a change of rules is being applied."""
    columns: tuple[ExplainedColumn, ...]
    client_wrote_ms: int | None
    """Server wall time of the client's own latest write to the row; null if none is known."""


class ExplainedClient(msgspec.Struct, frozen=True, rename="camel"):
    """The gateway's record of the client."""

    client_id: str
    known: bool
    """Whether the gateway has a record of the client."""
    current: bool
    """Whether the record is of the store's present epoch, which a restore or rebuild of the store changes."""
    last_seen_ms: int | None
    """Server wall time of the client's last recorded request; null without a record."""
    sent_hlc: int | None
    """The cursor that the client was last sent with deltas, with a checkpoint, or for a push that moved it; 0 if it was
    sent none, null without a record."""
    newest_hlc: int
    """The gateway's newest arrival (its own timestamp of a commit): the cursor of a client that is up to date."""
    mid_pages: bool = msgspec.field(name="walking")
    """Whether `sent_hlc` is in the middle of a sequence of pages: more were to come. `walking` in JSON."""
    followed_elsewhere: bool = msgspec.field(name="elsewhere")
    """Whether the client may have got more over a WebSocket to another process; `elsewhere` in JSON. The record does
    not contain that, so the client may already have what it seems to lack."""
    claims: Claims
    """The claims used for this explanation."""
    claims_from: ClaimsSource
    bucket_keys: tuple[str, ...]
    """Bucket keys that these claims may see."""


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """Why a client has a row or lacks it."""

    verdict: Verdict
    reasons: tuple[str, ...]
    """Sentences, the most important first."""
    row: ExplainedRow
    client: ExplainedClient
    buckets: tuple[ExplainedBucket, ...]
    next_pull: tuple[Op, ...]
    """Operations (INSERT, UPDATE, DELETE) of this row that a pull from the client's latest cursor would return."""
    unconfirmed: tuple[Op, ...]
    """Operations of this row that were sent and are not confirmed: the client has not sent their cursor back yet."""
    erased_ms: int | None
    """Server wall time of the latest request to erase the row; null without one."""


def reasons_of(explanation: Explanation, key: RowKey, tables: Collection[str]) -> Iterator[str]:
    """Yield the reasons of an explanation, the most important first.

    Args:
        explanation: the explanation, complete except for its `reasons`.
        key: the row's table and id.
        tables: the tables with a registered schema.
    """
    named = f"row {key[1]!r} of table {key[0]!r}"  # the subject of the sentences
    if not explanation.row.exists:
        yield f"no delta of {named} was ever accepted by this gateway"
        if tables and key[0] not in tables:
            near = get_close_matches(key[0], tables, 1)
            hint = f"did you mean {near[0]!r}?" if near else "`lakesync schema list` lists the tables that have one"
            yield f"the gateway has no schema of table {key[0]!r}; {hint}"
        if explanation.buckets and not any(bucket.covers_table for bucket in explanation.buckets):
            yield f"no bucket of the sync rules contains table {key[0]!r}, so no client sees its rows: add it to one"
        yield _NOT_PUSHED
        return
    yield from _verdict(explanation, named)
    if explanation.buckets and explanation.client.claims_from == "client id" and explanation.verdict != "hidden":
        yield _UNKNOWN_CLAIMS
    yield from _row(explanation, named)
    if explanation.row.visible and not explanation.buckets:
        yield "there are no buckets: everyone sees every row"
    elif explanation.row.visible:
        for bucket in explanation.buckets:
            yield from bucket.reasons
    yield from _client(explanation.client)
    if explanation.verdict == "delivered":
        yield _IF_STILL_MISSING
    if set(explanation.row.bucket_keys) != set(explanation.row.keys_by_rules):
        yield "the row is stored under other bucket keys than by the active rules: a change of rules is being applied"


def bucket_reasons(
    bucket: str, table: str, filters: Iterable[ExplainedFilter], *, covers: bool, shows: bool
) -> Iterator[str]:
    """Yield why a bucket shows the row to the client, or does not.

    Args:
        bucket: the bucket's name.
        table: the row's table.
        filters: the bucket's filters, evaluated for the row.
        covers: whether the bucket's tables include the row's table.
        shows: whether the bucket shows the row.
    """
    if not covers:
        yield f"bucket {bucket!r} does not contain table {table!r}"
        return
    if shows:
        yield f"bucket {bucket!r} shows it"
    for each in filters:
        if not each.holds:
            yield f"bucket {bucket!r} does not show it: {_mismatch(each)}"


def _verdict(explanation: Explanation, named: str) -> Iterator[str]:
    """Yield the sentences about the verdict."""
    if explanation.verdict == "waiting":
        operations = ", ".join(explanation.next_pull)
        yield f"the client's next pull from the cursor that it was last sent returns {operations} of {named}"
    elif explanation.verdict == "delivered":
        yield f"the client was sent everything that it may see of {named}, or wrote it itself"
    elif explanation.verdict == "hidden":
        unknown = f"; {_UNKNOWN_CLAIMS}" if explanation.client.claims_from == "client id" else ""
        yield f"no bucket shows {named} to this client, and the client has no copy of it{unknown}"
    else:
        yield _deleted(explanation, named)
    if explanation.unconfirmed:
        yield (
            f"it was sent {', '.join(explanation.unconfirmed)} of the row and has not confirmed that; if its next pull "
            "has an earlier cursor, it is sent the same again"
        )


def _row(explanation: Explanation, named: str) -> Iterator[str]:
    """Yield the sentences about the row's state and the client's own writes."""
    row, client_id = explanation.row, explanation.client.client_id
    if not row.visible and explanation.verdict != "deleted":
        yield _deleted(explanation, named)
    if explanation.erased_ms is not None and row.tombstone_client_id != ERASER:
        yield f"the data of {named} was erased permanently at {iso_time(explanation.erased_ms)}"
    if row.client_wrote_ms is None:
        return
    wrote = f"the client wrote to it itself, last at {iso_time(row.client_wrote_ms)}"
    if row.visible and all(column.client_id != client_id for column in row.columns):
        yield f"{wrote}: newer values have replaced all of that"
    elif row.visible and explanation.verdict == "delivered":
        yield (
            f"{wrote}: its own changes are not sent back to it, so a second database under the same client id, or one "
            "that was restored from a backup, may lack them"
        )


def _deleted(explanation: Explanation, named: str) -> str:
    """Return why a row is not visible to anyone."""
    row = explanation.row
    if row.tombstone_hlc is None:
        return f"{named} is not visible to anyone: no INSERT of it was accepted, and no column of it has a value"
    if row.tombstone_client_id == ERASER:
        return (
            f"{named} was erased permanently at {iso_time(wall_of(row.tombstone_hlc))}: deltas with a timestamp "
            "up to that are accepted without their values"
        )
    return (
        f"{named} is deleted, by client {row.tombstone_client_id!r} at {iso_time(wall_of(row.tombstone_hlc))} "
        "of its clock: deltas with a timestamp up to that have no effect"
    )


def _mismatch(failed: ExplainedFilter) -> str:
    """Return why a filter does not match the row."""
    claim = failed.value.removeprefix("jwt:") if failed.value.startswith("jwt:") else None
    if claim is not None and not failed.operands:
        return f"the client has no claim {claim!r}, as a text or a list of texts"
    if failed.found is None:
        return f"the row has no column {failed.column!r}"
    uses_all_operands = failed.op in ("eq", "in", "neq")
    operands = " or ".join(map(repr, failed.operands if uses_all_operands else failed.operands[:1]))
    origin = f", the client's claim {claim!r}" if claim is not None else ""
    if not uses_all_operands and len(failed.operands) > 1:
        origin += ", of which the first counts"
    return f"column {failed.column!r} is {failed.found!r}, which is not {failed.op} {operands}{origin}"


def _client(client: ExplainedClient) -> Iterator[str]:
    """Yield the sentences about the client's record."""
    if not client.known:
        yield f"client {client.client_id!r} was never seen, or its record is gone: its first pull returns everything"
        return
    if not client.current:
        yield "the client's record is gone, erased or lost with the store: its next pull starts again"
    elif client.mid_pages:
        yield "the client is in the middle of its pages: the last one that it was sent has more after it"
    if client.followed_elsewhere:
        yield "it has or had a WebSocket to another process, which may have sent it more than is known here"
    if client.last_seen_ms:
        yield f"the client last pulled or pushed at {iso_time(client.last_seen_ms)}"
    if client.claims_from == "record":
        yield "its claims are those of its last pull, as far as the rules read them; pass claims (`--as`) to try others"
