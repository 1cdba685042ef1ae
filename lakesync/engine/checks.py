"""Checks of a request before anything is stored: form, identity, clock, schemas, columns of a row, backlog.

`SyncGateway` calls the checks that need no stored state. `engine.pushing` calls the others in the transaction that
stores the push.
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


def check_push(push: SyncPush, claims: Claims, now_ms: int, limits: EngineLimits) -> None:
    """Check what needs no stored state: number, form, client ids and clock of the deltas.

    The push's client id is the token's `sub`, or `import:SUB`, under which imports for that user are pushed.

    Args:
        push: the request.
        claims: the verified token's claims.
        now_ms: server wall time in milliseconds since 1970.
        limits: the engine's limits.

    Raises:
        ValidationError: too many deltas, malformed ones, or different ones with one id.
        ForbiddenError: a delta, or the push, has another client's id.
        ClockDriftError: the HLC (hybrid logical clock) timestamp of a delta is too far ahead of the server.
            Except for too many deltas, `rejected` names each delta with its own reason.
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
    """Check what needs no stored state: page size and client id.

    Args:
        pull: the request.
        claims: the verified token's claims.

    Raises:
        ValidationError: `max_deltas` is out of range.
        ForbiddenError: the pull has another client's id.
    """
    check_limit(pull.max_deltas)
    if pull.client_id != claims.get("sub"):
        raise ForbiddenError(f"clientId is {pull.client_id!r} but the token's sub is {claims.get('sub')!r}")


def check_limit(limit: int) -> None:
    """Check the page size of a pull, in deltas.

    Raises:
        ValidationError: it is out of range.
    """
    if not 1 <= limit <= MAX_PULL:
        raise ValidationError(f"limit is {limit}, it must be from 1 to {MAX_PULL}")


def check_schemas(deltas: Iterable[RowDelta], config: GatewayConfig) -> None:
    """Check deltas against the schemas of their tables. Tables without a registered schema accept any column.

    Args:
        deltas: the push's deltas.
        config: the gateway's configuration, which has the schemas.

    Raises:
        SchemaMismatchError: names every delta that does not fit.
    """
    if not config.schemas:
        return
    refused = []
    for delta in deltas:
        known = config.schemas.get(delta.table)
        message = check_delta(known.schema, delta) if known is not None else None
        if message is not None:
            refused.append(Rejection(delta.delta_id, SchemaMismatchError.code, message))
    if refused:
        raise SchemaMismatchError(refused[0].message + _others(refused), refused)


def check_column_counts(stored: Mapping[RowKey, StoredRow], rows: PushRows) -> None:
    """Check that no row gets more than `MAX_ROW_COLUMNS` columns.

    Args:
        stored: the rows before the push.
        rows: the push's deltas.

    Raises:
        ValidationError: names every delta of a row with too many columns.
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
        for delta in rows.deltas[table, row_id]
    ]
    raise ValidationError(refused[0].message + _others(refused), refused)


def check_backlog(backlog_bytes: int, limits: EngineLimits) -> None:
    """Apply backpressure: reject a push while too many bytes wait for a flush.

    Args:
        backlog_bytes: size of the gateway's unflushed deltas.
        limits: the engine's limits.

    Raises:
        BackpressureError: more bytes are unflushed than allowed.
    """
    if backlog_bytes > limits.max_backpressure_bytes:
        raise BackpressureError(
            f"the gateway holds {backlog_bytes} bytes that are not yet in the lake, "
            f"more than {limits.max_backpressure_bytes}: try again later",
            retry_after=limits.retry_after,
        )


def _refusal(push: SyncPush, faulty: list[Rejection], now_ms: int, sender: str) -> RefusedError:
    """Return the error for a push with invalid deltas.

    Malformed ones come first, then those with another client's id, then those with a clock that is ahead.
    """
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
    return f"{len(rejected)} of {total} deltas refused: {rejected[0].message}"


def _others(rejected: list[Rejection]) -> str:
    return f" (and {len(rejected) - 1} more)" if len(rejected) > 1 else ""
