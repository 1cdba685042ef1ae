"""Claims and outcomes of actions in the staging store, by which processes agree which of them executes an action.

An action is a request of a client to do something in an external system. Before a process executes it, the process
*claims* it: the action's record in the store names the attempt. (A claim of a token is something else.) The claim
expires at the end of its *lease*, unless the process renews it; then another process may claim the action. The attempt
that has the claim stores the *outcome*, which a repeated action gets. `Dispatcher` runs these functions in transactions
of the store: `claim`, then `renew` at intervals, then `record_outcome`. A gateway is one app's stream of changes.
"""

from __future__ import annotations

import msgspec

from lakesync.actions.action_services import ActionLimits
from lakesync.model.types import Action, ActionFailure, ActionOutcome, ActionResult
from lakesync.staging.records import ActionEntry, ActionRecord
from lakesync.staging.store.operations import ActionCommit


class _StoredOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """An outcome as JSON in the store."""

    hlc: int = 0
    """The gateway's timestamp of a result."""
    data: msgspec.Raw = msgspec.Raw(b"{}")
    code: str = ""
    """The code of a failure; empty for a result."""
    message: str = ""


_decode = msgspec.json.Decoder(_StoredOutcome).decode


def claim(commit: ActionCommit, action: Action, attempt_id: str, now_ms: int, limits: ActionLimits) -> ActionRecord:
    """Claim an action, unless it is done or claimed already. Return the action's record after that.

    If another action of the client has the same idempotency key, and is done or claimed, its record is returned.

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
        is_done = kept_outcome(record, now_ms, limits) is not None
        if record is not None and (is_done or record.lease_ms > now_ms):
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


def kept_outcome(record: ActionRecord | None, now_ms: int, limits: ActionLimits) -> bytes | None:
    """Return the outcome that a repeated action gets; None if none is stored, or if it is older than `retention_ms`.

    Args:
        record: the action's record; None if it has none.
        now_ms: the server's time, in milliseconds since 1970.
        limits: the gateway's limits.
    """
    return record.outcome if record is not None and record.touched_ms >= now_ms - limits.retention_ms else None


def renew(commit: ActionCommit, record: ActionRecord, now_ms: int, limits: ActionLimits) -> bool:
    """Extend the lease of an action, unless the attempt has ended.

    Args:
        commit: the store's transaction.
        record: the action's record, as `claim` returned it.
        now_ms: the server's time, in milliseconds since 1970.
        limits: the gateway's limits.

    Returns:
        False if another attempt has the claim.
    """
    stored = commit.action(record.client_id, record.action_id, record.idempotency_key)
    if stored is not None and stored.claim == record.claim and stored.lease_ms:  # 0 once the attempt has ended
        lease_ms = now_ms + round(limits.lease * 1000)
        commit.put_action(msgspec.structs.replace(record, lease_ms=lease_ms, touched_ms=now_ms))
    return not _is_taken_over(stored, record)


def record_outcome(
    commit: ActionCommit,
    record: ActionRecord,
    outcome: ActionOutcome,
    entry: ActionEntry,
    now_ms: int,
    limits: ActionLimits,
) -> bool:
    """Store an action's outcome and a log entry, and end the lease; delete records of old actions.

    A retryable failure is no outcome, so that the action can be tried again. If another attempt has the claim, or if
    the action was erased, the action's record is left unchanged.

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
        stored = None if is_retryable else _encode(outcome)
        commit.put_action(msgspec.structs.replace(record, lease_ms=0, touched_ms=now_ms, outcome=stored))
    commit.note_action(entry, limits.kept_entries)
    commit.drop_actions(now_ms - limits.retention_ms)
    return not _is_taken_over(known, record)


def decode(stored: bytes, action_id: str) -> ActionOutcome:
    """Decode a stored outcome as that of an action.

    Args:
        stored: the stored outcome.
        action_id: the id of the requested action, which may only share its idempotency key with the executed one.
    """
    outcome = _decode(stored)
    if outcome.code:
        return ActionFailure(action_id, outcome.code, outcome.message, retryable=False)
    return ActionResult(action_id, outcome.data, outcome.hlc)


def _encode(outcome: ActionOutcome) -> bytes:
    """Encode an outcome for the store."""
    if isinstance(outcome, ActionResult):
        return msgspec.json.encode(_StoredOutcome(hlc=outcome.server_hlc, data=outcome.data))
    return msgspec.json.encode(_StoredOutcome(code=outcome.code, message=outcome.message))


def _is_taken_over(stored: ActionRecord | None, record: ActionRecord) -> bool:
    """Return whether another attempt has claimed the action.

    Args:
        stored: the record that the store has now; None if the action was erased, so that it is not executed again.
        record: the record with this attempt's claim.
    """
    return stored is not None and stored.claim != record.claim
