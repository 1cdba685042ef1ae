"""Starts Dagster's daemon, which evaluates sensors and schedules, so that it works after the clock was set back.

The daemon waits by the wall clock, and Dagster stores when it evaluated each sensor. If the clock is set back, it would
evaluate none until the clock has caught up. So `lakesync up` restarts it then as `python -m lakesync_dagster.daemon`,
with the arguments of `dagster-daemon run`, and stored times that are in the future are deleted first.
"""

import os
import sys
import time
from pathlib import Path

import dagster as dg


def forget_future_evaluations(instance: dg.DagsterInstance) -> None:
    """Delete the stored times at which sensors were evaluated last, if these times are in the future.

    Args:
        instance: Dagster's instance.
    """
    for state in instance.all_instigator_state():
        data = state.sensor_instigator_data
        if data is not None and max(data.last_tick_timestamp or 0, data.last_tick_start_timestamp or 0) > time.time():
            without = data._replace(last_tick_timestamp=None, last_tick_start_timestamp=None)
            instance.update_instigator_state(state.with_data(without))


def main() -> None:
    """Correct the records of the instance in DAGSTER_HOME, then become Dagster's daemon."""
    with dg.DagsterInstance.get() as instance:
        forget_future_evaluations(instance)
    command = str(Path(sys.executable).with_name("dagster-daemon"))
    os.execv(command, [command, "run", *sys.argv[1:]])  # noqa: S606 no shell is wanted


if __name__ == "__main__":
    main()
