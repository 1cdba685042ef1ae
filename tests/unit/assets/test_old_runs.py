"""Old runs are deleted, except those that the page of an asset still shows."""

from datetime import UTC, datetime, timedelta

import dagster as dg

from assets.maintenance import delete_old_runs

DAYS = dg.StaticPartitionsDefinition(["monday", "tuesday"])


@dg.asset(partitions_def=DAYS)
def state():
    return None


@dg.asset
def checkpoint():
    return None


@dg.asset
def failing():
    raise ValueError("as it should")


def test_old_runs_are_deleted_except_the_newest_of_each_partition():
    with dg.DagsterInstance.ephemeral() as instance:

        def run(asset, partition=None):
            return dg.materialize([asset], instance=instance, partition_key=partition, raise_on_error=False).run_id

        gone = {run(state, "monday"), run(checkpoint), run(failing), run(checkpoint)}
        kept = {run(state, "monday"), run(state, "tuesday"), run(checkpoint)}
        later = datetime.now(UTC) + timedelta(seconds=5)
        assert delete_old_runs(instance, datetime.now(UTC) - timedelta(days=1)) == (0, 0)
        assert delete_old_runs(instance, later) == (len(gone), len(kept))
        assert {each.run_id for each in instance.get_runs()} == kept
        assert instance.get_materialized_partitions(state.key) == {"monday", "tuesday"}
        assert delete_old_runs(instance, later) == (0, len(kept))
