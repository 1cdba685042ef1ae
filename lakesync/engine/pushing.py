"""A push as one transaction in the store: checks, log row, merge, feed entries, and the client's record.

A *push* is a client's request with *deltas*: INSERTs, UPDATEs and DELETEs of single rows. `SyncGateway` submits
`commit_push` to the store, and the gateway of a shard (a store for some tables) `dry_run_push` too; `docs/push.md`
follows a push from bytes to the response. The response contains a *cursor*, from which the client pulls next. The
client's *record* in the store says what each cursor means that the client was sent. The cursor depends on what the
client certainly has: a push must not make the client skip changes by others.

A *gateway* is one app's stream of changes. An *arrival* is its own timestamp of a commit. At a *complete cursor* the
client has exactly what it could see; it is the *base* of the pages that follow, and a *page mark* is a cursor in the
middle of these. `NEVER_PULLED` is the cursor of a client that certainly has no page. A *scope* is a period in which a
client was sent pages under the same claims and rules. *Broadcasts* are pages that the server sends over a WebSocket
without a request; they are not recorded. A client's copy of a row is *astray* if it may differ from the merged row
since the client's last write. A *re-index* assigns all rows to the buckets of new rules.

A *bucket key* names a bucket of the sync rules with the *claims* (fields of a client's token) that may see its rows.
The *write scope* of a gateway says whether a client may write only to rows that the rules show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from lakesync.engine.active_rules import RulesCache
from lakesync.engine.checks import EngineLimits, check_backlog, check_row_sizes, check_schemas, check_scope
from lakesync.engine.names import PushNames
from lakesync.engine.pulling import announce_other_connection
from lakesync.feed.apply import Sender, apply
from lakesync.feed.astray import mark_astray, record_repeats
from lakesync.feed.client_cursors import with_cursor_in_doubt
from lakesync.feed.client_state import (
    current_record,
    cursors_belong_to,
    ends_scope,
    may_broadcast_under_other_access,
    with_newest_scope,
    with_possible_broadcasts,
)
from lakesync.feed.positions import NEVER_PULLED, find_page, is_complete_page, may_have_been_sent
from lakesync.feed.push_rows import PushRows, by_row
from lakesync.feed.row_buckets import own_bucket
from lakesync.feed.scopes import Access, max_sent
from lakesync.model.delta import dedup_key
from lakesync.model.errors import BackpressureError, RejectedError
from lakesync.model.types import Claims, PushResult, RowDelta, RowKey, SyncPush
from lakesync.staging.records import ClientRecord, Page, StoredRow
from lakesync.staging.store.feed import FeedView
from lakesync.staging.store.push import PushCommit
from lakesync.wire.log import PackedDeltas, old_dedup_key, pack


class PreparedDeltas(NamedTuple):
    """A push's deltas, encoded and grouped by row before its transaction begins."""

    packed: PackedDeltas
    """The deltas, encoded for the log."""
    rows: PushRows
    """The deltas, by row."""
    distinct: bool
    """Whether all delta ids differ."""


class PushRequest(NamedTuple):
    """A decoded push, what the request says of its sender, and what the checks before its transaction found."""

    push: SyncPush
    claims: Claims
    """The verified claims of the sender's token."""
    known_cursor: int | None = None
    """The newest cursor that the client certainly has when it gets the response: the one in the request, or that of the
    last page on the same connection, which delivers in order. None if unknown: the changes that the client was sent
    since its last pull are then sent again after this push."""
    trusted: bool = False
    """Whether it comes from a connector (an external system that is polled), a flow (a copy from a database) or an
    embedding app. The write scope does not apply to these, and their rejections are not recorded."""
    fault: RejectedError | None = None
    """The error of deltas that cannot be decoded, or were rejected already, and are not in `push`. The push must not be
    stored then; the others are only checked, so that the response lists every rejected delta."""
    now_ms: int = 0
    """Server wall time of the request, in milliseconds since 1970; `SyncGateway` sets it before the checks."""
    already_accepted: bool = False
    """Whether it must not be rejected now: it passed `dry_run_push` in every shard, or is restored from the lake."""
    prepared: PreparedDeltas | None = None
    """What `prepare` computed for all deltas of the push; None if it was not called."""

    def without_rejected(self, fault: RejectedError) -> PushRequest:
        """Return the push without the deltas that an error rejects.

        Args:
            fault: the error; it lists at least one delta.
        """
        named = {each.delta_id for each in fault.rejected}
        others = tuple(delta for delta in self.push.deltas if delta.delta_id not in named)
        fault = fault if self.fault is None else self.fault.with_rejections_of([fault])
        return self._replace(push=replace(self.push, deltas=others), prepared=None, fault=fault)

    def prepare(self) -> PushRequest:
        """Return the push with its deltas encoded and grouped by row, unless it has none."""
        deltas = self.push.deltas
        if not deltas or self.prepared is not None:
            return self
        distinct = len({delta.delta_id for delta in deltas}) == len(deltas)
        return self._replace(prepared=PreparedDeltas(pack(deltas), by_row(deltas), distinct))


def commit_push(
    commit: PushCommit, request: PushRequest, rules: RulesCache, limits: EngineLimits, names: PushNames
) -> PushResult:
    """Store the new deltas of a push, and return the result for the client.

    Deltas that were accepted before are recognised by their ids and change nothing, so a push can be repeated.

    The steps, as marked in the body:

    1. Check the deltas, and choose those that are new.
    2. Find the cursor up to which the client certainly has everything.
    3. Store the new deltas, and merge them into their rows.
    4. Mark rows of which the client's own copy may be wrong, so that it is sent them.
    5. Choose the cursor of the response: that of the client's own push if it lacks nothing, else the one of step 2.
    6. Store the client's record.

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
        ValidationError: a row would have too many columns or bytes.
    """
    push, claims = request.push, request.claims
    access = rules.access(commit, claims)
    # 1. check
    new = _check_new(commit, request, access, rules, limits, names)
    # 2. certain cursor
    known = current_record(commit.client(push.client_id), commit, access.keys)
    # three views of the client's record: `record`, as it is stored; `proven`, with the cursor that this request proves;
    # and `with_sent`, with everything that the client may have been sent
    record = known or ClientRecord(push.client_id, commit.epoch, request.now_ms)
    known_cursor = _proven_cursor(record, request.known_cursor, access, commit.arrival)
    proven = _with_proven_cursor(record, known_cursor)
    # without a cursor that the request proves, the client may have been sent broadcasts that are not recorded
    with_sent = proven if known_cursor is not None else with_possible_broadcasts(proven, commit.arrival)
    certain = _certain_cursor(commit, with_sent, access)
    # 3. store, 4. mark
    sender_is_current = False  # whether the client need not be sent anything about the rows that it pushes
    sender = Sender(push.client_id, access.keys, reindexed=access.sees_by_values is None)
    if new.deltas:
        arrival = commit.next_arrivals(len(new.rows.deltas))[-1]
        prepared = request.prepared if new.deltas is push.deltas else None
        packed = prepared.packed if prepared is not None else pack(new.deltas)
        commit.append(push.client_id, packed, arrival, access.claims)
        index = rules.index(commit.config)
        sender_is_current = apply(commit, new.rows, sender, arrival, index, new.stored)
        if known_cursor is not None and known_cursor <= NEVER_PULLED and record.pages_sent:
            # The client was sent pages, but had none when it sent the push. If it lost its database since, and pulled
            # again before the push arrived, then it does not have these writes: its copies of the rows are astray.
            mark_astray(commit, new.rows.deltas.keys(), push.client_id)
            record = replace(record, lost_push=arrival)
            sender_is_current = False
    if len(new.deltas) < len(push.deltas):
        added = {id(delta) for delta in new.deltas}
        # it may repeat them because it was restored from a backup, and then has old versions of their rows
        repeats = [delta for delta in push.deltas if id(delta) not in added]
        must_send = record_repeats(commit, repeats, sender, proven.confirmed_cursor)
        sender_is_current = sender_is_current and not must_send
    # 5. choose the cursor
    is_stored = proven is record  # whether the stored record has the client's cursor already
    record = replace(record, has_pushed=True)
    cursor = certain.cursor
    if certain.is_complete and new.deltas and sender_is_current:
        # The client lacks nothing, so its cursor moves to its own push. A cursor that only this request proves is not
        # stored, because the response may be lost.
        confirmed_cursor = arrival if is_stored else record.confirmed_cursor
        record = replace(record, confirmed_cursor=confirmed_cursor, last_sent_cursor=arrival)
        cursor = arrival
    elif certain.doubted is not None:  # its next pulls return again what it may not have received
        record, cursor = with_cursor_in_doubt(record, certain.doubted, commit.arrival, max_sent(with_sent.scopes))
    # 6. store the record
    if new.deltas or ends_scope(record, access):  # its writes belong to the scope of its claims, which may be a new one
        if may_broadcast_under_other_access(record, access):
            announce_other_connection(commit, record, live=False)
        record = with_newest_scope(record, access, commit.arrival)
    if record != known:
        commit.put_client(replace(record, last_seen_ms=request.now_ms))
    return PushResult(cursor, len(push.deltas))


def dry_run_push(
    commit: PushCommit, request: PushRequest, rules: RulesCache, limits: EngineLimits, names: PushNames
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
    _check_new(commit, request, rules.access(commit, request.claims), rules, limits, names)


class _NewDeltas(NamedTuple):
    """The deltas of a push that are to be stored: those that were not accepted before, after every check."""

    deltas: Sequence[RowDelta]
    rows: PushRows
    """The same deltas, by row."""
    stored: Mapping[RowKey, StoredRow]
    """Their rows before the push; rows that do not exist yet are absent."""


_NO_NEW_DELTAS = _NewDeltas([], PushRows({}, (), set(), 0), {})


def _check_new(
    commit: PushCommit, request: PushRequest, access: Access, rules: RulesCache, limits: EngineLimits, names: PushNames
) -> _NewDeltas:
    """Check a push, and return the deltas that are to be stored.

    A check rejects the deltas that fail it. The others are checked again as if the client had sent them alone. So the
    error lists every delta that the client must set aside.

    Raises:
        The errors of `commit_push`.
    """
    if request.fault is None:
        try:
            return _check_once(commit, request, access, rules, limits, names)
        except RejectedError as error:
            request = request.without_rejected(error)
    fault = request.fault
    assert fault is not None
    try:
        _check_new(commit, request._replace(fault=None), access, rules, limits, names)
    except RejectedError as error:
        raise fault.with_rejections_of([error]) from None
    except BackpressureError:  # deltas that can never be accepted matter more to the client
        pass
    raise fault


def _check_once(
    commit: PushCommit, request: PushRequest, access: Access, rules: RulesCache, limits: EngineLimits, names: PushNames
) -> _NewDeltas:
    """Make each check of a push until one fails, and return the deltas that are to be stored.

    Deltas that an erasure (a permanent deletion) covers lose their values, so there is nothing to check. They are
    stored, because their client must be sent the DELETE.

    Raises:
        The errors of `commit_push`.
    """
    not_repeated = _not_repeated(commit, request)
    new = commit.filter_erased(not_repeated)  # the same list if nothing is erased; else with other objects for those
    if not new:
        return _NO_NEW_DELTAS
    to_check: Sequence[RowDelta] = []
    if not request.already_accepted:  # accepted deltas stay accepted, whatever rules are active since
        # erased deltas, which need no check, are new objects in `new`
        pairs = zip(new, not_repeated, strict=True)
        to_check = new if new is not_repeated else [delta for delta, original in pairs if delta is original]
    prepared = request.prepared if new is request.push.deltas else None
    rows = prepared.rows if prepared is not None else by_row(new)
    if to_check:
        check_schemas(to_check, commit.config)
        names.check(commit, to_check, set[str]().union(*rows.distinct_columns))
        check_backlog(commit.backlog_bytes, limits)
    stored = commit.unfolded_rows(rows.deltas.keys())  # not merged yet where this push does not need it
    scope = commit.config.write_scope or limits.write_scope
    if to_check and scope != "any" and not request.trusted:
        # during a re-index, stored rows may still have the bucket keys of earlier rules
        shown_by = access.keys if access.sees_by_values is None else frozenset[str]()
        checked = stored  # only rows of `to_check`: a visible row of an erased delta admits no other delta
        if to_check is not new:
            checked = {delta.key: stored[delta.key] for delta in to_check if delta.key in stored}
        check_scope(to_check, request.claims, rules.index(commit.config), scope, request.now_ms, checked, shown_by)
    if not request.already_accepted:
        check_row_sizes(stored, rows)
    return _NewDeltas(new, rows, stored)


class _CertainCursor(NamedTuple):
    """The cursor up to which a client certainly has everything that it may see, before its push."""

    cursor: int
    """The cursor; `NEVER_PULLED` if the client has none."""
    is_complete: bool = False
    """Whether the client has everything: no change by others is newer."""
    doubted: Page | None = None
    """The page that the client certainly has, if it was sent more since, which it may not have received; else None."""


def _proven_cursor(record: ClientRecord, known_cursor: int | None, access: Access, newest: int) -> int | None:
    """Return the cursor `known_cursor` if the client certainly has it; None if the request does not prove that.

    A cursor that is stored as a page keeps its meaning. Any other one is a complete cursor, and would be taken for one
    of the newest scope. So it proves nothing if the client was sent pages under other claims since, on another
    connection.

    Args:
        record: the client's record.
        known_cursor: the cursor in the request, or that of the last page on the same connection; None if unknown.
        access: the claims and bucket keys that decide what the client may see.
        newest: the gateway's newest arrival.
    """
    if known_cursor is None or not may_have_been_sent(record, known_cursor, newest):
        return None
    is_stored = known_cursor <= NEVER_PULLED or any(page.cursor == known_cursor for page in record.pages)
    return known_cursor if is_stored or not record.gets_broadcasts or cursors_belong_to(record, access) else None


def _with_proven_cursor(record: ClientRecord, known_cursor: int | None) -> ClientRecord:
    """Return the record with a cursor as confirmed: the client certainly has it once it receives the response.

    The response may be lost, and earlier pages on the same connection too. So the cursor of the response is computed
    from this record, but the record must not be stored.

    Args:
        record: the client's record.
        known_cursor: the cursor that the client certainly has when it gets the response; None if unknown.
    """
    if known_cursor is None:
        return record
    if known_cursor <= NEVER_PULLED:
        return replace(record, confirmed_cursor=0, pages=tuple(page for page in record.pages if page.cursor > 0))
    if known_cursor == record.confirmed_cursor or find_page(record, known_cursor) is None:
        return record
    return replace(record, confirmed_cursor=known_cursor)


def _certain_cursor(commit: FeedView, record: ClientRecord, access: Access) -> _CertainCursor:
    """Return the cursor up to which a client certainly has everything that it may see, before its push.

    Args:
        commit: the open transaction in the gateway's store.
        record: the client's record; the client certainly has its `confirmed_cursor`.
        access: the claims and bucket keys that decide what the client may see.
    """
    page = find_page(record, record.confirmed_cursor)
    if page is None:
        return _CertainCursor(NEVER_PULLED)
    if record.was_sent_more_since(page):
        return _CertainCursor(NEVER_PULLED, doubted=page)
    scope = record.scopes[-1]
    if is_complete_page(page) and page.scope == scope.number and access.same_as(scope):
        buckets = (*access.keys.union(scope.keys), own_bucket(record.client_id))
        if not commit.changed_after(buckets, page.base):
            # not below the base, which may lie above the newest arrival: a lower cursor belongs to an earlier scope
            return _CertainCursor(max(record.confirmed_cursor, page.base, commit.arrival), is_complete=True)
    # No cursor above the confirmed one is certain: other clients may have changed rows since, also under bucket keys
    # that came into use after the scope began.
    return _CertainCursor(record.confirmed_cursor)


def _not_repeated(commit: PushCommit, request: PushRequest) -> Sequence[RowDelta]:
    """Return the deltas of a push that were not accepted before, each once.

    A push whose lowest hlc (the client's timestamp) is above all earlier ones of the client cannot contain a repeated
    delta. Otherwise deltas are compared by hlc and dedup key: 8 bytes of a hash of the id. Logs of an earlier version
    have another key, `old_dedup_key`.
    """
    deltas, client, prepared = request.push.deltas, request.push.client_id, request.prepared
    if not deltas:
        return []
    if prepared is not None and prepared.distinct and prepared.packed.hlc_low > commit.highest_hlc(client):
        return deltas
    stamps = [delta.hlc for delta in deltas]
    known = commit.known_ids(client, min(stamps), max(stamps))
    new = []
    for delta in deltas:
        hlc_and_key = (delta.hlc, dedup_key(delta.delta_id))
        if hlc_and_key not in known and (delta.hlc, old_dedup_key(delta.delta_id)) not in known:
            known.add(hlc_and_key)
            new.append(delta)
    return deltas if len(new) == len(deltas) else new
