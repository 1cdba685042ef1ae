"""Who may run an action, and what became of it: the units of work by which processes agree on that in the store."""

from __future__ import annotations

import msgspec

from lakesync.actions.limits import ActionLimits
from lakesync.model.types import Action, ActionFailure, ActionResult
from lakesync.staging.records import ActionEntry, ActionRecord
from lakesync.staging.store import Commit

Outcome = ActionResult | ActionFailure
"""How an action ended, or where it stands."""


class _Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """An outcome as it is stored."""

    hlc: int = 0
    data: msgspec.Raw = msgspec.Raw(b"{}")
    code: str = ""
    """Of a failure; empty where it was done."""
    message: str = ""


_decode = msgspec.json.Decoder(_Kept).decode


def claim(commit: Commit, action: Action, holder: str, now_ms: int, limits: ActionLimits) -> ActionRecord:
    """Take an action for `holder`, unless it was done or somebody is at it; what stands afterwards."""
    known = commit.action(action.client_id, action.action_id)
    twin = commit.action(action.client_id, "", action.idempotency_key)  # no action's id is empty: by its key alone
    for found in (known, twin):
        if found is not None and is_known(found, now_ms, limits):
            return found
    known = known or twin
    record = ActionRecord(
        client_id=action.client_id,
        action_id=action.action_id,
        idempotency_key=action.idempotency_key,
        attempts=1 if known is None else known.attempts + 1,
        claim=holder,
        lease_ms=now_ms + round(limits.lease * 1000),
        touched_ms=now_ms,
    )
    commit.put_action(record)
    return record


def is_known(record: ActionRecord, now_ms: int, limits: ActionLimits) -> bool:
    """Whether an action is not to be done now: it was, within the retention, or somebody is at it."""
    if record.outcome is not None:
        return record.touched_ms >= now_ms - limits.retention_ms
    return record.lease_ms > now_ms


def renew(commit: Commit, record: ActionRecord, now_ms: int, limits: ActionLimits) -> None:
    """Keep others from an action that its holder is still at."""
    if _is_held(commit, record):
        lease_ms = now_ms + round(limits.lease * 1000)
        commit.put_action(msgspec.structs.replace(record, lease_ms=lease_ms, touched_ms=now_ms))


def settle(
    commit: Commit, record: ActionRecord, outcome: Outcome, entry: ActionEntry, now_ms: int, limits: ActionLimits
) -> None:
    """Remember how an action ended and tell it to the admin; one that may be tried again is only let go.

    A claim that another took over meanwhile, or that was erased, is left alone.
    """
    if _is_held(commit, record):
        again = isinstance(outcome, ActionFailure) and outcome.retryable
        kept = None if again else encode(outcome)
        commit.put_action(msgspec.structs.replace(record, lease_ms=0, touched_ms=now_ms, outcome=kept))
    commit.note_action(entry, limits.kept_entries)
    commit.drop_actions(now_ms - limits.retention_ms)


def encode(outcome: Outcome) -> bytes:
    """An outcome that is final, as it is stored."""
    if isinstance(outcome, ActionResult):
        return msgspec.json.encode(_Kept(hlc=outcome.server_hlc, data=outcome.data))
    return msgspec.json.encode(_Kept(code=outcome.code, message=outcome.message))


def decode(kept: bytes, action_id: str) -> Outcome:
    """A stored outcome as the answer to `action_id`, which may share an idempotency key with the one that ran."""
    found = _decode(kept)
    if found.code:
        return ActionFailure(action_id, found.code, found.message, retryable=False)
    return ActionResult(action_id, found.data, found.hlc)


def _is_held(commit: Commit, record: ActionRecord) -> bool:
    known = commit.action(record.client_id, record.action_id)
    return known is not None and known.claim == record.claim
