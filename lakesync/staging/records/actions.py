"""Actions of clients: what is known of each, and what an admin is told of attempts."""

from __future__ import annotations

import msgspec


class ActionRecord(msgspec.Struct, frozen=True):
    """What is known of one action of a client: who is at it, or how it ended."""

    client_id: str
    action_id: str
    idempotency_key: str | None
    attempts: int
    claim: str
    """Who runs it, or ran it last."""
    lease_ms: int
    """Server wall time until which the claim's holder is believed to be at it; 0 where nobody is."""
    touched_ms: int
    """Server wall time of the latest change."""
    outcome: bytes | None = None
    """How it ended; None where it has not, or may be tried again."""


class ActionEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One attempt at an action, as told to an admin; never its params nor its result."""

    seq: int
    """Counts the gateway's attempts from 1."""
    at_ms: int
    """Server wall time of its end."""
    client_id: str
    action_id: str
    connector: str
    action_type: str
    attempt: int
    code: str
    """`OK`, or the failure's code."""
    ms: int
    """How long the handler took."""
