"""When a run may be asked for again: not while one lives, and after failures later and later."""

from collections.abc import Mapping
from datetime import UTC, datetime

import dagster as dg

FIRST_PAUSE = 5
"""Seconds after a failed run before the next one is asked for; twice as long after each further failure."""
LONGEST_PAUSE = 300
_LOOKED_AT = 10


def pause(instance: dg.DagsterInstance, tags: Mapping[str, str], what: str) -> str | None:
    """Why no run with these tags is to be asked for now; None where one may be.

    Args:
        instance: Dagster's.
        tags: by which the runs are known.
        what: they do, for the words.
    """
    records = instance.get_run_records(dg.RunsFilter(tags=tags), limit=_LOOKED_AT)
    if any(not record.dagster_run.is_finished for record in records):
        return f"{what} is under way"
    failed = 0
    for record in records:
        if record.dagster_run.status is not dg.DagsterRunStatus.FAILURE:
            break
        failed += 1
    if failed and records[0].end_time is not None:
        wait = min(FIRST_PAUSE * 2 ** (failed - 1), LONGEST_PAUSE)
        left = records[0].end_time + wait - datetime.now(UTC).timestamp()
        if left > 0:
            return f"{what} failed {failed} times in a row; the next run is asked for in {left:.0f} s"
    return None
