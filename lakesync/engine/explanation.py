"""Why a client has a row or lacks it: what an operator is told, as values."""

from __future__ import annotations

from typing import Literal

import msgspec

from lakesync.model.types import Claims, Op

ClaimsSource = Literal["request", "record", "pull", "client id"]
Verdict = Literal["absent", "deleted", "hidden", "waiting", "delivered"]
"""`absent`: never pushed here. `deleted`: a tombstone hides it from everyone. `hidden`: no bucket shows it to this
client. `waiting`: the client's next pull brings a change of it. `delivered`: the client was sent what it may see."""


class ExplainedFilter(msgspec.Struct, frozen=True, rename="camel"):
    """One filter of a bucket, held against the row and the claims."""

    column: str
    op: str
    value: str
    """As the rules have it."""
    found: str | None
    """The text of the row's value; null where the row has no such column."""
    operands: tuple[str, ...]
    """What it is compared with: the constant, or the claim's values; none where the client has no such claim."""
    holds: bool


class ExplainedBucket(msgspec.Struct, frozen=True, rename="camel"):
    """One bucket, held against the row and the claims."""

    bucket: str
    covers_table: bool
    shows: bool
    """It covers the table and every filter holds."""
    filters: tuple[ExplainedFilter, ...]


class ExplainedColumn(msgspec.Struct, frozen=True, rename="camel"):
    """Whose value a column has, and since when."""

    column: str
    client_id: str
    hlc: int
    delta_id: str
    touched_ms: int | None
    """Server wall time at which its value last changed or was contested; null where that is not known."""


class ExplainedRow(msgspec.Struct, frozen=True, rename="camel"):
    """The row's merged state, without its values."""

    exists: bool
    """Whether anything was ever pushed of it."""
    visible: bool
    """Whether it is there for anyone."""
    changed_ms: int | None
    """Server wall time of its latest change."""
    arrival_hlc: int | None
    tombstone_hlc: int | None
    tombstone_client_id: str | None
    bucket_keys: tuple[str, ...]
    """Those that it is stored under."""
    keys_by_rules: tuple[str, ...]
    """Those that the rules in force give it; others than the stored ones while a change of rules is worked in."""
    columns: tuple[ExplainedColumn, ...]
    client_wrote_ms: int | None
    """Server wall time of the client's own latest write to it; null where none is known."""


class ExplainedClient(msgspec.Struct, frozen=True, rename="camel"):
    """What the gateway knows of the client."""

    client_id: str
    known: bool
    current: bool
    """Whether its record is of this store, not of one that was replaced by it."""
    last_seen_ms: int | None
    sent_hlc: int | None
    """The highest cursor that it was handed with deltas."""
    newest_hlc: int
    """The gateway's newest arrival: what a client that is up to date has as its cursor."""
    walking: bool
    """Whether that cursor was of a page with more to come."""
    elsewhere: bool
    """Whether it may have been told more over a WebSocket to a process that does not answer here: of that nothing is
    kept, so what waits for it by its record it may have."""
    claims: Claims
    """Those that were used here."""
    claims_from: ClaimsSource
    bucket_keys: tuple[str, ...]
    """Those that these claims may see."""


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """Why a client has a row or lacks it."""

    verdict: Verdict
    reasons: tuple[str, ...]
    """In words, the most important first."""
    row: ExplainedRow
    client: ExplainedClient
    buckets: tuple[ExplainedBucket, ...]
    next_pull: tuple[Op, ...]
    """What the client lacks of this row: what a pull from the cursor that it was last handed would bring."""
    unconfirmed: tuple[Op, ...]
    """What it was sent of this row and may lack all the same: it has not shown the cursor yet that came with it."""
    erased_ms: int | None
    """Server wall time at which the row was last erased for good."""
