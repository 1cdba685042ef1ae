"""Starts a new client from a checkpoint: files with all rows as of one arrival (the gateway's timestamp of a commit).

A *gateway* is one app's stream of changes. `SyncGateway.submit_checkpoint` calls `start_from` before the server sends
the files. A *bucket* of the sync rules is the rows that they give to clients with equal claims (fields of a token). A
*cursor* is the number from which a client pulls next. The terms of the client's *record*, which says what each cursor
means that the client was sent (`staging.records.clients`):

- It belongs to an *epoch*, which ends when the store is rebuilt.
- A *scope* is a period in which the client was sent rows under the same claims and rules.
- A *page* of the record says what a cursor means at which the client has only a part of its rows.

A checkpoint is served only while it shows the client what a pull would: under the active rules, in the store's epoch,
and without data that was erased (permanently deleted) since. A client that was sent a checkpoint may lose it. So its
record has two cursors afterwards: at the checkpoint's arrival the client has all rows of its scope, and at cursor 0 it
has none.
"""

from __future__ import annotations

from msgspec.structs import replace

from lakesync.engine.active_rules import RulesCache
from lakesync.feed.client_cursors import with_page
from lakesync.feed.client_state import with_newest_scope
from lakesync.feed.scopes import Access
from lakesync.model.errors import NotFoundError
from lakesync.model.types import Claims
from lakesync.staging.records import NO_BASE, Checkpoint, ClientRecord, Page
from lakesync.staging.store import Commit, View
from lakesync.staging.store.push import ClientCommit


def start_from(
    commit: Commit, checkpoint: Checkpoint, client_id: str, claims: Claims, rules: RulesCache, now_ms: int
) -> Checkpoint:
    """Record that a new client starts from a checkpoint, and return the checkpoint.

    Args:
        commit: the open transaction in the gateway's store.
        checkpoint: the gateway's newest checkpoint.
        client_id: the client's id.
        claims: the verified claims of the client's token.
        rules: the gateway's cache of compiled sync rules.
        now_ms: server wall time in milliseconds since 1970.

    Raises:
        NotFoundError: the store was rebuilt, the rules changed or data was erased since the checkpoint was made; rows
            are still being assigned to the buckets of the active rules; or the client was seen before. The client has
            to pull instead.
    """
    access = rules.access(commit, claims)
    if (reason := not_served_reason(commit, checkpoint, rules)) is not None:
        raise NotFoundError(f"{reason}: pull from 0 instead")
    # a client that was only sent an empty page has a cursor too, which may lie above the checkpoint's arrival
    if commit.client(client_id) is not None:
        raise NotFoundError(f"client {client_id!r} was seen before: pull from its cursor, or from 0")
    _remember(commit, client_id, checkpoint.arrival, access, now_ms)
    return checkpoint


def not_served_reason(view: View, checkpoint: Checkpoint, rules: RulesCache) -> str | None:
    """Return why no client is sent a checkpoint; None if new clients are.

    Args:
        view: a consistent read of the gateway's store.
        checkpoint: the gateway's newest checkpoint.
        rules: the gateway's cache of compiled sync rules.
    """
    if checkpoint.epoch != view.epoch:
        return "the store was rebuilt after the newest checkpoint"
    if checkpoint.rules_version != view.config.rules_version:
        return "the rules are newer than the newest checkpoint"
    if not rules.is_reindexed(view):
        return "rows are still being assigned to the buckets of the active rules"
    if view.predates_erasure(checkpoint):
        return "something was erased that the newest checkpoint may hold"
    return None


def _remember(commit: ClientCommit, client_id: str, arrival: int, access: Access, now_ms: int) -> None:
    """Record that a client was sent a checkpoint, which it may or may not receive.

    The record gets a scope in which all rows up to the arrival were sent, and whose first complete cursor is the
    arrival. A page describes cursor 0, in case that the client pulls from there instead.

    Args:
        commit: the open transaction in the gateway's store.
        client_id: the client's id.
        arrival: the arrival at which the checkpoint was made; the client pulls from this cursor.
        access: the claims and bucket keys that decide what the client may see.
        now_ms: server wall time in milliseconds since 1970.
    """
    # all rows of the checkpoint count as sent
    record = with_newest_scope(ClientRecord(client_id, commit.epoch, now_ms), access, commit.arrival, arrival, arrival)
    (scope,) = record.scopes
    record = replace(record, scopes=(replace(scope, first_cursor=arrival),), last_sent_cursor=arrival)
    from_zero = Page(  # what cursor 0 means: the client has no rows
        cursor=0,
        read_up_to=0,
        base=NO_BASE,
        newest_at_start=commit.arrival,
        resync=False,
        base_scope=0,
        scope=scope.number,
    )
    commit.put_client(with_page(record, from_zero))
