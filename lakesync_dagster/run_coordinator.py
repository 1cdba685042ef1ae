"""The run coordinator that `lakesync up` configures: every run counts against the slots of its kind."""

import dagster as dg

from assets.asset_metadata import OTHER_SLOT, SLOT


class SlotCoordinator(dg.QueuedRunCoordinator):
    """Queues runs as Dagster does; a run whose job names no kind of slot, as of a backfill, is of the kind `other`.

    `concurrency.runs.tag_concurrency_limits` in `dagster.yaml` has a limit for each kind, and a tag that is missing is
    limited by none.
    """

    def submit_run(self, context: dg.SubmitRunContext) -> dg.DagsterRun:
        """Queue a run."""
        run = context.dagster_run
        if SLOT not in run.tags:
            self._instance.add_run_tags(run.run_id, {SLOT: OTHER_SLOT})
        return super().submit_run(context)
