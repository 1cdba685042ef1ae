"""Records of clients' actions, and of each attempt at one."""

from __future__ import annotations

import msgspec


class ActionRecord(msgspec.Struct, frozen=True):
    """The state of a client's action: who executes it, or its result."""

    client_id: str
    action_id: str
    idempotency_key: str | None
    attempts: int
    claim: str
    """Identifies the process and attempt that executes it, or executed it last."""
    lease_ms: int
    """Server wall time until which the holder of the claim may execute it; 0 if nobody does."""
    touched_ms: int
    """Server wall time of the latest change."""
    outcome: bytes | None = None
    """Its result; None if it has none, or may be tried again."""


class ActionEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One attempt at an action, as admins see it: without params and result."""

    seq: int
    """Counts the gateway's attempts from 1."""
    at_ms: int
    """Server wall time when it ended."""
    client_id: str
    action_id: str
    connector: str
    action_type: str
    attempt: int
    code: str
    """`OK`, or the failure's code."""
    ms: int
    """How long the handler took."""
