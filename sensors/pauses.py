"""When a run may be asked for again: not while one lives, and after failures later and later."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import dagster as dg

FIRST_PAUSE = 5
"""Seconds after a failed run before the next one is asked for; twice as long after each further failure."""
LONGEST_PAUSE = 300
_LOOKED_AT = 10


class Held(NamedTuple):
    """Why no run is to be asked for now."""

    failed: int
    """Runs in a row; 0: one is under way."""
    left: float
    """Seconds of the pause after them."""


def pause(instance: dg.DagsterInstance, tags: Mapping[str, str], what: str) -> str | None:
    """Why no run with these tags is to be asked for now, in words; None where one may be.

    Args:
        instance: Dagster's.
        tags: by which the runs are known.
        what: they do.
    """
    found = held(instance, tags)
    if found is None:
        return None
    if not found.failed:
        return f"{what} is under way"
    return f"{what} failed {found.failed} times in a row; the next run is asked for in {found.left:.0f} s"


def held(
    instance: dg.DagsterInstance, tags: Mapping[str, str], counts: Callable[[dg.DagsterRun], bool] = lambda _: True
) -> Held | None:
    """As `pause`, in figures.

    Args:
        instance: Dagster's.
        tags: by which the runs are known.
        counts: whether a failed run is a reason to wait.
    """
    records = instance.get_run_records(dg.RunsFilter(tags=tags), limit=_LOOKED_AT)
    if any(not record.dagster_run.is_finished for record in records):
        return Held(0, 0.0)
    failed = 0
    for record in records:
        run = record.dagster_run
        if run.status is not dg.DagsterRunStatus.FAILURE or not counts(run):
            break
        failed += 1
    if failed and records[0].end_time is not None:
        wait = min(FIRST_PAUSE * 2 ** (failed - 1), LONGEST_PAUSE)
        left = records[0].end_time + wait - datetime.now(UTC).timestamp()
        if left > 0:
            return Held(failed, left)
    return None
