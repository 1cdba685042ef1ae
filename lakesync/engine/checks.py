"""The engine's limits, and the checks of a push or pull before anything is stored.

A *gateway* is one app's stream of changes. A *push* has *deltas*: INSERTs, UPDATEs and DELETEs of single rows, each
with the client's timestamp (hlc) and an id. It is accepted or rejected as a whole; the error names each rejected delta.
A *pull* requests a page of the deltas that the client lacks. The *claims* are the fields of the client's verified
token; `sub` is the client's id. `SyncGateway` calls `check_push`, `check_pull` and `check_page_size`, which need no
stored state. `engine.pushing` calls the others in the transaction that stores the push. The gateway server fills
`EngineLimits` from its settings, and `open_gateway` from its arguments. *Sync rules* put rows into *buckets*, and
decide by a client's claims which buckets it sees; a *bucket key* names a bucket with the claims that may see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec

from lakesync.actions.action_services import ActionLimits
from lakesync.feed.push_rows import PushRows, too_large_rows, too_wide_rows
from lakesync.model import hlc
from lakesync.model.delta import jcs_raw
from lakesync.model.errors import (
    BackpressureError,
    ClockDriftError,
    ForbiddenError,
    RejectedError,
    Rejection,
    SchemaMismatchError,
    ValidationError,
)
from lakesync.model.merge import RowState
from lakesync.model.schema import check_delta
from lakesync.model.types import Claims, ColumnValue, RowDelta, RowKey, SyncPull, SyncPush
from lakesync.model.validation import MAX_ROW_BYTES, MAX_ROW_COLUMNS, check_id, find_malformed, user_of
from lakesync.rules.keys import BucketIndex
from lakesync.staging.records import GatewayConfig, StoredRow, WriteScope

MAX_PUSH = 10_000
"""The most deltas in a push of a connector or a flow. A lower limit of clients' pushes does not apply to it."""
MAX_PULL = 10_000
"""The most deltas that a pull may request for a page."""


class EngineLimits(msgspec.Struct, frozen=True):
    """Limits that the engine enforces; `GatewaySettings` has those of HTTP."""

    max_deltas: int = MAX_PUSH
    """The most deltas in one push; a larger push is rejected with VALIDATION_ERROR."""
    max_backpressure_bytes: int = 1 << 30
    """Stored bytes of a gateway's unflushed deltas above which a push is rejected with BACKPRESSURE_ERROR."""
    retry_after: float = 5.0
    """Seconds until a client should retry after BACKPRESSURE_ERROR."""
    actions: ActionLimits = ActionLimits()
    """Limits of requests for actions, and how long the outcomes of actions are kept."""
    reindex_rows: int = 500
    """How many rows one commit reads and updates after a change of the sync rules; pushes run between these commits."""
    write_scope: WriteScope = "visible"
    """Which rows clients may push to. `any`: every row. `visible`: rows that the sync rules show the client before the
    push, and new rows. `rules`: rows that they show it before and after the push. A value that an admin sets at run
    time overrides this one."""


_OUTSIDE = "the row is outside of what this client may write"
"""The reason of a rejection by the write scope, if a bucket contains the table."""


def check_push(push: SyncPush, claims: Claims, now_ms: int, max_deltas: int) -> None:
    """Check the number, form, client ids and clock of a push's deltas.

    The push's client id must be the token's `sub`, or `import:SUB`, under which imports for that user are pushed. Its
    deltas must have the same client id. The `rejected` of each error names every rejected delta with its own reason,
    except for too many deltas, and for the id of another client than the token's: that rejects the sender, and a client
    would set its deltas aside although they are valid.

    Args:
        push: the decoded request.
        claims: the verified claims of the sender's token.
        now_ms: server wall time in milliseconds since 1970.
        max_deltas: the most deltas that it may have.

    Raises:
        ValidationError: the push has too many deltas, malformed deltas, different deltas with the same id, or an
            invalid client id.
        ForbiddenError: the push or a delta has another client's id.
        ClockDriftError: the timestamp of a delta is too far ahead of the server.
    """
    if len(push.deltas) > max_deltas:
        raise ValidationError(
            f"the push has {len(push.deltas)} deltas, at most {max_deltas} are allowed: send it in parts"
        )
    sub, sender = claims.get("sub"), push.client_id
    if fault := check_id("clientId", sender):
        raise ValidationError(fault)
    if sub not in (sender, user_of(sender)):
        raise ForbiddenError(f"clientId is {sender!r} but the token's sub is {sub!r}: push with a token of that client")
    malformed = [*find_malformed(push.deltas), *_conflicting_ids(push.deltas)]
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
        ValidationError: `max_deltas` is not from 1 to `MAX_PULL`, or the client id is invalid.
        ForbiddenError: the pull has another client's id than the token.
    """
    check_page_size(pull.max_deltas)
    check_client(pull.client_id, claims)


def check_client(client_id: str, claims: Claims) -> None:
    """Check the client id of a request that reads rows: a pull, or the download of a checkpoint.

    Args:
        client_id: the client id in the request.
        claims: the verified claims of the client's token.

    Raises:
        ValidationError: it is not a valid id. Without a token, a request may have any; an empty one would be that of
            the record that a rebuilt store has for all unknown clients.
        ForbiddenError: it is not the token's `sub`.
    """
    if fault := check_id("clientId", client_id):
        raise ValidationError(fault)
    if client_id != claims.get("sub"):
        raise ForbiddenError(
            f"clientId is {client_id!r} but the token's sub is {claims.get('sub')!r}: use a token of that client"
        )


def check_page_size(limit: int) -> None:
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


def check_row_sizes(stored: Mapping[RowKey, StoredRow], rows: PushRows) -> None:
    """Check that a push gives no row more than `MAX_ROW_COLUMNS` columns or `MAX_ROW_BYTES` bytes.

    Args:
        stored: the rows before the push; rows that do not exist yet are absent.
        rows: the push's deltas, by row.

    Raises:
        ValidationError: a row would be too large; its `rejected` names every delta of such rows.
    """
    faults = {
        key: f"{count} columns, at most {MAX_ROW_COLUMNS} are allowed: "
        "spread them over several rows, or store them as one JSON value"
        for key, count in too_wide_rows(stored, rows, MAX_ROW_COLUMNS).items()
    }
    for key, size in too_large_rows(stored, rows, MAX_ROW_BYTES).items():
        faults.setdefault(key, f"{size} bytes, at most {MAX_ROW_BYTES} are allowed: spread them over several rows")
    if not faults:
        return
    rejected = [
        Rejection(delta.delta_id, ValidationError.code, f"row {row_id!r} of table {table!r} would have {fault}")
        for (table, row_id), fault in faults.items()
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


def check_scope(
    deltas: Sequence[RowDelta],
    claims: Claims,
    index: BucketIndex,
    scope: Literal["visible", "rules"],
    now_ms: int,
    stored: Mapping[RowKey, StoredRow],
    visible_keys: AbstractSet[str] = frozenset(),
) -> None:
    """Reject deltas of rows that are outside of the sender's buckets: the *write scope* (promise R8 in docs/spec.md).

    The sync rules put rows into buckets, and a client sees the rows in the buckets that its token's claims allow. The
    rules are evaluated for the rows' values. A row that does not exist or is deleted, before or after the push, counts
    as inside at that time. The DELETE of a row that the client can never have been sent is rejected too: it would
    cancel an INSERT of another client that arrives later.

    Args:
        deltas: the push's deltas that are not stored yet.
        claims: the verified claims of the sender's token.
        index: the bucket index of the active rules.
        scope: `visible` checks each row as it is stored, `rules` also as the push would make it.
        now_ms: server wall time in milliseconds since 1970.
        stored: the rows of `deltas`, and no others, as they are stored; rows that do not exist yet are absent.
        visible_keys: the bucket keys (a bucket with values of its filters) that the sender may see. They are compared
            with the rows' stored keys first, which is fast. Empty while the stored keys may be older than the rules.

    Raises:
        ForbiddenError: `rejected` has every delta of a row that is outside. The message does not reveal whether the row
            exists.
    """
    if index.shows_all_rows:
        return
    unchecked = deltas
    if scope == "visible" and visible_keys:  # skips rows that the stored keys show to the sender: ten times faster
        shown = {key for key, row in stored.items() if not visible_keys.isdisjoint(row.keys)}
        if len(shown) == len(deltas):  # each delta has a row of its own, and the sender may see all of them
            return
        unchecked = [delta for delta in deltas if delta.key not in shown]
    # `fold` merges deltas that the stored row still keeps beside its state
    before = {delta.key: stored[delta.key].fold().state for delta in unchecked if delta.key in stored}
    outside = _invalid_deletes(before, unchecked, now_ms)
    versions = list(before.items())  # each row before the push; below also as the push would make it
    if scope == "rules":
        after = {key: state.copy() for key, state in before.items()}
        for delta in unchecked:
            after.setdefault(delta.key, RowState()).merge(delta)
        versions += after.items()
    # each version of a row with its bucket keys by the rules
    keyed = [(key, index.row_keys(key[0], state.values())) for key, state in versions if state.visible]
    # only keys that these rows have can show them
    allowed = index.client_keys_among(claims, sorted({bucket for _, row_keys in keyed for bucket in row_keys}))
    outside.update(key for key, row_keys in keyed if row_keys.isdisjoint(allowed))
    if outside:
        reasons = {
            table: _OUTSIDE if index.covers_table(table) else f"no bucket of the sync rules contains table {table!r}"
            for table, _ in outside
        }
        rejected = [
            Rejection(each.delta_id, ForbiddenError.code, reasons[each.table])
            for each in unchecked
            if each.key in outside
        ]
        summary = f"{len(rejected)} of {len(deltas)} deltas rejected: {rejected[0].message}; set those aside"
        raise ForbiddenError(summary, rejected)


def _invalid_deletes(before: Mapping[RowKey, RowState], deltas: Sequence[RowDelta], now_ms: int) -> set[RowKey]:
    """Return the rows that do not exist or are deleted, and that the push must not delete.

    A DELETE of such a row is invalid if the row never existed and the push does not write it either, or if its
    timestamp is ahead of the server's clock: it would cancel INSERTs that others make until then.

    Args:
        before: the stored rows' states.
        deltas: the push's deltas.
        now_ms: server wall time in milliseconds since 1970.
    """
    written = {delta.key for delta in deltas if delta.op != "DELETE"}
    invalid = set()
    for delta in deltas:
        if delta.op == "DELETE":
            state = before.get(delta.key)
            never_seen = state is None and delta.key not in written
            ahead = (state is None or not state.visible) and hlc.wall_of(delta.hlc) > now_ms
            if never_seen or ahead:
                invalid.add(delta.key)
    return invalid


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
    ahead = list(_future_rejections([delta for delta in rest if delta.client_id == sender], now_ms))
    rejected = [*malformed, *foreign, *ahead]
    summary = _summary(rejected, len(push.deltas))
    if malformed:
        return ValidationError(summary, rejected)
    if foreign:
        return ForbiddenError(summary, rejected)
    return ClockDriftError(summary + "; set the client's clock", rejected)


def _conflicting_ids(deltas: Sequence[RowDelta]) -> list[Rejection]:
    """Return a rejection for each id that two different deltas of the push have.

    A client may repeat a delta in one push, also with another spelling of the same values.
    """
    if len({delta.delta_id for delta in deltas}) == len(deltas):
        return []
    first: dict[str, RowDelta] = {}  # the first delta with each id
    conflicting = {delta.delta_id for delta in deltas if not _are_equal(first.setdefault(delta.delta_id, delta), delta)}
    message = "two deltas of the push have this id and differ: give each its own id"
    return [Rejection(each, ValidationError.code, message) for each in first if each in conflicting]


def _are_equal(first: RowDelta, second: RowDelta) -> bool:
    """Return whether two deltas are equal, however their values are spelled in JSON."""
    return first == second or _canonical(first) == _canonical(second)


def _canonical(delta: RowDelta) -> RowDelta:
    """Return a delta with its values in canonical JSON."""
    columns = [ColumnValue(cell.column, msgspec.Raw(jcs_raw(cell.value).encode())) for cell in delta.columns]
    return msgspec.structs.replace(delta, columns=tuple(columns))


def _future_rejections(deltas: Iterable[RowDelta], now_ms: int) -> Iterable[Rejection]:
    """Yield a rejection for each delta whose clock is too far ahead."""
    bound = now_ms + hlc.MAX_DRIFT_MS
    for delta in deltas:
        wall = hlc.wall_of(delta.hlc)
        if wall > bound:
            message = f"hlc {delta.hlc} is {wall - now_ms} ms ahead of the server, {hlc.MAX_DRIFT_MS} are allowed"
            yield Rejection(delta.delta_id, ClockDriftError.code, message)


def _summary(rejected: list[Rejection], total: int) -> str:
    """Return the message of an error: how many of `total` deltas are rejected, and the first reason."""
    return f"{len(rejected)} of {total} deltas rejected: {rejected[0].message}"


def _others(rejected: list[Rejection]) -> str:
    """Return how many rejections follow the first, for a message that ends with the first reason."""
    return f" (and {len(rejected) - 1} more)" if len(rejected) > 1 else ""
