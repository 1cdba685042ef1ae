"""Schedules: they request nothing if nothing has happened, and report the reason."""

from contextlib import closing, nullcontext
from datetime import UTC, datetime

import dagster as dg
import msgspec
import pytest

from assets.maintenance import maintenance
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import Visit, checkpoint_state
from lakesync.config import load
from lakesync.engine import Engine
from lakesync.model.errors import LakeUnavailableError, StagingUnavailableError
from lakesync.model.hlc import wall_clock
from lakesync.model.schema import parse_schema
from lakesync.staging import open_store
from lakesync_dagster.jobs import audit_job, maintenance_job
from tests.run_support import resources_of

FLIGHTS = parse_schema({"table": "flights", "columns": [{"name": "carrier", "type": "string"}]})
WEEK_MS = 7 * 86_400_000


def test_unchanged_assets_are_not_audited_every_night(tmp_path):
    config, snapshot = load({"data_dir": tmp_path}), SchemaSnapshot((FLIGHTS,))
    engine = Engine(open_store("memory://", wall_clock), wall_clock)
    engine.open()
    store = engine.store
    repository = audit_job(config, snapshot, lambda: nullcontext(store)).get_repository_def()

    def asked():
        with (
            dg.DagsterInstance.local_temp(str(tmp_path)) as instance,
            dg.build_schedule_context(instance, datetime.now(UTC), repository_def=repository) as context,
        ):
            tick = repository.get_schedule_def("nightly_audit").evaluate_tick(context)
        return (
            tick.run_requests[0].tags["lakesync/reason"].partition(": ")[2] if tick.run_requests else tick.skip_message
        )

    def audited(name, state, at_ms):
        store.put_mark(f"audit/{name}", msgspec.json.encode(Visit(state, at_ms)).decode())

    assert asked() == "deltas, tables/flights, checkpoint"
    states = {"deltas": "None", "tables/flights": "None", "checkpoint": checkpoint_state(store.backlog())}
    for name, state in states.items():
        audited(name, state, wall_clock())
    assert asked() == "nothing was written since the last audit, which found nothing"
    audited("tables/flights", "4711", wall_clock())
    assert asked() == "tables/flights", "because it has another snapshot now"
    audited("tables/flights", "None", wall_clock() - WEEK_MS)
    assert asked() == "tables/flights", "after a week in any case"
    engine.close()


def both_schedules(config, snapshot, store, open_staging):
    return dg.Definitions.merge(
        dg.Definitions([maintenance(snapshot, config.maintenance)], resources=resources_of(config, store)),
        maintenance_job(config, snapshot, open_staging),
        audit_job(config, snapshot, open_staging),
    ).get_repository_def()


def test_work_whose_run_has_not_ended_is_not_requested_again(tmp_path):
    config, snapshot = load({"data_dir": tmp_path}), SchemaSnapshot((FLIGHTS,))
    store = open_store("memory://", wall_clock)
    engine = Engine(store, wall_clock)
    engine.open()
    repository = both_schedules(config, snapshot, store, lambda: nullcontext(store))

    def asked(schedule):
        with dg.build_schedule_context(instance, datetime.now(UTC), repository_def=repository) as context:
            tick = repository.get_schedule_def(schedule).evaluate_tick(context)
        return [request.partition_key for request in tick.run_requests] or tick.skip_message

    def request(job, **tags):
        return instance.create_run_for_job(repository.get_job(job), status=dg.DagsterRunStatus.NOT_STARTED, tags=tags)

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        parts = ["deltas", "tables/flights", "staging", "runs"]
        assert asked("maintenance") == parts
        first = request("maintenance", **{"dagster/partition": "tables/flights"})
        assert asked("maintenance") == ["deltas", "staging", "runs"]
        instance.report_run_canceled(first)
        assert asked("maintenance") == parts
        for part in parts:
            request("maintenance", **{"dagster/partition": part})
        assert asked("maintenance").startswith("runs that were requested before have not ended: deltas, ")
        assert asked("nightly_audit") == [None]
        request("audit")
        assert asked("nightly_audit") == "the audit that was requested before has not ended"
    engine.close()


@pytest.mark.parametrize("error", [StagingUnavailableError, LakeUnavailableError])
def test_an_outage_skips_a_tick_with_its_reason(tmp_path, error):
    def closed():
        raise error("it does not answer")

    config, snapshot = load({"data_dir": tmp_path}), SchemaSnapshot((FLIGHTS,))
    with (
        closing(open_store("memory://", wall_clock)) as store,
        dg.DagsterInstance.local_temp(str(tmp_path)) as instance,
        dg.build_schedule_context(instance, datetime.now(UTC)) as context,
    ):
        repository = both_schedules(config, snapshot, store, closed)
        ticks = [repository.get_schedule_def(name).evaluate_tick(context) for name in ("maintenance", "nightly_audit")]
    assert [(tick.run_requests, tick.skip_message) for tick in ticks] == [([], "it does not answer")] * 2
