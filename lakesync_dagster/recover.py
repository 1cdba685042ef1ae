"""Corrects Dagster's records of runs after a crash.

`lakesync up` runs `python -m lakesync_dagster.recover` before it starts Dagster's daemon, which launches queued runs.
So runs that are recorded as running have no process. At the first start it creates Dagster's storage. The run host,
which forks the processes of runs, also uses `end_run` and `IN_PROGRESS`.
"""

import dagster as dg

IN_PROGRESS = (
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)
"""Statuses of runs that have a process. Queued runs are not among them; the daemon starts them."""


def recover(instance: dg.DagsterInstance) -> list[str]:
    """Record every run without a process as ended, and free the slots of ended runs in Dagster's concurrency pools.

    Args:
        instance: Dagster's instance.

    Returns:
        Ids of the runs that were recorded as ended.
    """
    ended = []
    for run in instance.get_runs(filters=dg.RunsFilter(statuses=list(IN_PROGRESS))):
        end_run(instance, run, "LakeSync was stopped or killed while the run was going on.")
        ended.append(run.run_id)
    storage = instance.event_log_storage
    if storage.supports_global_concurrency_limits:
        for run_id in storage.get_concurrency_run_ids():
            owner = instance.get_run_by_id(run_id)
            if owner is None or owner.is_finished:
                storage.free_concurrency_slots_for_run(run_id)
    return ended


def end_run(instance: dg.DagsterInstance, run: dg.DagsterRun, message: str) -> None:
    """Record a run whose process is gone as cancelled, if that was requested, otherwise as failed.

    Args:
        instance: Dagster's instance.
        run: the run.
        message: the reason, for the run's page.
    """
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, message=message)
    else:
        instance.report_run_failed(run, message=message)


def main() -> None:
    """Correct the records of the instance in DAGSTER_HOME."""
    with dg.DagsterInstance.get() as instance:
        ended = recover(instance)
    print(f"{len(ended)} runs ended{': ' if ended else ''}{', '.join(ended)}")


if __name__ == "__main__":
    main()
