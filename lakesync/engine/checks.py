"""Checks of a request before anything is stored: form, identity, clock, schemas, size of rows, backlog.

`SyncGateway` calls the checks that need no store, `engine.pushing` the others in the push's commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lakesync.engine.limits import MAX_PULL, MAX_ROW_COLUMNS, EngineLimits
from lakesync.feed.apply import DeltasByRow, too_wide
from lakesync.model import hlc
from lakesync.model.errors import (
    BackpressureError,
    ClockDriftError,
    ForbiddenError,
    RefusedError,
    Rejection,
    SchemaMismatchError,
    ValidationError,
)
from lakesync.model.schema import check_delta
from lakesync.model.types import Claims, RowDelta, RowKey, SyncPull, SyncPush
from lakesync.model.validation import find_malformed, user_of
from lakesync.staging.records import GatewayConfig, StoredRow

_CLOCK = "; set the client's clock"


def check_request(push: SyncPush, claims: Claims, now_ms: int, limits: EngineLimits) -> None:
    """Check a push without the store. The error names every rejected delta with its own reason.

    A token is valid for its `sub`, and for the client id under which imports for that user are pushed.

    Args:
        push: the request.
        claims: of the token.
        now_ms: the server's wall time.
        limits: of the engine.

    Raises:
        ValidationError: too many deltas, or malformed ones.
        ForbiddenError: a delta, or the push, has another client's id.
        ClockDriftError: an hlc is too far ahead of the server.
    """
    if len(push.deltas) > limits.max_deltas:
        raise ValidationError(
            f"the push holds {len(push.deltas)} deltas, at most {limits.max_deltas} are taken: send it in parts"
        )
    sub, sender = claims.get("sub"), push.client_id
    if sub not in (sender, user_of(sender)):
        raise ForbiddenError(
            f"clientId is {sender!r} but the token's sub is {sub!r}: push with a token of that client",
            [
                Rejection(delta.delta_id, ForbiddenError.code, "the push is in another client's name")
                for delta in push.deltas
            ],
        )
    faulty = [*find_malformed(push.deltas), *_ambiguous(push.deltas)]
    foreign = any(delta.client_id != sender for delta in push.deltas)
    newest = max([delta.hlc for delta in push.deltas], default=0)
    if faulty or foreign or hlc.wall_of(newest) > now_ms + hlc.MAX_DRIFT_MS:
        raise _refusal(push, faulty, now_ms, sender)


def check_pull(pull: SyncPull, claims: Claims) -> None:
    """Check a pull without the store.

    Args:
        pull: the request.
        claims: of the token.

    Raises:
        ValidationError: `max_deltas` is out of range.
        ForbiddenError: the pull has another client's id.
    """
    check_limit(pull.max_deltas)
    if pull.client_id != claims.get("sub"):
        raise ForbiddenError(f"clientId is {pull.client_id!r} but the token's sub is {claims.get('sub')!r}")


def check_limit(limit: int) -> None:
    """Check the limit of a page.

    Raises:
        ValidationError: it is out of range.
    """
    if not 1 <= limit <= MAX_PULL:
        raise ValidationError(f"limit is {limit}, it must be from 1 to {MAX_PULL}")


def check_schemas(deltas: Iterable[RowDelta], config: GatewayConfig) -> None:
    """Check deltas against the registered schemas of their tables.

    Args:
        deltas: of a push.
        config: of the gateway.

    Raises:
        SchemaMismatchError: names every delta that does not fit.
    """
    schemas: Mapping[str, object] = config.schemas
    if not schemas:
        return
    refused = []
    for delta in deltas:
        known = config.schemas.get(delta.table)
        message = check_delta(known.schema, delta) if known is not None else None
        if message is not None:
            refused.append(Rejection(delta.delta_id, SchemaMismatchError.code, message))
    if refused:
        raise SchemaMismatchError(refused[0].message + _others(refused), refused)


def check_widths(stored: Mapping[RowKey, StoredRow], rows: DeltasByRow) -> None:
    """Check that no row gets more columns than allowed.

    Args:
        stored: the rows as they are.
        rows: a push's deltas.

    Raises:
        ValidationError: names every delta of such a row.
    """
    wide = too_wide(stored, rows, MAX_ROW_COLUMNS)
    if not wide:
        return
    refused = [
        Rejection(
            delta.delta_id,
            ValidationError.code,
            f"row {row_id!r} of table {table!r} would have {count} columns, at most {MAX_ROW_COLUMNS} are allowed: "
            "spread them over several rows, or store them as one JSON value",
        )
        for (table, row_id), count in wide.items()
        for delta in rows[table, row_id]
    ]
    raise ValidationError(refused[0].message + _others(refused), refused)


def check_backlog(backlog_bytes: int, limits: EngineLimits) -> None:
    """Check that the gateway may accept more.

    Args:
        backlog_bytes: its unflushed bytes.
        limits: of the engine.

    Raises:
        BackpressureError: there are too many.
    """
    if backlog_bytes > limits.max_backpressure_bytes:
        raise BackpressureError(
            f"the gateway holds {backlog_bytes} bytes that are not yet in the lake, "
            f"more than {limits.max_backpressure_bytes}: try again later",
            retry_after=limits.retry_after,
        )


def _refusal(push: SyncPush, faulty: list[Rejection], now_ms: int, sender: str) -> RefusedError:
    """Return the error for a push with invalid deltas: malformed ones come before those with another client's id."""
    known = {rejection.delta_id for rejection in faulty}
    rest = [delta for delta in push.deltas if delta.delta_id not in known]
    foreign = [
        Rejection(delta.delta_id, ForbiddenError.code, f"clientId is {delta.client_id!r}, the push's is {sender!r}")
        for delta in rest
        if delta.client_id != sender
    ]
    ahead = list(_ahead([delta for delta in rest if delta.client_id == sender], now_ms))
    rejected = [*faulty, *foreign, *ahead]
    summary = _summary(rejected, len(push.deltas))
    if faulty:
        return ValidationError(summary, rejected)
    return ForbiddenError(summary, rejected) if foreign else ClockDriftError(summary + _CLOCK, rejected)


def _ambiguous(deltas: Sequence[RowDelta]) -> list[Rejection]:
    """Return the deltas whose id another delta of the push has too, with other contents."""
    if len({delta.delta_id for delta in deltas}) == len(deltas):
        return []
    first: dict[str, RowDelta] = {}
    twice = {delta.delta_id for delta in deltas if first.setdefault(delta.delta_id, delta) != delta}
    message = "two deltas of the push have this id and differ: give each its own id"
    return [Rejection(each, ValidationError.code, message) for each in first if each in twice]


def _ahead(deltas: Iterable[RowDelta], now_ms: int) -> Iterable[Rejection]:
    bound = now_ms + hlc.MAX_DRIFT_MS
    for delta in deltas:
        wall = hlc.wall_of(delta.hlc)
        if wall > bound:
            message = f"hlc {delta.hlc} is {wall - now_ms} ms ahead of the server, {hlc.MAX_DRIFT_MS} are allowed"
            yield Rejection(delta.delta_id, ClockDriftError.code, message)


def _summary(rejected: list[Rejection], total: int) -> str:
    return f"{len(rejected)} of {total} deltas refused: {rejected[0].message}"


def _others(rejected: list[Rejection]) -> str:
    return f" (and {len(rejected) - 1} more)" if len(rejected) > 1 else ""
