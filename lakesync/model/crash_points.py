"""Named places in the code at which a test can kill the process, to prove that nothing is lost.

Commits, flushes, rebuilds and erasures call `crash_point` between two steps. Crash tests set the environment variable
`LAKESYNC_CRASH_AT`: with `name`, the process dies when it first reaches the place of that name; with `name:n`, the n-th
time. Without the variable, a crash point costs one look-up, so it may stay in code that runs for every commit.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

VARIABLE = "LAKESYNC_CRASH_AT"
"""The environment variable that names the place."""

_passed: Counter[str] = Counter()
"""How often this process has reached the named place."""


def crash_point(name: str) -> None:
    """Kill this process like `kill -9` if the environment names this place, and it is reached often enough."""
    wanted, _, count = os.environ.get(VARIABLE, "").partition(":")
    if wanted != name:
        return
    _passed[name] += 1
    if _passed[name] >= int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
