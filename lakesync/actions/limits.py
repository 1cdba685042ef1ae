"""Limits of a gateway's actions."""

from __future__ import annotations

import msgspec

_DAY_MS = 86_400_000


class ActionLimits(msgspec.Struct, frozen=True):
    """Limits of one gateway's actions: size, duration and retention."""

    max_actions: int = 100
    """Per request."""
    max_params_bytes: int = 256 << 10
    """Per action."""
    max_data_bytes: int = 256 << 10
    """Of an action's result; a larger result is omitted."""
    max_running: int = 16
    """Handlers that run at the same time; further actions wait."""
    max_waiting: int = 1000
    """Actions that run or wait; further ones are rejected as retryable."""
    timeout: float = 20.0
    """Seconds that a request waits for its actions. They continue after that."""
    lease: float = 30.0
    """Seconds after which another process may retry an action whose process died. Running processes renew it."""
    retention_ms: int = 7 * _DAY_MS
    """How long a repeated action is recognised."""
    kept_entries: int = 10_000
    """Number of log entries kept for admins."""
