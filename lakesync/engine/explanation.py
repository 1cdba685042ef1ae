"""The result of `engine.explain`: why a client has a row or lacks it, as JSON for the admin route and the command line.

`engine.explain` fills these structs, `engine.reasons` turns them into sentences.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from lakesync.model.types import Claims, Op

ClaimsSource = Literal["request", "record", "pull", "client id"]
"""Where the claims of an explanation are from: the operator's request, the client's stored record, its last pull in
this process, or, if all of these lack claims, the client id alone."""

Verdict = Literal["absent", "deleted", "hidden", "waiting", "delivered"]
"""`absent`: never pushed here. `deleted`: a tombstone hides it from everyone. `hidden`: no bucket shows it to this
client. `waiting`: the client's next pull brings a change of it. `delivered`: the client was sent what it may see."""


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
    """Whether the row has a value and is not deleted."""
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
    """Whether the record is of this epoch; a record from before a restore or rebuild is not."""
    last_seen_ms: int | None
    """Server wall time of the client's last recorded request; null without a record."""
    sent_hlc: int | None
    """The cursor that the client was last sent with deltas; null if it was sent none."""
    newest_hlc: int
    """The gateway's newest arrival (its own timestamp of a commit): the cursor of a client that is up to date."""
    mid_pages: bool = msgspec.field(name="walking")
    """Whether `sent_hlc` is in the middle of a sequence of pages: more were to come."""
    followed_elsewhere: bool = msgspec.field(name="elsewhere")
    """Whether the client may have got more over a WebSocket to another process. The record does not contain that, so
    the client may already have what it seems to lack."""
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
    """Server wall time when the row was last erased; null if it never was."""
