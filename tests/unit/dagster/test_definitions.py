"""The code location: its loading time, lineage, blocking checks and pools."""

import json
import subprocess
import sys
from itertools import pairwise
from typing import Any

import dagster as dg
import pytest
from dagster_pyspark import LazyPySparkResource

from lakehouse.schema_snapshot import SchemaSnapshot, join_schemas, read_snapshot, snapshot_file, write_snapshot
from lakesync.config import load
from lakesync.model.schema import parse_schema
from lakesync_dagster.definitions import make_definitions, run_resources


def schema(table, **columns):
    return parse_schema({"table": table, "columns": [{"name": name, "type": kind} for name, kind in columns.items()]})


FLIGHTS = schema("flights", carrier="string", delay="number")
PLANES = schema("planes", year="number")
HEAVY = {"pyspark.sql.connect", "pandas", "pyarrow", "pyiceberg", "duckdb", "sqlalchemy", "grpc", "fastapi", "boto3"}
"""Modules that only runs need; each adds a large part of a second to the location's loading.

dagster-pyspark imports pyspark and numpy, which add 0.8 s of CPU and 29 MB.
"""
SHOWN = {"pyspark", "lake", "staging"}
"""The resources with settings, which Dagster's pages show."""
MODULES = 2_000
"""The largest number of imported modules; `scripts/bench location` measures their cost."""
SNAPSHOT = SchemaSnapshot((FLIGHTS, PLANES), {"flights": ("nyc",), "planes": ("nyc", "ewr")})


@pytest.fixture
def config(tmp_path):
    return load({"data_dir": tmp_path, "dagster": {"partitions_start": "2026-01-01"}})


@pytest.fixture
def graph(config):
    return make_definitions(config, SNAPSHOT).resolve_asset_graph()


def test_the_location_loads_without_a_connection_and_without_spark_connect(config):
    write_snapshot(snapshot_file(config), SNAPSHOT)
    program = (
        "import lakesync_dagster.definitions as d;"
        "print(*sorted(k.to_user_string() for k in d.defs.resolve_asset_graph().materializable_asset_keys));"
        "import sys; print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**config.environment(), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assets, modules = (line.split() for line in done.stdout.splitlines())
    assert assets == [
        "checkpoint",
        "checkpoint_snapshots",
        "deltas",
        "erasure",
        "maintenance",
        "tables/flights",
        "tables/planes",
    ]
    assert not HEAVY & set(modules)
    assert len(modules) < MODULES
    assert not done.stderr


def test_the_location_loads_with_any_table_names(config):
    """One tenant's table name must not stop the pipeline of all tenants."""
    names = (
        "orders",
        "orders_checks",
        "orders_fresh",
        "orders__checks",
        "checks",
        "fresh",
        "checkpoint_snapshots",
        "deltas",
        "a",
        "a__b",
    )
    tables = tuple(schema(name, carrier="string") for name in names)
    graph = make_definitions(config, SchemaSnapshot(tables, dict.fromkeys(names, ("nyc",)))).resolve_asset_graph()
    for name in names:
        checks = graph.get_check_keys_for_assets({dg.AssetKey(["tables", name])})
        whole = {"row_once", "state_equals_merge", "state_equals_history", "values_fit", "fresh"}
        assert {check.name for check in checks} == whole


def test_spark_is_its_own_resource_and_no_resource_setting_has_a_secret(config):
    secrets = {"service_token": "hush-1234567890", "spark": {"remote": "sc://localhost:1", "token": "hush-spark"}}
    staging = {"url": "postgresql://pipeline:hush@database/staging"}
    defs = make_definitions(config.replace(staging=staging, **secrets), SNAPSHOT)
    resources = defs.get_repository_def().get_top_level_resources()
    assert resources.keys() == {"pyspark", "lake", "staging", "intake", "run_state"}
    settings = {key: json.dumps(found.config_schema.default_value) for key, found in resources.items() if key in SHOWN}
    assert "sc://localhost:1" in settings["pyspark"]
    assert "database/staging" in settings["staging"]
    assert not any("hush" in shown for shown in settings.values())
    assert isinstance(run_resources(config)["pyspark"], LazyPySparkResource)


def test_lineage_starts_in_the_clients_databases_and_ends_at_the_checkpoint(graph):
    path = [
        ["clients", "flights"],
        ["staging", "log"],
        ["deltas"],
        ["tables", "flights"],
        ["checkpoint_snapshots"],
        ["checkpoint"],
    ]
    keys = [dg.AssetKey(part) for part in path]
    for parent, child in pairwise(keys):
        assert parent in graph.get(child).parent_keys
    assert keys[0] in graph.external_asset_keys


def test_every_state_table_is_partitioned_by_arrival_day_and_backfilled_in_one_run(graph):
    for key in ("deltas", "tables/flights", "tables/planes"):
        node = graph.get(dg.AssetKey.from_user_string(key))
        assert isinstance(node.partitions_def, dg.DailyPartitionsDefinition)
        assert node.partitions_def.end_offset == 1
        assert node.backfill_policy == dg.BackfillPolicy.single_run()


def test_every_check_blocks_downstream_assets_except_those_of_freshness_types_and_ids(graph):
    names = {}
    for key in graph.asset_check_keys:
        names.setdefault(key.asset_key.to_user_string(), set()).add(key.name)
        assert graph.get(key).blocking == (key.name not in {"fresh", "values_fit", "ids_equal_contents"})
        assert graph.get(key).description.endswith(".")
    of_table = {"row_once", "state_equals_merge", "state_equals_history", "values_fit", "fresh"}
    assert names == {
        "deltas": {"ledger_equals_lake", "delta_once", "no_future_hlc", "ids_equal_contents", "fresh"},
        "tables/flights": of_table,
        "tables/planes": of_table,
        "checkpoint": {"checkpoint_equals_snapshots", "fresh"},
    }


def test_the_flush_job_has_the_blocking_checks_and_the_audit_job_all(config):
    definitions = make_definitions(config, SNAPSHOT)

    def held(job):
        return {key.name for key in definitions.resolve_job_def(job).asset_layer.asset_graph.asset_check_keys}

    assert "fresh" not in held("flush") | held("tables")
    assert held("audit") == held("flush") | {"fresh"}
    assert not definitions.resolve_job_def("audit").asset_layer.selected_asset_keys


def test_every_table_of_the_lake_has_column_lineage(graph):
    for name in ("deltas", "tables/flights"):
        metadata = graph.get(dg.AssetKey.from_user_string(name)).metadata
        columns = {column.name for column in metadata["dagster/column_schema"].columns}
        lineage = metadata["lineage"].value
        assert all(
            column in lineage or "all others" in lineage for column in columns - {"_gateway", "_row", "_gone"}
        ), name
    assert "`clients/flights.carrier` → `deltas.columns['carrier']`" in metadata["lineage"].value


def test_the_flush_job_selects_all_assets_and_the_tables_job_the_state_tables(config):
    definitions = make_definitions(config, SNAPSHOT)
    flush = definitions.resolve_job_def("flush").asset_layer.selected_asset_keys
    tables = definitions.resolve_job_def("tables").asset_layer.selected_asset_keys
    assert {key.to_user_string() for key in flush} == {
        "checkpoint_snapshots",
        "deltas",
        "tables/flights",
        "tables/planes",
    }
    assert {key.to_user_string() for key in tables} == {"tables/flights", "tables/planes"}


def pool_of(node: Any) -> str | None:
    """The pool of a job's step, which is an op."""
    pool: str | None = node.definition.pool
    return pool


def test_each_writer_has_its_own_pool(config):
    job = make_definitions(config, SNAPSHOT).resolve_job_def("flush")
    writers = [node for node in job.nodes if not node.name.startswith("checks__")]
    pools = {node.name: pool_of(node) for node in writers}
    assert len(set(pools.values())) == len(pools)
    assert all(pools.values())


def test_maintenance_and_erasure_exclude_concurrent_flushes(config):
    definitions = make_definitions(config, SNAPSHOT)
    graph = definitions.resolve_asset_graph()
    flush = {pool_of(node) for node in definitions.resolve_job_def("flush").nodes} - {None}
    assert graph.get(dg.AssetKey("maintenance")).pools == {"lakesync_deltas"} < flush
    assert graph.get(dg.AssetKey("erasure")).pools == flush
    assert flush == {"lakesync_deltas", "lakesync_table_flights", "lakesync_table_planes", "lakesync_checkpoint"}
    schedules = {each.name: each for each in definitions.get_repository_def().schedule_defs}
    assert schedules["maintenance"].cron_schedule == config.maintenance.schedule
    assert schedules["maintenance"].default_status is dg.DefaultScheduleStatus.RUNNING


def test_maintenance_and_erasure_are_assets_without_data_lineage(graph):
    for name in ("maintenance", "erasure"):
        node = graph.get(dg.AssetKey(name))
        assert not node.parent_keys | node.child_keys
    parts = graph.get(dg.AssetKey("maintenance")).partitions_def.get_partition_keys()
    assert parts == ["deltas", "tables/flights", "tables/planes", "staging", "runs"]


def test_a_table_of_another_namespace_has_its_own_asset_pool_checks_maintenance_and_erasure(config):
    apart = {"": (FLIGHTS,), "shop": (FLIGHTS, PLANES)}
    graph = make_definitions(config, SchemaSnapshot((FLIGHTS, PLANES), namespaces=apart)).resolve_asset_graph()
    key = dg.AssetKey(["tables_shop", "flights"])
    assert graph.get(key).pools == {"lakesync_table_shop__flights"}
    assert {each.name for each in graph.get_check_keys_for_assets({key})} >= {
        "row_once",
        "state_equals_merge",
        "values_fit",
    }
    assert "tables_shop/flights" in graph.get(dg.AssetKey("maintenance")).partitions_def.get_partition_keys()
    erasure: Any = graph.get(dg.AssetKey("erasure")).assets_def.node_def
    steps = {f"erase__{name}" for name in ("tables__flights", "tables_shop__flights", "tables_shop__planes")}
    assert steps <= {step.name for step in erasure.nodes}
    states = {"tables/flights", "tables_shop/flights", "tables_shop/planes"}
    assert {each.to_user_string() for each in graph.get(dg.AssetKey("checkpoint_snapshots")).parent_keys} == {
        "deltas",
        *states,
    }


def test_sensors_run_from_the_first_start(config):
    sensors = make_definitions(config, SNAPSHOT).get_repository_def().sensor_defs
    names = {"flush_sensor", "schema_sensor", "freshness_sensor", "run_failure_sensor", "check_failure_sensor"}
    names.add("erasure_sensor")
    assert {sensor.name for sensor in sensors} == names
    assert all(sensor.default_status is dg.DefaultSensorStatus.RUNNING for sensor in sensors)


def test_the_location_loads_as_a_code_server_loads_it(config):
    definitions = make_definitions(config, SNAPSHOT)
    assert {"flush", "maintenance", "erasure"} <= {job.name for job in definitions.get_repository_def().get_all_jobs()}


def test_a_location_without_a_registered_table_loads(config):
    make_definitions(config, SchemaSnapshot()).resolve_job_def("flush")


def test_a_snapshot_reads_back_and_a_missing_one_is_empty(config):
    path = snapshot_file(config)
    assert read_snapshot(path) == SchemaSnapshot()
    write_snapshot(path, SNAPSHOT)
    assert read_snapshot(path) == SNAPSHOT
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_schemas_of_two_gateways_join_to_all_columns_with_the_types_of_the_first():
    joined = join_schemas(schema("t", a="string", b="number"), schema("t", b="string", c="json"))
    assert joined.types == {"a": "string", "b": "number", "c": "json"}
