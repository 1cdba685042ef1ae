"""The assets as Dagster runs them in this process, over a real Spark and gateway: metadata and failures."""

import time
from pathlib import Path
from urllib.parse import urlsplit

import dagster as dg
import pytest
from pydantic import SecretStr

from assets.asset_metadata import table_valid_through_ms
from lakehouse.schema_snapshot import registered
from lakehouse.sessions import session
from lakehouse.table_access import open_table
from lakesync.config.pipeline_sections import DeclaredTable
from lakesync.model.delta import extract_delta
from lakesync.model.errors import IntegrityError
from lakesync.model.schema import parse_schema
from lakesync.model.types import SyncPush
from lakesync_dagster.definitions import make_definitions
from tests.dagster_instance import dagster_instance
from tests.integration.gateway_support import SERVICE, wall_ms

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine

TABLES = ("flights", "planes")
EVERY = ("deltas", "tables/flights", "tables/planes", "checkpoint_snapshots", "checkpoint")


class House:
    """A gateway, a separate lake, and Dagster's jobs over both."""

    def __init__(self, served, spark_config, instance, folder):
        self.engine, self.instance = served.engine, instance
        own = {"system_namespace": "sys_house", "namespace": "tab_house", "checkpoints": str(folder)}
        gateway = {"url": served.url}
        self.config = spark_config.replace(lake=own, gateway=gateway, service_token=SecretStr(SERVICE))
        self.gateway = self.engine.gateway("house")
        for table in TABLES:
            columns = [{"name": "number", "type": "number"}]
            self.gateway.register_schema(parse_schema({"table": table, "columns": columns}))
        self.declare({})

    def declare(self, tables):
        self.config = self.config.model_copy(update={"tables": tables})
        self.definitions = make_definitions(self.config, registered(self.engine.store))

    def push(self, table, rows, number):
        now = wall_ms()
        deltas = [
            extract_delta(
                None, {"number": number}, table=table, row_id=f"{row}", client_id="c", hlc=(now << 16) + place
            )
            for place, row in enumerate(rows)
        ]
        self.gateway.handle_push(SyncPush("c", tuple(deltas)))

    def run(self, job="flush", selection=None, **config):
        today = time.strftime("%Y-%m-%d", time.gmtime())
        tags = {f"dagster/asset_partition_range_{end}": today for end in ("start", "end")}
        if job == "flush":
            tags["lakesync/requested_by"] = "flush_sensor"
        return self.definitions.resolve_job_def(job).execute_in_process(
            instance=self.instance, tags=tags, asset_selection=selection, run_config=config, raise_on_error=False
        )


def metadata_of(run):
    """Each asset's metadata, as plain values."""
    return {
        event.asset_key.to_user_string(): {
            name: value.value for name, value in event.step_materialization_data.materialization.metadata.items()
        }
        for event in run.get_asset_materialization_events()
    }


def versions(run):
    return {
        event.asset_key.to_user_string(): event.step_materialization_data.materialization.tags["dagster/data_version"]
        for event in run.get_asset_materialization_events()
    }


def failed(run):
    found = run.get_asset_check_evaluations()
    assert found
    return {f"{one.asset_key.to_user_string()} {one.check_name}" for one in found if not one.passed}


@pytest.fixture(scope="module")
def house(serve, spark_server, tmp_path_factory):
    with dagster_instance() as instance:
        yield House(serve(), spark_server["config"], instance, tmp_path_factory.mktemp("frames"))


def test_a_run_reports_its_figures_and_publishes_no_faulty_checkpoint(house, spark_server):
    for table in TABLES:
        house.push(table, range(20), 1)
    first = house.run()
    assert first.success
    assert failed(first) == set()
    series = metadata_of(first)
    assert set(series) == set(EVERY)
    assert [series["deltas"][name] for name in ("deltas_in", "duplicates", "dagster/row_count")] == [40, 0, 40]
    for table in TABLES:
        of_table = series[f"tables/{table}"]
        assert (of_table["deltas_in"], of_table["rows_merged"], of_table["tombstones"]) == (20, 20, 0)
        assert of_table["dagster/row_count"] == 20
    assert series["checkpoint"]["dagster/row_count"] == 40
    for asset in EVERY:
        assert series[asset]["lag_seconds"] >= 0, asset
        assert abs(series[asset]["valid_through"] - time.time()) < 600, asset
    assert all(series[asset]["files"] > 0 for asset in EVERY if asset != "checkpoint_snapshots")

    checkpoint = dg.AssetKey("checkpoint")
    assert house.instance.get_materialized_partitions(checkpoint) == {"house"}
    job = house.definitions.resolve_implicit_global_asset_job_def()
    again = job.execute_in_process(
        instance=house.instance, tags={"dagster/partition": "house"}, asset_selection=[checkpoint]
    )
    assert again.success
    (event,) = again.get_asset_materialization_events()
    made = event.step_materialization_data.materialization
    assert (made.partition, made.metadata["dagster/row_count"].value) == ("house", 40)
    assert failed(again) == set()

    house.push("flights", range(5), 2)
    second = house.run()
    assert second.success
    before, after = versions(first), versions(second)
    assert {asset for asset in EVERY if before[asset] != after[asset]} == set(EVERY) - {"tables/planes"}

    # A merge of such a small table would repair it, so nothing is pushed to it.
    with session(spark_server["config"]) as spark:
        with open_table(spark, "lake.tab_house.planes") as planes:
            assert series["tables/planes"]["dagster/uri"] == planes.location()
        spark.sql("INSERT INTO lake.tab_house.planes SELECT * FROM lake.tab_house.planes WHERE _row = '7'")
    third = house.run()
    assert not third.success
    assert failed(third) == {"tables/planes row_once"}
    unmade = {"checkpoint_snapshots", "checkpoint"}
    kept = {asset: version for asset, version in after.items() if asset not in unmade}
    assert versions(third) == kept
    published = house.engine.store.newest_checkpoint("house")
    house.push("flights", [1], 3)
    assert not house.run().success
    # as "re-execute from failure" does: the new run repeats no check, and has no record of the first run's fault
    repeated = house.run(selection=[dg.AssetKey("checkpoint_snapshots")])
    assert house.engine.store.newest_checkpoint("house") == published
    assert not repeated.success

    planes = [dg.AssetKey(["tables", "planes"])]
    rebuilt = house.run("tables", planes, ops={"tables__planes": {"config": {"rebuild": True}}})
    assert rebuilt.success
    assert failed(rebuilt) == set()
    assert metadata_of(rebuilt)["tables/planes"]["dagster/row_count"] == 20


@pytest.mark.deep
def test_a_run_continues_without_a_faulty_gateway_and_a_frozen_table(house, monkeypatch):
    """B5: if a gateway cannot be flushed and a frozen table grew, the run does the rest and fails at its end."""
    from lakehouse.history import flush as deltas

    for table in TABLES:
        house.push(table, range(20), 3)
    assert house.run().success
    store = house.engine.store
    before = store.newest_checkpoint("house")
    others = {name: house.engine.gateway(name) for name in ("fine", "broken")}
    flights = parse_schema({"table": "flights", "columns": [{"name": "number", "type": "number"}]})
    now = wall_ms() << 16
    for name, gateway in others.items():
        gateway.register_schema(flights)
        row = extract_delta(None, {"number": 1}, table="flights", row_id=name, client_id="c", hlc=now)
        gateway.handle_push(SyncPush("c", (row,)))
    grown = [{"name": name, "type": "number"} for name in ("number", "added")]
    house.gateway.register_schema(parse_schema({"table": "planes", "columns": grown}))
    house.push("flights", range(3, 5), 3)
    house.push("planes", range(2), 3)
    house.declare({"planes": DeclaredTable(contract="freeze")})
    flush = deltas.flush_batch

    def failing(spark, store, batch, names):
        if batch.gateway == "broken":
            raise IntegrityError("the lake holds another number")
        return flush(spark, store, batch, names)

    monkeypatch.setattr(deltas, "flush_batch", failing)
    run = house.run()
    assert not run.success
    assert set(metadata_of(run)) == set(EVERY)
    assert metadata_of(run)["deltas"]["deltas_in"] == 5
    assert "added, which its state table lacks" in metadata_of(run)["tables/planes"]["left_out"]
    assert house.instance.get_run_by_id(run.run_id).tags["lakesync/set_aside"] == "broken"
    assert [table.rows for table in store.newest_checkpoint("fine").tables] == [1]
    assert store.newest_checkpoint("house") == before
    assert store.newest_checkpoint("broken") is None

    monkeypatch.undo()
    house.declare({})
    assert house.run().success
    assert {table.table: table.rows for table in store.newest_checkpoint("house").tables} == {
        "flights": 20,
        "planes": 20,
    }
    newest = store.newest_checkpoint("house")
    assert house.run().success
    assert store.newest_checkpoint("house") == newest  # nothing is new
    house.push("planes", [50], 4)
    assert house.run().success
    now_cut = store.newest_checkpoint("house")
    links = {
        table.table: [Path(urlsplit(uri).path).stat().st_nlink for uri in table.frames] for table in now_cut.tables
    }
    assert links == {"flights": [2], "planes": [1]}  # unchanged tables were not rewritten


@pytest.mark.parametrize(
    ("marks", "through"),
    [
        ({"a": 50 << 16, "b": 90 << 16}, 77),  # as far as the history
        ({"a": 50 << 16, "b": 70 << 16}, 70),  # b lags
        ({"a": 50 << 16, "b": 80 << 16}, 77),  # b lags, but less than the history
        ({"a": 50 << 16}, None),  # b was never merged
    ],
)
def test_a_table_is_merged_through_its_oldest_mark_or_the_time_of_the_lake(marks, through):
    assert table_valid_through_ms(marks, {"a": 50 << 16, "b": 90 << 16}, valid_through_ms=77) == through
