"""B5: a failing tenant or table does not keep other tenants' rows from the lake and its checkpoint in one run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from urllib.parse import urlsplit

import dagster as dg
import pytest
from pydantic import SecretStr

from lakehouse.schema_snapshot import registered
from lakehouse.sessions import session
from lakehouse.table_access import open_table
from lakesync.analysis.marks import report_in
from lakesync.config.pipeline_sections import DeclaredTable
from lakesync.model.delta import extract_delta
from lakesync.model.schema import parse_schema
from lakesync.model.types import SyncPush
from lakesync_dagster.definitions import make_definitions
from sensors.lags import PipelineLags
from tests.dagster_instance import dagster_instance
from tests.integration.gateway_support import SERVICE, wall_ms

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine

NUMBER = {"orders": {"n": "number"}, "planes": {"n": "number"}, "twins": {"n": "number"}, "wrecks": {"n": "number"}}
TENANTS = {
    "fine": ("orders", "planes", "twins"),
    "also_fine": ("orders",),
    "a_typed": ("orders",),
    "misfit": ("orders", "loose"),
    "frozen": ("orders", "planes", "loose"),
    "doubled": ("twins",),
    "broken": ("wrecks", "orders"),
}
"""Each tenant's tables; a tenant is named after its failure."""
HELD = {"frozen", "doubled", "broken"}
"""Tenants that keep their old checkpoint. The failures of the other two do not affect theirs."""


class Tenants:
    """Gateways that share a namespace, and the flush job over them."""

    def __init__(self, served, spark_config, instance, folder):
        self.engine, self.instance = served.engine, instance
        own = {"system_namespace": "sys_isolation", "namespace": "tab_isolation", "checkpoints": str(folder)}
        config = spark_config.replace(lake=own, gateway={"url": served.url}, service_token=SecretStr(SERVICE))
        self.config = config.model_copy(update={"tables": {"planes": DeclaredTable(contract="freeze")}})
        for gateway, tables in TENANTS.items():
            for table in tables:
                if gateway != "misfit" and table in NUMBER:
                    self.register(gateway, table, NUMBER[table])

    def register(self, gateway, table, columns):
        schema = {"table": table, "columns": [{"name": name, "type": kind} for name, kind in columns.items()]}
        self.engine.gateway(gateway).register_schema(parse_schema(schema))

    def push(self, gateway, table, **values):
        now = wall_ms()
        delta = extract_delta(None, values, table=table, row_id=f"{gateway}-{now}", client_id=gateway, hlc=now << 16)
        self.engine.gateway(gateway).handle_push(SyncPush(gateway, (delta,)))

    def flush(self):
        today = time.strftime("%Y-%m-%d", time.gmtime())
        tags = {f"dagster/asset_partition_range_{end}": today for end in ("start", "end")}
        definitions = make_definitions(self.config, registered(self.engine.store))
        return definitions.resolve_job_def("flush").execute_in_process(
            instance=self.instance, tags={**tags, "lakesync/requested_by": "flush_sensor"}, raise_on_error=False
        )

    def checkpoints(self):
        return {gateway: self.engine.store.newest_checkpoint(gateway) for gateway in TENANTS}


@pytest.fixture
def tenants(serve, spark_server, tmp_path):
    with dagster_instance() as instance:
        yield Tenants(serve(), spark_server["config"], instance, tmp_path)


def test_b11_one_failing_part_of_each_kind_does_not_delay_the_others(tenants, spark_server):
    for gateway, tables in TENANTS.items():
        for table in tables:
            tenants.push(gateway, table, n=1)
    first = tenants.flush()
    assert first.success
    before = tenants.checkpoints()
    assert all(checkpoint is not None for checkpoint in before.values())

    with session(spark_server["config"]) as spark:
        twins = "lake.tab_isolation.twins"
        spark.sql(f"INSERT INTO {twins} SELECT * FROM {twins} WHERE _gateway = 'doubled'")
        with open_table(spark, "lake.tab_isolation.wrecks") as wrecks:
            for file in wrecks.inspect.files()["file_path"].to_pylist():
                Path(urlsplit(file).path).unlink()
    with pytest.raises(Exception, match="cannot become string"):
        tenants.register("also_fine", "orders", {"n": "string"})
    tenants.engine.gateway("a_typed").retire_schema("orders")
    tenants.register("a_typed", "orders", {"n": "string"})
    tenants.register("frozen", "planes", {"n": "number", "added": "string"})
    tenants.push("a_typed", "orders", n="one")
    tenants.push("misfit", "orders", n={"not": "a number"})
    tenants.push("misfit", "loose", _gateway="mine", _cells=1, waiting=True)
    tenants.push("frozen", "planes", n=2, added="x")
    tenants.push("frozen", "loose", n=2)
    tenants.push("broken", "wrecks", n=2)
    for gateway in ("fine", "also_fine", "frozen", "broken"):
        tenants.push(gateway, "orders", n=2)
    tenants.push("fine", "planes", n=2)
    marks = {gateway: tenants.engine.store.cut_point(gateway).arrival for gateway in TENANTS}

    run = tenants.flush()
    after = tenants.checkpoints()
    assert {gateway for gateway in TENANTS if after[gateway] == before[gateway]} == HELD
    assert all(after[gateway].arrival >= marks[gateway] for gateway in TENANTS.keys() - HELD)
    assert {part.table: part.rows for part in after["fine"].tables} == {"orders": 2, "planes": 2, "twins": 1}
    assert {part.table: part.rows for part in after["misfit"].tables} == {"orders": 2, "loose": 2}
    assert not any(backlog.deltas for backlog in tenants.engine.store.backlog())
    with session(spark_server["config"]) as spark:
        for table in ("orders", "loose"):
            properties = spark.sql(f"SHOW TBLPROPERTIES lake.tab_isolation.{table}").collect()
            merged = json.loads(next(row["value"] for row in properties if row["key"] == "lakesync.merged"))
            assert all(merged[gateway] >= marks[gateway] for gateway, tables in TENANTS.items() if table in tables)
        rejected = spark.table("lake.sys_isolation.rejected").collect()
        assert {(row["gateway"], row["type"], row["value"]) for row in rejected} == {
            ("a_typed", "number", '"one"'),
            ("misfit", "number", '{"not":"a number"}'),
        }

    lags = PipelineLags(tenants.config, registered(tenants.engine.store))
    lags.read(tenants.engine.store, lambda: tenants.instance)
    report = report_in(tenants.engine.store.marks())
    assert {(each.kind, each.name, each.gateway, each.count) for each in report.dead_letters} == {
        ("value", "orders", "a_typed", 1),
        ("value", "orders", "misfit", 1),
    }
    lags.read(tenants.engine.store, lambda: tenants.instance, read_again=True)
    assert report_in(tenants.engine.store.marks()).dead_letters == report.dead_letters, "late since the same time"

    assert not run.success
    (failures,) = (
        event.step_materialization_data.materialization.metadata["left_out"].value
        for event in run.get_asset_materialization_events()
        if event.asset_key == dg.AssetKey("checkpoint_snapshots")
    )
    assert failures.keys() == HELD
    assert "its table planes was not merged" in failures["frozen"]
    assert "row_once of tables/twins found 1" in failures["doubled"]
    assert "its table wrecks was not merged" in failures["broken"]

    tenants.engine.gateway("frozen").retire_schema("planes")
    with session(spark_server["config"]) as spark:
        spark.sql("DROP TABLE lake.tab_isolation.wrecks")
    tenants.push("doubled", "twins", n=3)
    assert tenants.flush().success
    assert all(checkpoint != before[gateway] for gateway, checkpoint in tenants.checkpoints().items())
