"""After a crash, Dagster's records are repaired: runs without a process, and pool slots without a run."""

import dagster as dg
import pytest

from lakesync_dagster.recover import recover


@dg.op
def nothing():
    pass


@dg.job
def job():
    nothing()


@pytest.fixture
def instance(tmp_path):
    (tmp_path / "dagster.yaml").write_text(f"storage:\n  sqlite:\n    base_dir: {tmp_path}\n")
    with dg.DagsterInstance.from_config(str(tmp_path)) as found:
        yield found


def run_with(instance, status):
    return instance.create_run_for_job(job, status=status).run_id


def test_runs_without_a_process_are_ended_and_their_slots_freed(instance):
    storage = instance.event_log_storage
    started = run_with(instance, dg.DagsterRunStatus.STARTED)
    starting = run_with(instance, dg.DagsterRunStatus.STARTING)
    cancelling = run_with(instance, dg.DagsterRunStatus.CANCELING)
    waiting = run_with(instance, dg.DagsterRunStatus.NOT_STARTED)
    done = run_with(instance, dg.DagsterRunStatus.SUCCESS)
    for key, holder in (("a", started), ("b", done), ("c", waiting)):
        storage.set_concurrency_slots(key, 1)
        storage.claim_concurrency_slot(key, holder, "nothing")

    assert set(recover(instance)) == {started, starting, cancelling}

    def status(run_id):
        return instance.get_run_by_id(run_id).status

    assert status(started) is status(starting) is dg.DagsterRunStatus.FAILURE
    assert status(cancelling) is dg.DagsterRunStatus.CANCELED
    assert status(waiting) is dg.DagsterRunStatus.NOT_STARTED
    assert status(done) is dg.DagsterRunStatus.SUCCESS
    taken = {key: storage.get_concurrency_info(key).active_slot_count for key in ("a", "b", "c")}
    assert taken == {"a": 0, "b": 0, "c": 1}
    assert recover(instance) == []
