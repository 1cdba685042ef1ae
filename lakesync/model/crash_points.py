"""Named places at which a test may kill this process, to prove what survives.

`LAKESYNC_CRASH_AT=name` dies at the first passage of that place, `name:n` at the n-th. Without the variable a passage
costs one look-up.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

VARIABLE = "LAKESYNC_CRASH_AT"

_passed: Counter[str] = Counter()


def crash_point(name: str) -> None:
    """Die here as by `kill -9`, with no handler and no flush, when the environment asks for it."""
    wanted, _, passage = os.environ.get(VARIABLE, "").partition(":")
    if wanted != name:
        return
    _passed[name] += 1
    if _passed[name] >= int(passage or 1):
        os.kill(os.getpid(), signal.SIGKILL)
