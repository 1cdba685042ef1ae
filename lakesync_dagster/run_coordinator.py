"""The run coordinator that `lakesync up` configures: it counts every run against the slots of its kind."""

import dagster as dg

from assets.asset_metadata import OTHER_SLOT, SLOT


class SlotCoordinator(dg.QueuedRunCoordinator):
    """Queues runs as Dagster does. A run without a kind of slot, for example of a backfill, gets the kind `other`.

    `concurrency.runs.tag_concurrency_limits` in `dagster.yaml` has a limit for each kind. It does not apply to runs
    without the tag.
    """

    def submit_run(self, context: dg.SubmitRunContext) -> dg.DagsterRun:
        """Add the kind of slot to a run, and queue it."""
        run = context.dagster_run
        if SLOT not in run.tags:
            self._instance.add_run_tags(run.run_id, {SLOT: OTHER_SLOT})
        return super().submit_run(context)
