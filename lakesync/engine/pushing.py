"""A push as one unit of work on the store."""

from __future__ import annotations

from typing import NamedTuple

from lakesync.delta import id_digest
from lakesync.engine.access import RulesCache
from lakesync.engine.checks import check_backlog, check_schemas
from lakesync.engine.limits import EngineLimits
from lakesync.engine.scope import check_scope
from lakesync.feed import Sender, apply
from lakesync.feed.apply import own_bucket
from lakesync.feed.positions import Access, current, holds, remember
from lakesync.staging.records import ClientRecord
from lakesync.staging.store import Commit
from lakesync.types import Claims, PushResult, RowDelta, SyncPush

NEVER_PULLED = 1
"""The cursor of a client that pushed before it ever pulled: not 0, which would ask for a checkpoint again."""


class CheckedPush(NamedTuple):
    """A push that passed `checks.check_request`."""

    push: SyncPush
    claims: Claims
    now_ms: int
    """Server wall time when it came."""


def push_work(commit: Commit, request: CheckedPush, rules: RulesCache, limits: EngineLimits) -> PushResult:
    """Commit what is new of a push.

    Raises:
        BackpressureError: the gateway holds too much.
        SchemaMismatchError: deltas do not fit their tables' schemas.
        ForbiddenError: rows are outside of what the client may write.
    """
    push, claims, now_ms = request
    client = push.client_id
    check_schemas(push.deltas, commit.config)
    new = _unknown(commit, push.deltas, client)
    record = current(commit.client(client), commit.epoch)
    covered = record.sent if record is not None else 0
    if not new:
        if record is None:
            commit.put_client(remember(None, client, commit.epoch, now_ms))
        return PushResult(max(covered, NEVER_PULLED), len(push.deltas))
    check_backlog(commit.backlog_bytes, limits)
    if (commit.config.write_scope or limits.write_scope) == "rules":
        check_scope(commit, new, claims, rules.index(commit.config))
    access = rules.access(commit, claims)
    up_to_date = record is not None and _up_to_date(commit, record, access, client)
    arrival = commit.next_arrivals(len({(delta.table, delta.row_id) for delta in new}))[-1]
    commit.append(client, new, arrival, access.claims)
    applied = apply(commit, new, Sender(client, access.keys), arrival, rules.index(commit.config))
    if up_to_date and applied.clean:
        commit.put_client(remember(record, client, commit.epoch, now_ms, sent=arrival))
        return PushResult(arrival, len(push.deltas))
    if record is None:
        commit.put_client(remember(None, client, commit.epoch, now_ms))
    return PushResult(max(covered, NEVER_PULLED), len(push.deltas))


def _unknown(commit: Commit, deltas: tuple[RowDelta, ...], client: str) -> list[RowDelta]:
    """The deltas not accepted before, each once."""
    if not deltas:
        return []
    stamps = [delta.hlc for delta in deltas]
    low, high = min(stamps), max(stamps)
    if low > commit.highest_hlc(client) and len({delta.delta_id for delta in deltas}) == len(deltas):
        return list(deltas)
    known = commit.known_ids(client, low, high)
    new = []
    for delta in deltas:
        identity = (delta.hlc, id_digest(delta.delta_id))
        if identity not in known:
            known.add(identity)
            new.append(delta)
    return new


def _up_to_date(commit: Commit, record: ClientRecord, access: Access, client: str) -> bool:
    """Whether the client was sent everything that it may see."""
    complete = record.sent > 0 and all(page.cursor != record.sent for page in record.pages)
    return (
        complete and holds(record, access) and not commit.changed_after((*access.keys, own_bucket(client)), record.sent)
    )
