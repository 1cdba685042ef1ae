"""Declared transfers in the code location: their assets, and the sensors and schedules that request their runs."""

import os
import time
from contextlib import nullcontext
from datetime import UTC, date, datetime

import dagster as dg
import msgspec
import pytest

from assets.names import DESTINATION_SENSOR, TRANSFER_SENSOR
from assets.transfers import newest_movable_day
from lakehouse.backends.declared import tier_erasures
from lakehouse.marks import CopiedDays
from lakehouse.schema_snapshot import SchemaSnapshot
from lakesync.adapters.redaction import RedactionRequest
from lakesync.analysis.lags import compare_marks
from lakesync.config import load
from lakesync.engine import Engine
from lakesync.model.errors import ConfigurationError
from lakesync.model.hlc import wall_clock
from lakesync.model.schema import parse_schema
from lakesync.staging import open_store
from lakesync_dagster.definitions import day_partitions, make_definitions
from sensors import backoff as attempts
from sensors.due_times import timed_parts
from sensors.external_systems import transfer_sensor
from sensors.lags import PipelineLags
from tests.dagster_instance import dagster_instance

DECLARED = """
[adapters]
pg = "env:PG"
mysql = "env:MY"
objects = "s3://bucket/prefix"
bq = "bigquery://p/d"
old = "sqlite:///tmp/old.db"
archive = "s3://cold/prefix"
[routes.main]
tables = { events = "objects" }
default = "both"
[fan_out.both]
primary = "aged"
secondaries = ["mysql"]
[tiers.aged]
hot = "pg"
cold = "archive"
max_age_days = 30
[destinations.warehouse]
to = "main"
[flows.slice]
from = "bq"
to = "pg"
where = [{ column = "carrier", op = "eq", value = "AA" }]
rows = false
[flows.home]
from = "aged"
to = "lake"
[migrations.away]
from = "old"
to = "bq"
tables = ["flights", "planes"]
since = 2026-01-01
until = 2026-01-03
schedule = "40 1 * * *"
"""
FLIGHTS = parse_schema({"table": "flights", "columns": [{"name": "delay", "type": "number"}]})


@pytest.fixture
def declared(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("LAKESYNC_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PG", "postgresql://u:hidden@h/d")
    monkeypatch.setenv("MY", "mysql://u:hidden@h/d")
    (tmp_path / "lakesync.toml").write_text(DECLARED)
    return load({"data_dir": tmp_path / "data", "dagster": {"partitions_start": "2026-01-01"}})


@pytest.fixture
def definitions(declared):
    return make_definitions(declared, SchemaSnapshot((FLIGHTS,), {"flights": ("g",)}))


def key(name):
    return dg.AssetKey.from_user_string(name)


def test_each_leaf_flow_tier_and_migration_is_an_asset_with_its_lineage(definitions):
    graph = definitions.resolve_asset_graph()
    parents_of = {
        "destinations/warehouse/pg": {"deltas"},
        "destinations/warehouse/mysql": {"deltas"},
        "destinations/warehouse/objects": {"deltas"},
        "flows/slice": {"backends/bq"},
        "flows/home": {"backends/pg", "backends/archive"},
        "tiers/aged": {"backends/pg"},
        "migrations/away": {"backends/old"},
        "backends/pg": {"destinations/warehouse/pg"},
    }
    for name, parents in parents_of.items():
        node = graph.get(key(name))
        assert {parent.to_user_string() for parent in node.parent_keys} == parents, name
        assert node.description.endswith("."), name
        assert (node.owners, node.group_name) == (["team:lakesync"], name.partition("/")[0])
        assert node.kinds
        assert "hidden" not in str(node.metadata)
    assert graph.get(key("destinations/warehouse/pg")).kinds == {"spark", "postgres"}
    assert len(graph.get(key("migrations/away")).partitions_def.get_partition_keys()) == 6


def test_pools_jobs_sensors_and_schedules_run_from_the_first_start(definitions):
    jobs = {job.name for job in definitions.jobs}
    assert {"destinations", "flows_slice", "flows_home", "tiers_aged"} <= jobs
    repository = definitions.get_repository_def()
    sensors = {each.name: each for each in repository.sensor_defs}
    for name in (DESTINATION_SENSOR, TRANSFER_SENSOR):
        assert sensors[name].default_status is dg.DefaultSensorStatus.RUNNING
    nodes = definitions.resolve_job_def("destinations").nodes
    assert len({node.definition.pool for node in nodes}) == len(nodes) == 3


def test_an_erasure_excludes_destinations_flows_tiers_and_migrations(definitions):
    graph = definitions.resolve_asset_graph()
    erasure = graph.get(key("erasure"))
    moving = [
        definitions.resolve_job_def(job).nodes for job in ("destinations", "tiers_aged", "flows_slice", "flows_home")
    ]
    migration = graph.get(key("migrations/away")).assets_def.op.pool
    assert {node.definition.pool for job in moving for node in job} | {migration} <= erasure.pools
    assert not erasure.parent_keys | erasure.child_keys, "it is not part of the lineage of data"
    after = {
        step.name: {each.node for given in inputs.values() for each in given.get_node_dependencies()}
        for step, inputs in erasure.assets_def.node_def.dependencies.items()
    }
    leaves = [f"destinations__warehouse__{leaf}" for leaf in ("pg", "mysql", "objects")]
    moves = ["tiers__aged", "flows__slice", "flows__home", "migrations__away"]
    every = {f"erase__{name}" for name in ("history", "tables__flights", *moves, *leaves)}
    assert after["erase__report"] == every == after.keys() - {"erase__report"}
    assert {name.removeprefix("erase__"): steps - {"erase__history"} for name, steps in after.items() if steps} == {
        **{name: set() for name in ["tables__flights", *leaves, "migrations__away"]},
        "flows__slice": {"erase__migrations__away"},
        "flows__home": {"erase__destinations__warehouse__pg", "erase__flows__slice", "erase__tiers__aged"},
        "tiers__aged": {"erase__destinations__warehouse__pg", "erase__flows__slice"},
        "report": every - {"erase__history"},
    }, "each after the writers of the adapters that it reads"


def test_an_erasure_of_tiers_recomputes_the_rows_of_the_hot_one(declared):
    """During this time the pool keeps deltas from moving; the destination's own step has another pool."""
    engine = Engine(open_store("memory://", wall_clock), wall_clock)
    engine.open()
    engine.gateway("g").register_schema(FLIGHTS)
    request = RedactionRequest("g", hlc=1, client_id="c")
    (erasure,) = tier_erasures(declared, "aged", engine.store, (request,))
    assert (erasure.backend.name, [tier.name for tier in erasure.cold]) == ("pg", ["archive"])
    assert (erasure.schemas, erasure.requests) == ((FLIGHTS,), (request,))
    engine.close()


def test_an_erasure_accepts_flows_in_a_circle(tmp_path):
    between = {f"{source}{to}": {"from": source, "to": to} for source, to in ("ab", "ba")}
    places = {name: f"sqlite://{tmp_path}/{name}.db" for name in "ab"}
    config = load({"data_dir": tmp_path, "adapters": places, "flows": between})
    dg.Definitions.validate_loadable(make_definitions(config, SchemaSnapshot((FLIGHTS,))))


def test_an_adapter_may_have_the_name_of_anothers_check(tmp_path):
    places = {name: f"sqlite://{tmp_path}/{name}.db" for name in ("copy", "copy_equals_lake")}
    config = load(
        {
            "data_dir": tmp_path,
            "adapters": places,
            "fan_out": {"both": {"primary": "copy", "secondaries": ["copy_equals_lake"]}},
            "destinations": {"shop": {"to": "both"}},
        }
    )
    repository = make_definitions(config, SchemaSnapshot((FLIGHTS,))).get_repository_def()
    nodes = {node.name for job in repository.get_all_jobs() for node in job.nodes}
    assert {"destinations__shop__copy_equals_lake", "equals_lake__destinations__shop__copy"} <= nodes


def test_destinations_with_one_name_in_dagster_are_rejected(tmp_path):
    places = {name: f"sqlite://{tmp_path}/{name}.db" for name in ("c", "b__c")}
    destinations = {"a__b": {"to": "c"}, "a": {"to": "b__c"}}
    with pytest.raises(ConfigurationError, match=r"'b__c' of destinations.a and .* be called a__b__c in Dagster"):
        load({"data_dir": tmp_path, "adapters": places, "destinations": destinations})


def test_the_location_loads_as_a_code_server_loads_it(definitions):
    assert "erasure" in {job.name for job in definitions.get_repository_def().get_all_jobs()}


def test_flows_and_tiers_are_due_by_their_schedules_and_again_after_a_run_that_failed(declared, tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "FIRST_PAUSE_SECONDS", 3600)
    now = int(datetime(2026, 3, 5, 2, 21, tzinfo=UTC).timestamp() * 1000)
    (tmp_path / "offset").write_text(str(now - time.time_ns() // 1_000_000))
    config = declared.model_copy(update={"clock_offset_file": tmp_path / "offset"})
    engine = Engine(open_store("memory://", lambda: now), lambda: now)
    engine.open()
    store, days = engine.store, day_partitions("2026-01-01")
    names = ("flows_slice", "flows_home", "tiers_aged")
    jobs = dg.Definitions(jobs=[dg.define_asset_job(name, selection=dg.AssetSelection.all()) for name in names])
    sensor = transfer_sensor(config, jobs, days, lambda: nullcontext(store), PipelineLags(config, SchemaSnapshot()))
    with dagster_instance() as instance:

        def tick(cursor=None):
            with dg.build_sensor_context(instance, cursor=cursor) as context:
                result = sensor(context)
            if isinstance(result, dg.SkipReason):
                return result.skip_message, cursor, {}
            spans = {}
            for request in result.run_requests:
                ends = (request.tags[f"dagster/asset_partition_range_{end}"] for end in ("start", "end"))
                spans[request.job_name] = tuple(ends)
            return spans, result.cursor, {each.job_name: each.tags for each in result.run_requests}

        first, cursor, tags = tick()
        today = ("2026-03-05", "2026-03-05")
        assert first == {"flows_slice": today, "flows_home": today, "tiers_aged": ("2026-02-02", "2026-02-02")}
        assert "was requested once" in tick(cursor)[0]
        monkeypatch.setattr(attempts, "FIRST_PAUSE_SECONDS", 0)
        run = instance.create_run_for_job(nothing, tags=tags["flows_slice"])
        assert tick(cursor)[0].keys() == {"flows_home", "tiers_aged"}, "a run of the other is in progress"
        instance.report_run_failed(run)
        assert tick(cursor)[0].keys() == set(names), "a failed run is not left to the schedule"
        store.put_mark("flows/slice", str(now - 60_000))  # at 02:20, and due every five minutes
        store.put_mark("flows/home", str(now - 3 * 86_400_000))
        store.put_mark("tiers/aged", str(now - 90_000))  # at 02:19, and due at 02:20
        assert tick(cursor)[0] == {"flows_home": ("2026-03-02", "2026-03-05"), "tiers_aged": first["tiers_aged"]}
        store.put_mark("tiers/aged", str(now - 60_000))
        assert tick(cursor)[0].keys() == {"flows_home"}
    engine.close()
    assert newest_movable_day(datetime(2026, 1, 5, tzinfo=UTC), 30, day_partitions("2026-01-01")) is None


@dg.job
def nothing():
    """Create a run of the asset that is in progress."""


def test_a_migration_is_requested_for_the_days_that_have_ended_and_were_not_copied(declared, tmp_path, monkeypatch):
    config = declared.model_copy(update={"clock_offset_file": tmp_path / "offset"})
    engine = Engine(open_store("memory://", wall_clock), wall_clock)
    engine.open()
    store = engine.store
    jobs = dg.Definitions(jobs=[dg.define_asset_job("migrations_away", selection=dg.AssetSelection.all())])
    lags = PipelineLags(config, SchemaSnapshot())
    sensor = transfer_sensor(config, jobs, day_partitions("2026-01-01"), lambda: nullcontext(store), lags)

    def requested(instance, day, cursor=None):
        moment = datetime(2026, 1, day, 1, 41, tzinfo=UTC)  # a minute after the schedule
        (tmp_path / "offset").write_text(str(int(moment.timestamp() * 1000) - time.time_ns() // 1_000_000))
        with dg.build_sensor_context(instance, cursor=cursor) as context:
            result = sensor(context)
        if isinstance(result, dg.SkipReason):
            return None
        (request,) = result.run_requests
        return tuple(request.tags[f"dagster/asset_partition_range_{end}"] for end in ("start", "end"))

    def copied(table, *days):
        mark = CopiedDays.of(store.marks(), "away")
        for day in days:
            mark = mark.with_day(table, date(2026, 1, day))
        store.put_mark("migrations/away", msgspec.json.encode(mark).decode())

    with dagster_instance() as instance:
        assert requested(instance, 1) is None, "its first day has not ended"
        assert requested(instance, 3) == ("2026-01-01|flights", "2026-01-02|planes")
        copied("flights", 1, 2)
        copied("planes", 1)
        assert requested(instance, 3) == ("2026-01-02|flights", "2026-01-02|planes")
        made = dg.AssetMaterialization(key("migrations/away"), partition="2026-01-02|planes")
        instance.report_runless_asset_event(made)
        assert requested(instance, 9) == ("2026-01-02|flights", "2026-01-03|planes"), (
            "a materialisation does not move the mark"
        )
        copied("planes", 3)
        copied("flights", 3)
        assert requested(instance, 9) == ("2026-01-02|flights", "2026-01-02|planes"), "a gap is filled"
        copied("planes", 2)
        assert CopiedDays.of(store.marks(), "away").tables["planes"] == [(date(2026, 1, 1), date(2026, 1, 3))]
        assert requested(instance, 9) is None, "until is reached"
    engine.close()


def test_a_late_migration_is_reported_with_its_missing_day(declared):
    now = int(datetime(2026, 1, 3, 1, 41, tzinfo=UTC).timestamp() * 1000)
    (part,) = [each for each in timed_parts(declared, SchemaSnapshot(), {}, now) if each.part == "migration"]
    begins, due = (datetime(2026, 1, *at, tzinfo=UTC).timestamp() * 1000 for at in ((1,), (2, 1, 40)))
    assert (part.name, part.mark, part.next_ms) == ("away", begins, due)
    (behind,) = compare_marks((), (), (), [part], now)
    assert (behind.key, behind.since_ms) == ("migration/away/", due)
    before = int(datetime(2025, 12, 1, tzinfo=UTC).timestamp() * 1000)
    early = [each for each in timed_parts(declared, SchemaSnapshot(), {}, before) if each.part == "migration"]
    assert compare_marks((), (), (), early, before) == [], "its first day is in the future"
