"""The Dagster run coordinator that `lakesync up` configures: each kind of run has a limited number of slots."""

import dagster as dg

from assets.asset_metadata import OTHER_SLOT, SLOT


class SlotCoordinator(dg.QueuedRunCoordinator):
    """Queues runs as Dagster does. A run without the tag for its kind, such as a backfill's, gets the kind `other`.

    `concurrency.runs.tag_concurrency_limits` in `dagster.yaml` has a limit for each kind. It does not apply to runs
    without the tag.
    """

    def submit_run(self, context: dg.SubmitRunContext) -> dg.DagsterRun:
        """Add the tag of its kind to a run if it has none, and queue it."""
        run = context.dagster_run
        if SLOT not in run.tags:
            self._instance.add_run_tags(run.run_id, {SLOT: OTHER_SLOT})
        return super().submit_run(context)
