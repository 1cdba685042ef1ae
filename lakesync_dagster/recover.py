"""`python -m lakesync_dagster.recover`: put Dagster's records right after a crash, before its daemon starts.

`lakesync up` runs it when nothing of Dagster runs, so a run that is recorded as running has nobody to run it. At the
first start it creates Dagster's storage.
"""

import dagster as dg

UNATTENDED = (
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)
"""Runs that a process should be busy with; a queued one waits for the daemon and is left to it."""


def recover(instance: dg.DagsterInstance) -> list[str]:
    """End every run that nobody runs and free the pool slots of runs that have ended; the ids of those ended."""
    ended = []
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=list(UNATTENDED))):
        end_run(instance, run, "LakeSync was stopped or killed while the run was going on.")
        ended.append(run.run_id)
    storage = instance.event_log_storage
    if storage.supports_global_concurrency_limits:
        for run_id in storage.get_concurrency_run_ids():
            holder = instance.get_run_by_id(run_id)
            if holder is None or holder.is_finished:
                storage.free_concurrency_slots_for_run(run_id)
    return ended


def end_run(instance: dg.DagsterInstance, run: dg.DagsterRun, message: str) -> None:
    """Record that a run's process is gone: as cancelled if that was requested, otherwise as a failure.

    Args:
        instance: Dagster's.
        run: the run.
        message: why, for the run's page.
    """
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, message=message)
    else:
        instance.report_run_failed(run, message=message)


def main() -> None:
    """Do it for the instance of DAGSTER_HOME."""
    with dg.DagsterInstance.get() as instance:
        ended = recover(instance)
    print(f"{len(ended)} runs ended{': ' if ended else ''}{', '.join(ended)}")


if __name__ == "__main__":
    main()
