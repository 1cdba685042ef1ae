"""What runs by the clock: nothing for a house in which nothing happened, and a reason in words."""

from contextlib import nullcontext
from datetime import UTC, datetime

import dagster as dg
import msgspec

from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.analysis.marks import Visit, checkpoint_state
from lakesync.config import load
from lakesync.engine import Engine
from lakesync.model.hlc import wall_clock
from lakesync.model.schema import parse_schema
from lakesync.staging import open_store
from lakesync_dagster.jobs import audit_job

FLIGHTS = parse_schema({"table": "flights", "columns": [{"name": "carrier", "type": "string"}]})
WEEK_MS = 7 * 86_400_000


def test_unchanged_assets_are_not_audited_every_night(tmp_path):
    config, snapshot = load({"data_dir": tmp_path}), SchemaSnapshot((FLIGHTS,))
    engine = Engine(open_store("memory://", wall_clock), wall_clock)
    engine.open()
    store = engine.store
    repository = audit_job(config, snapshot, lambda: nullcontext(store)).get_repository_def()

    def asked():
        with dg.build_schedule_context(
            scheduled_execution_time=datetime.now(UTC), repository_def=repository
        ) as context:
            told = repository.get_schedule_def("nightly_audit").evaluate_tick(context)
        return (
            told.run_requests[0].tags["lakesync/reason"].partition(": ")[2] if told.run_requests else told.skip_message
        )

    def audited(name, state, at_ms):
        store.put_mark(f"audit/{name}", msgspec.json.encode(Visit(state, at_ms)).decode())

    assert asked() == "deltas, tables/flights, checkpoint"
    states = {"deltas": "None", "tables/flights": "None", "checkpoint": checkpoint_state(store.backlog())}
    for name, state in states.items():
        audited(name, state, wall_clock())
    assert asked() == "nothing was written since the last audit, which found nothing"
    audited("tables/flights", "4711", wall_clock())
    assert asked() == "tables/flights", "which has another snapshot now"
    audited("tables/flights", "None", wall_clock() - WEEK_MS)
    assert asked() == "tables/flights", "after a week in any case"
    engine.close()
