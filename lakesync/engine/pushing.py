"""A push as one work on the store: checks, log row, merge, feed entries, and the client's record.

`SyncGateway` submits `push_work`; see `docs/push.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from lakesync.engine.access import RulesCache
from lakesync.engine.checks import check_backlog, check_column_counts, check_schemas
from lakesync.engine.limits import EngineLimits
from lakesync.engine.names import PushNames
from lakesync.engine.pulling import tell_followers
from lakesync.engine.scope import check_scope
from lakesync.feed import Sender, apply
from lakesync.feed.apply import PushRows, by_row, own_bucket, repeated
from lakesync.feed.client_state import (
    current,
    ends_scope,
    find_page,
    has_other_access,
    in_doubt,
    is_possible,
    owns_cursors,
    with_broadcasts,
    with_scope,
)
from lakesync.feed.positions import Access, is_complete_page, max_sent
from lakesync.model.delta import id_identity
from lakesync.model.types import Claims, PushResult, RowDelta, RowKey, SyncPush
from lakesync.staging.records import ClientRecord, Page, StoredRow
from lakesync.staging.store.feed import FeedView
from lakesync.staging.store.push import PushCommit
from lakesync.wire.log import PackedDeltas, old_identity, pack

NEVER_PULLED = 1
"""Cursor of a client that pushed before its first pull: not 0, which would request a checkpoint again."""


class Ready(NamedTuple):
    """What can be computed from deltas before the store is used."""

    packed: PackedDeltas
    rows: PushRows
    distinct: bool
    """Whether all ids differ."""


class CheckedPush(NamedTuple):
    """A push that passed `checks.check_push`."""

    push: SyncPush
    claims: Claims
    now_ms: int
    """Server wall time of the request."""
    seen: int | None = None
    """The newest cursor that the client certainly has when it gets the response; None if unknown."""
    admitted: bool = False
    """It passed `check_work` in every shard, so it must not be rejected any more."""
    trusted: bool = False
    """It comes from the server's own side, to which the write scope does not apply: a connector, a flow or an embedding
    app."""
    ready: Ready | None = None
    """For all of its deltas, if it was computed beforehand."""

    def made_ready(self) -> CheckedPush:
        """Return the push with `ready`, computed in the thread that decoded it."""
        deltas = self.push.deltas
        if not deltas:
            return self
        distinct = len({delta.delta_id for delta in deltas}) == len(deltas)
        return self._replace(ready=Ready(pack(deltas), by_row(deltas), distinct))


def push_work(
    commit: PushCommit, request: CheckedPush, rules: RulesCache, limits: EngineLimits, names: PushNames
) -> PushResult:
    """Commit the new deltas of a push.

    Args:
        commit: of the gateway.
        request: the push.
        rules: the gateway's sync rules.
        limits: of the engine.
        names: checks the names of the push's tables and columns.

    Raises:
        BackpressureError: too much is unflushed.
        SchemaMismatchError: deltas do not fit their schemas, or names differ from known ones only in case.
        ForbiddenError: the client may not write to some rows.
        ValidationError: a row would have too many columns.
    """
    push, claims = request.push, request.claims
    access = rules.access(commit, claims)
    admitted = _admitted(commit, request, access, rules, limits, names)
    known = current(commit.client(push.client_id), commit.epoch, access.keys)
    record = known or ClientRecord(push.client_id, commit.epoch, request.now_ms)
    seen = _believed(record, request.seen, access, commit.arrival)
    sure = _certain(record, seen)
    heard = sure if seen is not None else with_broadcasts(sure, commit.arrival)
    covered = _covered(commit, heard, access)
    clean = False
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
        again = [delta for delta in push.deltas if id(delta) not in added]
        clean = not repeated(commit, again, sender, sure.seen) and clean
    record = replace(record, wrote=True)
    cursor = covered.cursor
    if covered.everything and new and clean:
        record, cursor = replace(record, seen=arrival if sure is record else record.seen, last=arrival), arrival
    elif covered.doubted is not None:
        record, cursor = in_doubt(record, covered.doubted, commit.arrival, max_sent(heard.scopes))
    if new or ends_scope(record, access):
        if has_other_access(record, access):
            tell_followers(commit, record, live=False)
        record = with_scope(record, access, commit.arrival)
    if record != known:
        commit.put_client(replace(record, last_seen_ms=request.now_ms))
    return PushResult(cursor, len(push.deltas))


def check_work(
    commit: PushCommit, request: CheckedPush, rules: RulesCache, limits: EngineLimits, names: PushNames
) -> None:
    """Check whether `push_work` would accept a push, without changing anything.

    Args:
        commit: of the gateway.
        request: the push.
        rules: the gateway's sync rules.
        limits: of the engine.
        names: checks the names of the push's tables and columns.

    Raises:
        As `push_work`.
    """
    _admitted(commit, request, rules.access(commit, request.claims), rules, limits, names)


class _Admitted(NamedTuple):
    """The deltas of a push that are to be stored."""

    deltas: Sequence[RowDelta]
    rows: PushRows
    """The same, by row."""
    stored: Mapping[RowKey, StoredRow]
    """Their rows as they are."""


_NOTHING = _Admitted([], PushRows({}, (), 0), {})


def _admitted(
    commit: PushCommit, request: CheckedPush, access: Access, rules: RulesCache, limits: EngineLimits, names: PushNames
) -> _Admitted:
    """Return the checked deltas of a push that are to be stored.

    Raises:
        As `push_work`.
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


class _Covered(NamedTuple):
    """Up to where a client certainly has everything that it may see, before its push."""

    cursor: int
    everything: bool = False
    """No change by others is newer."""
    doubted: Page | None = None
    """The page that it certainly has, if it was sent more since that it may not have received."""


def _believed(record: ClientRecord, seen: int | None, access: Access, newest: int) -> int | None:
    """Return the cursor that a client certainly has; None if its own claim proves nothing.

    A connection's own complete cursor proves nothing once the record's cursors have other claims.
    """
    if seen is None or not is_possible(record, seen, newest):
        return None
    with_page_mark = seen <= NEVER_PULLED or any(page.cursor == seen for page in record.pages)
    return seen if with_page_mark or not record.followed or owns_cursors(record, access) else None


def _certain(record: ClientRecord, seen: int | None) -> ClientRecord:
    """Return the record of a client that gets the response: it then has the cursor `seen`.

    The response may be lost, and earlier pages on the same connection too, so this record must not be stored.
    """
    if seen is None:
        return record
    if seen <= NEVER_PULLED:
        return replace(record, seen=0, pages=tuple(page for page in record.pages if page.cursor > 0))
    return record if seen == record.seen or find_page(record, seen) is None else replace(record, seen=seen)


def _covered(commit: FeedView, record: ClientRecord, access: Access) -> _Covered:
    at = find_page(record, record.seen)
    if at is None:
        return _Covered(NEVER_PULLED)
    if at.serial != record.pages_sent:
        return _Covered(NEVER_PULLED, doubted=at)
    scope = record.scopes[-1]
    if is_complete_page(at) and at.scope == scope.number and access.same_as(scope):
        buckets = (*access.keys.union(scope.keys), own_bucket(record.client_id))
        if not commit.changed_after(buckets, at.base):
            # an arrival below the base would mean what the client could see before
            return _Covered(max(record.seen, at.base, commit.arrival), everything=True)
    # no cursor above it is complete: other clients' rows may have changed since, also under keys of the scope's claims
    # that came into use after the scope began
    return _Covered(record.seen)


def _unknown(commit: PushCommit, request: CheckedPush) -> Sequence[RowDelta]:
    """Return the deltas that were not accepted before, each once."""
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
