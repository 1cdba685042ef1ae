"""Claims and outcomes of actions in the staging store, by which processes agree which of them executes an action.

An action is a request of a client that a connector executes once in an external system. A process that executes it has
a claim on it. The claim expires at the end of its lease, unless the process renews it; then another process may take
over. `Dispatcher` calls this module.
"""

from __future__ import annotations

import msgspec

from lakesync.actions.action_services import ActionLimits
from lakesync.model.types import Action, ActionFailure, ActionResult
from lakesync.staging.records import ActionEntry, ActionRecord
from lakesync.staging.store.operations import ActionCommit

Outcome = ActionResult | ActionFailure
"""An action's result or failure; a retryable failure may also mean that it is still running."""


class _StoredOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """An outcome as JSON in the store."""

    hlc: int = 0
    """The gateway's timestamp of a result."""
    data: msgspec.Raw = msgspec.Raw(b"{}")
    code: str = ""
    """The code of a failure; empty for a result."""
    message: str = ""


_decode = msgspec.json.Decoder(_StoredOutcome).decode
"""Decodes a stored outcome from JSON."""


def claim(commit: ActionCommit, action: Action, attempt_id: str, now_ms: int, limits: ActionLimits) -> ActionRecord:
    """Claim an action, unless it is done or claimed by another process. Returns the action's record afterwards.

    Args:
        commit: the store's transaction.
        action: the action.
        attempt_id: identifies the attempt; the record has it as its `claim` if the attempt now has the claim.
        now_ms: the server's time, in milliseconds since 1970.
        limits: the gateway's limits.
    """
    known = commit.action(action.client_id, action.action_id)
    same_key = commit.action(action.client_id, "", action.idempotency_key)  # with an empty id, it is found by key only
    for record in (known, same_key):
        if record is not None and is_done_or_claimed(record, now_ms, limits):
            return record
    earlier = known or same_key
    claimed = ActionRecord(
        client_id=action.client_id,
        action_id=action.action_id,
        idempotency_key=action.idempotency_key,
        attempts=1 if earlier is None else earlier.attempts + 1,
        claim=attempt_id,
        lease_ms=now_ms + round(limits.lease * 1000),
        touched_ms=now_ms,
    )
    commit.put_action(claimed)
    return claimed


def is_done_or_claimed(record: ActionRecord, now_ms: int, limits: ActionLimits) -> bool:
    """Return whether an action must not be executed now: it has a recent outcome, or another process runs it.

    Args:
        record: the action's record.
        now_ms: the server's time, in milliseconds since 1970.
        limits: the gateway's limits; an outcome is recent within `retention_ms`.
    """
    if record.outcome is not None:
        return record.touched_ms >= now_ms - limits.retention_ms
    return record.lease_ms > now_ms


def renew(commit: ActionCommit, record: ActionRecord, now_ms: int, limits: ActionLimits) -> bool:
    """Extend the lease of an action that is still running. That of one whose outcome was stored stays ended.

    Args:
        commit: the store's transaction.
        record: the action's record, as `claim` returned it.
        now_ms: the server's time, in milliseconds since 1970.
        limits: the gateway's limits.

    Returns:
        False if another attempt has the claim.
    """
    known = commit.action(record.client_id, record.action_id, record.idempotency_key)
    if known is not None and known.claim == record.claim and known.lease_ms:
        lease_ms = now_ms + round(limits.lease * 1000)
        commit.put_action(msgspec.structs.replace(record, lease_ms=lease_ms, touched_ms=now_ms))
    return not _is_taken_over(known, record)


def record_outcome(
    commit: ActionCommit, record: ActionRecord, outcome: Outcome, entry: ActionEntry, now_ms: int, limits: ActionLimits
) -> bool:
    """Store an action's outcome and a log entry, and end the lease. A retryable failure is not stored.

    If another process has taken over the claim, or if it was erased, the action's record is left unchanged.

    Args:
        commit: the store's transaction.
        record: the action's record, as `claim` returned it.
        outcome: the attempt's outcome.
        entry: the log entry for admins.
        now_ms: the server's time, in milliseconds since 1970.
        limits: the gateway's limits.

    Returns:
        False if another attempt has the claim, whose outcome is the action's.
    """
    known = commit.action(record.client_id, record.action_id, record.idempotency_key)
    if known is not None and known.claim == record.claim:
        is_retryable = isinstance(outcome, ActionFailure) and outcome.retryable
        stored = None if is_retryable else encode(outcome)
        commit.put_action(msgspec.structs.replace(record, lease_ms=0, touched_ms=now_ms, outcome=stored))
    commit.note_action(entry, limits.kept_entries)
    commit.drop_actions(now_ms - limits.retention_ms)
    return not _is_taken_over(known, record)


def encode(outcome: Outcome) -> bytes:
    """Encode a final outcome for the store."""
    if isinstance(outcome, ActionResult):
        return msgspec.json.encode(_StoredOutcome(hlc=outcome.server_hlc, data=outcome.data))
    return msgspec.json.encode(_StoredOutcome(code=outcome.code, message=outcome.message))


def decode(stored: bytes, action_id: str) -> Outcome:
    """Decode a stored outcome as that of an action.

    Args:
        stored: the stored outcome.
        action_id: the id of the requested action, which may only share its idempotency key with the executed one.
    """
    outcome = _decode(stored)
    if outcome.code:
        return ActionFailure(action_id, outcome.code, outcome.message, retryable=False)
    return ActionResult(action_id, outcome.data, outcome.hlc)


def _is_taken_over(known: ActionRecord | None, record: ActionRecord) -> bool:
    """Return whether another attempt has the claim; an erased action has none, and is not executed again."""
    return known is not None and known.claim != record.claim
