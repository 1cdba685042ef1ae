"""The answer of `explain`: why a client has a row or lacks it, as JSON that the admin route returns."""

from __future__ import annotations

from typing import Literal

import msgspec

from lakesync.model.types import Claims, Op

ClaimsSource = Literal["request", "record", "pull", "client id"]
Verdict = Literal["absent", "deleted", "hidden", "waiting", "delivered"]
"""`absent`: never pushed here. `deleted`: a tombstone hides it from everyone. `hidden`: no bucket shows it to this
client. `waiting`: the client's next pull brings a change of it. `delivered`: the client was sent what it may see."""


class ExplainedFilter(msgspec.Struct, frozen=True, rename="camel"):
    """One filter of a bucket, evaluated for the row and the claims."""

    column: str
    op: str
    value: str
    """The value in the rules."""
    found: str | None
    """Text of the row's value; null if the row has no such column."""
    operands: tuple[str, ...]
    """Values that it is compared with: the constant, or the claim's values; empty if the client has no such claim."""
    holds: bool


class ExplainedBucket(msgspec.Struct, frozen=True, rename="camel"):
    """One bucket, evaluated for the row and the claims."""

    bucket: str
    covers_table: bool
    shows: bool
    """Whether it covers the table and every filter holds."""
    filters: tuple[ExplainedFilter, ...]


class ExplainedColumn(msgspec.Struct, frozen=True, rename="camel"):
    """The writer of a column's value."""

    column: str
    client_id: str
    hlc: int
    delta_id: str
    touched_ms: int | None
    """Server wall time when its value last changed, or a push with an older value lost; null if it is not known."""


class ExplainedRow(msgspec.Struct, frozen=True, rename="camel"):
    """The row's merged state, without its values."""

    exists: bool
    """Whether a delta of it was ever pushed."""
    visible: bool
    """Whether it is not deleted."""
    changed_ms: int | None
    """Server wall time of its latest change."""
    arrival_hlc: int | None
    tombstone_hlc: int | None
    tombstone_client_id: str | None
    bucket_keys: tuple[str, ...]
    """Bucket keys under which it is stored."""
    keys_by_rules: tuple[str, ...]
    """Bucket keys by the active rules; they differ from the stored ones while a change of rules is being applied."""
    columns: tuple[ExplainedColumn, ...]
    client_wrote_ms: int | None
    """Server wall time of the client's own latest write to it; null if none is known."""


class ExplainedClient(msgspec.Struct, frozen=True, rename="camel"):
    """The gateway's record of the client."""

    client_id: str
    known: bool
    current: bool
    """Whether the record is of this epoch; a record from before a restore or rebuild is not."""
    last_seen_ms: int | None
    sent_hlc: int | None
    """The highest cursor that it got with deltas."""
    newest_hlc: int
    """The gateway's newest arrival, which is the cursor of a client that is up to date."""
    walking: bool
    """Whether that cursor is in the middle of its pages."""
    elsewhere: bool
    """Whether it may have got more over a WebSocket to another process. The record does not contain that, so the client
    may already have what it seems to lack."""
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
    """Operations of this row that a pull from the client's latest cursor returns."""
    unconfirmed: tuple[Op, ...]
    """Operations of this row that were sent and are not confirmed: the client has not pulled with their cursor yet."""
    erased_ms: int | None
    """Server wall time when the row was last erased; null if it never was."""
