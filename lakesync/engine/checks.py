"""Checks of a push or pull before anything is stored: form, identity, clock, schemas, columns of a row, backlog.

A *push* has *deltas*: INSERTs, UPDATEs and DELETEs of single rows, each with the client's timestamp (hlc) and an id. It
is accepted or rejected as a whole; the error names each rejected delta. `SyncGateway` calls `check_push`, `check_pull`
and `check_limit`, which need no stored state. `engine.pushing` calls the others in the transaction that stores the
push.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lakesync.engine.limits import MAX_PULL, MAX_ROW_COLUMNS, EngineLimits
from lakesync.feed.apply import PushRows, too_wide
from lakesync.model import hlc
from lakesync.model.errors import (
    BackpressureError,
    ClockDriftError,
    ForbiddenError,
    RejectedError,
    Rejection,
    SchemaMismatchError,
    ValidationError,
)
from lakesync.model.schema import check_delta
from lakesync.model.types import Claims, RowDelta, RowKey, SyncPull, SyncPush
from lakesync.model.validation import find_malformed, user_of
from lakesync.staging.records import GatewayConfig, StoredRow

_CLOCK = "; set the client's clock"


def check_push(push: SyncPush, claims: Claims, now_ms: int, limits: EngineLimits) -> None:
    """Check the number, form, client ids and clock of a push's deltas.

    The push's client id must be the token's `sub`, or `import:SUB`, under which imports for that user are pushed. Its
    deltas must have the same client id.

    Args:
        push: the decoded request.
        claims: the verified claims of the sender's token.
        now_ms: server wall time in milliseconds since 1970.
        limits: the engine's limits, of which `max_deltas` is used.

    Raises:
        ValidationError: the push has too many deltas, malformed deltas, or different deltas with the same id.
        ForbiddenError: the push or a delta has another client's id.
        ClockDriftError: the timestamp of a delta is too far ahead of the server.
            Except for too many deltas, the error's `rejected` names each rejected delta with its own reason.
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
    malformed = [*find_malformed(push.deltas), *_ambiguous(push.deltas)]
    foreign = {delta.client_id for delta in push.deltas} - {sender}
    newest = max([delta.hlc for delta in push.deltas], default=0)
    if malformed or foreign or hlc.wall_of(newest) > now_ms + hlc.MAX_DRIFT_MS:
        raise _error_for(push, malformed, now_ms, sender)


def check_pull(pull: SyncPull, claims: Claims) -> None:
    """Check the page size and the client id of a pull.

    Args:
        pull: the decoded request.
        claims: the verified claims of the client's token.

    Raises:
        ValidationError: `max_deltas` is not from 1 to `MAX_PULL`.
        ForbiddenError: the pull has another client's id than the token.
    """
    check_limit(pull.max_deltas)
    if pull.client_id != claims.get("sub"):
        raise ForbiddenError(f"clientId is {pull.client_id!r} but the token's sub is {claims.get('sub')!r}")


def check_limit(limit: int) -> None:
    """Check the page size of a pull, in deltas.

    Raises:
        ValidationError: it is not from 1 to `MAX_PULL`.
    """
    if not 1 <= limit <= MAX_PULL:
        raise ValidationError(f"limit is {limit}, it must be from 1 to {MAX_PULL}")


def check_schemas(deltas: Iterable[RowDelta], config: GatewayConfig) -> None:
    """Check deltas against the schemas of their tables. Tables without a registered schema accept any column.

    Args:
        deltas: the push's deltas.
        config: the gateway's configuration, which contains the registered schemas.

    Raises:
        SchemaMismatchError: deltas do not fit their table's schema; its `rejected` names every one of them.
    """
    if not config.schemas:
        return
    rejected = []
    for delta in deltas:
        registered = config.schemas.get(delta.table)
        message = check_delta(registered.schema, delta) if registered is not None else None
        if message is not None:
            rejected.append(Rejection(delta.delta_id, SchemaMismatchError.code, message))
    if rejected:
        raise SchemaMismatchError(rejected[0].message + _others(rejected), rejected)


def check_column_counts(stored: Mapping[RowKey, StoredRow], rows: PushRows) -> None:
    """Check that a push gives no row more than `MAX_ROW_COLUMNS` columns.

    Args:
        stored: the rows before the push; rows that do not exist yet are absent.
        rows: the push's deltas, by row.

    Raises:
        ValidationError: a row would have too many columns; its `rejected` names every delta of such rows.
    """
    wide = too_wide(stored, rows, MAX_ROW_COLUMNS)
    if not wide:
        return
    rejected = [
        Rejection(
            delta.delta_id,
            ValidationError.code,
            f"row {row_id!r} of table {table!r} would have {count} columns, at most {MAX_ROW_COLUMNS} are allowed: "
            "spread them over several rows, or store them as one JSON value",
        )
        for (table, row_id), count in wide.items()
        for delta in rows.deltas[table, row_id]
    ]
    raise ValidationError(rejected[0].message + _others(rejected), rejected)


def check_backlog(backlog_bytes: int, limits: EngineLimits) -> None:
    """Apply backpressure: reject a push while too many bytes are not in the lake yet.

    Args:
        backlog_bytes: stored bytes of the gateway's unflushed deltas.
        limits: the engine's limits, of which `max_backpressure_bytes` and `retry_after` are used.

    Raises:
        BackpressureError: more bytes are unflushed than allowed.
    """
    if backlog_bytes > limits.max_backpressure_bytes:
        raise BackpressureError(
            f"the gateway holds {backlog_bytes} bytes that are not yet in the lake, "
            f"more than {limits.max_backpressure_bytes}: try again later",
            retry_after=limits.retry_after,
        )


def _error_for(push: SyncPush, malformed: list[Rejection], now_ms: int, sender: str) -> RejectedError:
    """Return the error for a push with invalid deltas.

    The first kind of fault that occurs decides the class: malformed deltas, then another client's id, then the clock.

    Args:
        push: the push.
        malformed: the rejections of its malformed deltas.
        now_ms: server wall time in milliseconds since 1970.
        sender: the client id that the push has.
    """
    named = {rejection.delta_id for rejection in malformed}
    rest = [delta for delta in push.deltas if delta.delta_id not in named]
    foreign = [
        Rejection(delta.delta_id, ForbiddenError.code, f"clientId is {delta.client_id!r}, the push's is {sender!r}")
        for delta in rest
        if delta.client_id != sender
    ]
    ahead = list(_ahead([delta for delta in rest if delta.client_id == sender], now_ms))
    rejected = [*malformed, *foreign, *ahead]
    summary = _summary(rejected, len(push.deltas))
    if malformed:
        return ValidationError(summary, rejected)
    return ForbiddenError(summary, rejected) if foreign else ClockDriftError(summary + _CLOCK, rejected)


def _ambiguous(deltas: Sequence[RowDelta]) -> list[Rejection]:
    """Return a rejection for each id that two different deltas of the push have."""
    if len({delta.delta_id for delta in deltas}) == len(deltas):
        return []
    first: dict[str, RowDelta] = {}
    twice = {delta.delta_id for delta in deltas if first.setdefault(delta.delta_id, delta) != delta}
    message = "two deltas of the push have this id and differ: give each its own id"
    return [Rejection(each, ValidationError.code, message) for each in first if each in twice]


def _ahead(deltas: Iterable[RowDelta], now_ms: int) -> Iterable[Rejection]:
    """Yield a rejection for each delta whose clock is too far ahead."""
    bound = now_ms + hlc.MAX_DRIFT_MS
    for delta in deltas:
        wall = hlc.wall_of(delta.hlc)
        if wall > bound:
            message = f"hlc {delta.hlc} is {wall - now_ms} ms ahead of the server, {hlc.MAX_DRIFT_MS} are allowed"
            yield Rejection(delta.delta_id, ClockDriftError.code, message)


def _summary(rejected: list[Rejection], total: int) -> str:
    return f"{len(rejected)} of {total} deltas rejected: {rejected[0].message}"


def _others(rejected: list[Rejection]) -> str:
    return f" (and {len(rejected) - 1} more)" if len(rejected) > 1 else ""
