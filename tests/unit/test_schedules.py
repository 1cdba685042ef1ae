"""What runs by the clock: nothing for a house in which nothing happened, and a reason in words."""

from datetime import UTC, datetime

import dagster as dg
import pytest

from lakesync.config import load
from lakesync.schema import parse_schema
from lakesync_dagster.definitions import make_definitions
from resources.snapshot import SchemaSnapshot

FLIGHTS = parse_schema({"table": "flights", "columns": [{"name": "carrier", "type": "string"}]})


@pytest.fixture
def tick(tmp_path):
    """Asks the audit's schedule; `made` are assets that were materialised since."""
    config = load({"data_dir": tmp_path, "dagster": {"partitions_start": "2026-01-01"}})
    repository = make_definitions(config, SchemaSnapshot((FLIGHTS,))).get_repository_def()
    with dg.instance_for_test() as instance:

        def ask(made=(), audited=False):
            for key in made:
                instance.report_runless_asset_event(dg.AssetMaterialization(dg.AssetKey(key.split("/"))))
            if audited:
                instance.add_run(dg.DagsterRun("audit", status=dg.DagsterRunStatus.SUCCESS))
            moment = datetime(2026, 3, 5, 2, 20, tzinfo=UTC)
            context = dg.build_schedule_context(instance, repository_def=repository, scheduled_execution_time=moment)
            return repository.get_schedule_def("nightly_audit").evaluate_tick(context)

        yield ask


def test_what_did_not_change_is_not_audited_every_night(tick):
    assert len(tick(made=["deltas"]).run_requests) == 1
    idle = tick(audited=True)
    assert not idle.run_requests
    assert idle.skip_message.startswith("nothing was made since the last audit, which passed: ")
    assert len(tick(made=["deltas"]).run_requests) == 1
