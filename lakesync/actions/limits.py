"""How much actions may ask for, how long they may take, and how long they are remembered."""

from __future__ import annotations

import msgspec

_DAY_MS = 86_400_000


class ActionLimits(msgspec.Struct, frozen=True):
    """Limits of one gateway's actions."""

    max_actions: int = 100
    """In one request."""
    max_params_bytes: int = 256 << 10
    """Of one action."""
    max_data_bytes: int = 256 << 10
    """Of what one action gives back; more is left out."""
    max_running: int = 16
    """Handlers at work at once; further actions wait."""
    max_waiting: int = 1000
    """Actions that run or wait; further ones are told to come again."""
    timeout: float = 20.0
    """Seconds that a request waits for its actions; they go on after that."""
    lease: float = 30.0
    """Seconds after which an action whose process died may be tried again. A process at work renews it."""
    retention_ms: int = 7 * _DAY_MS
    """How long a repeat is known."""
    kept_entries: int = 10_000
    """Attempts that are told to an admin, the newest."""
