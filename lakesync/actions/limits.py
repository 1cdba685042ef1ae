"""Limits of a gateway's actions, set by `[limits]` or by a program with an embedded gateway."""

from __future__ import annotations

import msgspec

_DAY_MS = 86_400_000


class ActionLimits(msgspec.Struct, frozen=True):
    """Limits of one gateway's actions: size, duration and retention."""

    max_actions: int = 100
    """Actions per request."""
    max_params_bytes: int = 256 << 10
    """Size of an action's params as JSON."""
    max_data_bytes: int = 256 << 10
    """Size of an action's result as JSON; a larger result is omitted."""
    max_running: int = 16
    """Handlers that run at the same time; further actions wait."""
    max_waiting: int = 1000
    """Actions that run or wait; further ones fail with a retryable error."""
    timeout: float = 20.0
    """Seconds that a request waits for its actions. They continue after that."""
    lease: float = 30.0
    """Seconds for which a claim is valid. A process renews its claims; after its death another one may retry them."""
    retention_ms: int = 7 * _DAY_MS
    """How long outcomes are stored, so that a repeated action is recognised."""
    kept_entries: int = 10_000
    """Number of log entries kept for admins."""
