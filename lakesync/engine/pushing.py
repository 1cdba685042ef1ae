"""A push as one transaction in the store: checks, log row, merge, feed entries, and the client's record.

A *push* is a client's request with *deltas*: INSERTs, UPDATEs and DELETEs of single rows. `SyncGateway` submits
`commit_push` to the store, and the gateway of a shard `dry_run_push` too; `docs/push.md` follows a push from bytes to
the response. The response contains a *cursor*, from which the client pulls next. It depends on what the client
certainly has: a push must not make the client skip changes by others. `feed.positions` defines the terms of cursors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from lakesync.engine.active_rules import RulesCache
from lakesync.engine.checks import EngineLimits, check_backlog, check_column_counts, check_schemas, check_scope
from lakesync.engine.names import PushNames
from lakesync.engine.pulling import announce_other_connection
from lakesync.feed import Sender, apply
from lakesync.feed.apply import PushRows, by_row, own_bucket, repeated
from lakesync.feed.client_state import (
    current,
    ends_scope,
    find_page,
    has_other_access,
    may_have_been_sent,
    owns_cursors,
    with_broadcasts,
    with_cursor_in_doubt,
    with_scope,
)
from lakesync.feed.positions import NEVER_PULLED, Access, is_complete_page, max_sent
from lakesync.model.delta import id_identity
from lakesync.model.types import Claims, PushResult, RowDelta, RowKey, SyncPush
from lakesync.staging.records import ClientRecord, Page, StoredRow
from lakesync.staging.store.feed import FeedView
from lakesync.staging.store.push import PushCommit
from lakesync.wire.log import PackedDeltas, old_identity, pack


class Ready(NamedTuple):
    """A push's deltas, encoded and grouped by row before its transaction begins."""

    packed: PackedDeltas
    """The deltas, encoded for the log."""
    rows: PushRows
    """The deltas, by row."""
    distinct: bool
    """Whether all delta ids differ."""


class ReceivedPush(NamedTuple):
    """A decoded push, and what the request says of its sender."""

    push: SyncPush
    claims: Claims
    """The verified claims of the sender's token."""
    seen: int | None = None
    """The newest cursor that the client certainly has when it gets the response; None if unknown."""
    trusted: bool = False
    """Whether it comes from a connector, a flow or an embedding app. The write scope does not apply to these, and their
    rejections are not recorded."""


class CheckedPush(NamedTuple):
    """A push that passed `checks.check_push`."""

    push: SyncPush
    claims: Claims
    """The verified claims of the sender's token."""
    now_ms: int
    """Server wall time of the request, in milliseconds since 1970."""
    seen: int | None = None
    """The newest cursor that the client certainly has when it gets the response; None if unknown."""
    admitted: bool = False
    """Whether it passed `dry_run_push` in every shard, so that it must not be rejected now."""
    trusted: bool = False
    """Whether it comes from a connector, a flow or an embedding app, to which the write scope does not apply."""
    ready: Ready | None = None
    """What `made_ready` computed for all deltas of the push; None if it was not called."""

    def made_ready(self) -> CheckedPush:
        """Return the push with `ready`."""
        deltas = self.push.deltas
        if not deltas or self.ready is not None:
            return self
        distinct = len({delta.delta_id for delta in deltas}) == len(deltas)
        return self._replace(ready=Ready(pack(deltas), by_row(deltas), distinct))


def commit_push(
    commit: PushCommit, request: CheckedPush, rules: RulesCache, limits: EngineLimits, names: PushNames
) -> PushResult:
    """Store the new deltas of a push, and return the result for the client.

    Deltas that were accepted before are recognised by their ids and change nothing, so a push can be repeated.

    Args:
        commit: the open transaction in the gateway's store.
        request: the push, after `check_push`.
        rules: the gateway's cache of compiled sync rules.
        limits: the engine's limits.
        names: checks the names of the push's tables and columns.

    Returns:
        The client's new cursor, and the number of accepted deltas, repeated ones included.

    Raises:
        BackpressureError: the gateway has too many unflushed bytes.
        SchemaMismatchError: deltas do not fit their schemas, or names differ from known ones only in case.
        ForbiddenError: the client may not write to some rows.
        ValidationError: a row would have too many columns.
    """
    push, claims = request.push, request.claims
    access = rules.access(commit, claims)
    admitted = _admitted(commit, request, access, rules, limits, names)
    known = current(commit.client(push.client_id), commit.epoch, access.keys)
    record = known or ClientRecord(push.client_id, commit.epoch, request.now_ms)
    seen = _proven_cursor(record, request.seen, access, commit.arrival)
    proven = _with_proven_cursor(record, seen)
    with_sent = proven if seen is not None else with_broadcasts(proven, commit.arrival)
    before = _certain_cursor(commit, with_sent, access)
    clean = False  # whether the client need not be sent anything about the rows that it pushes
    sender = Sender(push.client_id, access.keys, reindexed=access.directly is None)
    new = admitted.deltas
    if new:
        arrival = commit.next_arrivals(len(admitted.rows.deltas))[-1]
        packed = request.ready.packed if new is push.deltas and request.ready is not None else pack(new)
        commit.append(push.client_id, packed, arrival, access.claims)
        index = rules.index(commit.config)
        clean = apply(commit, admitted.rows, sender, arrival, index, admitted.stored).clean
    if len(new) < len(push.deltas):
        added = {id(delta) for delta in new}
        # it may repeat them because it was restored from a backup, and then has old versions of their rows
        repeats = [delta for delta in push.deltas if id(delta) not in added]
        clean = not repeated(commit, repeats, sender, proven.seen) and clean
    record = replace(record, wrote=True)
    cursor = before.cursor
    if before.is_complete and new and clean:  # the client lacks nothing, so its cursor moves to its own push
        record, cursor = replace(record, seen=arrival if proven is record else record.seen, last=arrival), arrival
    elif before.doubted is not None:  # its next pulls return again what it may not have received
        record, cursor = with_cursor_in_doubt(record, before.doubted, commit.arrival, max_sent(with_sent.scopes))
    if new or ends_scope(record, access):  # its writes belong to the scope of its claims, which may be a new one
        if has_other_access(record, access):
            announce_other_connection(commit, record, live=False)
        record = with_scope(record, access, commit.arrival)
    if record != known:
        commit.put_client(replace(record, last_seen_ms=request.now_ms))
    return PushResult(cursor, len(push.deltas))


def dry_run_push(
    commit: PushCommit, request: CheckedPush, rules: RulesCache, limits: EngineLimits, names: PushNames
) -> None:
    """Check whether `commit_push` would accept a push, without storing any delta.

    A sharded gateway calls it in all shards of a push before the first one stores its part.

    Args:
        commit: the open transaction in the gateway's store.
        request: the push, after `check_push`.
        rules: the gateway's cache of compiled sync rules.
        limits: the engine's limits.
        names: checks the names of the push's tables and columns.

    Raises:
        The errors of `commit_push`.
    """
    _admitted(commit, request, rules.access(commit, request.claims), rules, limits, names)


class _Admitted(NamedTuple):
    """The deltas of a push that are to be stored: new ones that passed every check."""

    deltas: Sequence[RowDelta]
    rows: PushRows
    """The same deltas, by row."""
    stored: Mapping[RowKey, StoredRow]
    """Their rows before the push; rows that do not exist yet are absent."""


_NOTHING = _Admitted([], PushRows({}, (), 0), {})


def _admitted(
    commit: PushCommit, request: CheckedPush, access: Access, rules: RulesCache, limits: EngineLimits, names: PushNames
) -> _Admitted:
    """Check a push, and return the deltas that are to be stored.

    Deltas that an erasure (a permanent deletion) covers lose their values, so there is nothing to check. They are
    stored, because their client must be sent the DELETE.

    Raises:
        The errors of `commit_push`.
    """
    unknown = _unknown(commit, request)
    new = commit.filter_erased(unknown)
    if not new:
        return _NOTHING
    kept: Sequence[RowDelta] = []
    if not request.admitted:  # accepted deltas stay accepted, whatever rules are active since
        kept = new if new is unknown else [delta for delta, came in zip(new, unknown, strict=True) if delta is came]
    whole = request.ready if new is request.push.deltas else None
    rows = whole.rows if whole is not None else by_row(new)
    if kept:
        check_schemas(kept, commit.config)
        names.check(commit, kept, rows.shared_columns)
        check_backlog(commit.backlog_bytes, limits)
    stored = commit.unfolded_rows(rows.deltas.keys())
    scope = commit.config.write_scope or limits.write_scope
    if kept and scope != "any" and not request.trusted:
        shown_by = access.keys if access.directly is None else frozenset[str]()
        check_scope(kept, request.claims, rules.index(commit.config), scope, request.now_ms, stored, shown_by)
    if not request.admitted:
        check_column_counts(stored, rows)
    return _Admitted(new, rows, stored)


class _CertainCursor(NamedTuple):
    """The cursor up to which a client certainly has everything that it may see, before its push."""

    cursor: int
    """The cursor; `NEVER_PULLED` if the client has none."""
    is_complete: bool = False
    """Whether the client has everything: no change by others is newer."""
    doubted: Page | None = None
    """The page that the client certainly has, if it was sent more since, which it may not have received; else None."""


def _proven_cursor(record: ClientRecord, seen: int | None, access: Access, newest: int) -> int | None:
    """Return the cursor `seen` if the client certainly has it; None if the request does not prove that.

    Complete cursors belong to the newest claims of a client. So the complete cursor of a connection proves nothing if
    the client was sent pages under other claims since, on another connection.

    Args:
        record: the client's record.
        seen: the cursor in the request, or that of the last page on the same connection; None if unknown.
        access: the claims and bucket keys that decide what the client may see.
        newest: the gateway's newest arrival.
    """
    if seen is None or not may_have_been_sent(record, seen, newest):
        return None
    with_page_mark = seen <= NEVER_PULLED or any(page.cursor == seen for page in record.pages)
    return seen if with_page_mark or not record.followed or owns_cursors(record, access) else None


def _with_proven_cursor(record: ClientRecord, seen: int | None) -> ClientRecord:
    """Return the record of a client that has the cursor `seen`, as it certainly does once it receives the response.

    The response may be lost, and earlier pages on the same connection too. So the cursor of the response is computed
    from this record, but the record must not be stored.

    Args:
        record: the client's record.
        seen: the cursor that the client certainly has when it gets the response; None if unknown.
    """
    if seen is None:
        return record
    if seen <= NEVER_PULLED:
        return replace(record, seen=0, pages=tuple(page for page in record.pages if page.cursor > 0))
    return record if seen == record.seen or find_page(record, seen) is None else replace(record, seen=seen)


def _certain_cursor(commit: FeedView, record: ClientRecord, access: Access) -> _CertainCursor:
    """Return the cursor up to which a client certainly has everything that it may see, before its push.

    Args:
        commit: the open transaction in the gateway's store.
        record: the client's record, with the cursor that it certainly has as `seen`.
        access: the claims and bucket keys that decide what the client may see.
    """
    at = find_page(record, record.seen)
    if at is None:
        return _CertainCursor(NEVER_PULLED)
    if at.serial != record.pages_sent:
        return _CertainCursor(NEVER_PULLED, doubted=at)
    scope = record.scopes[-1]
    if is_complete_page(at) and at.scope == scope.number and access.same_as(scope):
        buckets = (*access.keys.union(scope.keys), own_bucket(record.client_id))
        if not commit.changed_after(buckets, at.base):
            # not below the base, which may lie above the newest arrival: a lower cursor belongs to an earlier scope
            return _CertainCursor(max(record.seen, at.base, commit.arrival), is_complete=True)
    # No cursor above `seen` is certain: rows may have changed since by other clients, also under bucket keys that came
    # into use after the scope began.
    return _CertainCursor(record.seen)


def _unknown(commit: PushCommit, request: CheckedPush) -> Sequence[RowDelta]:
    """Return the deltas of a push that were not accepted before, each once.

    A push whose lowest hlc is above all earlier ones of the client cannot contain a repeated delta.
    """
    deltas, client, ready = request.push.deltas, request.push.client_id, request.ready
    if not deltas:
        return []
    if ready is not None and ready.distinct and ready.packed.hlc_low > commit.highest_hlc(client):
        return deltas
    stamps = [delta.hlc for delta in deltas]
    known = commit.known_ids(client, min(stamps), max(stamps))
    new = []
    for delta in deltas:
        identity = (delta.hlc, id_identity(delta.delta_id))
        if identity not in known and (delta.hlc, old_identity(delta.delta_id)) not in known:
            known.add(identity)
            new.append(delta)
    return deltas if len(new) == len(deltas) else new
