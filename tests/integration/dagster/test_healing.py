"""The work of a cancelled, killed or failed run is completed within a minute, without another push."""

import time
from collections import Counter
from contextlib import closing
from functools import partial

import dagster as dg
import pytest
from pydantic import SecretStr

import assets.lake_tables
import lakehouse.tables.merging
import sensors.lags
from assets.names import target_key
from lakehouse.backends.declared import follower_positions
from lakehouse.checkpoints import checkpoint
from lakehouse.gateway_connections import pipeline_store
from lakehouse.marks import destination_mark
from lakehouse.schema_snapshot import registered
from lakehouse.sessions import session
from lakesync.adapters import open_adapter
from lakesync.analysis.lags import StateTable
from lakesync.analysis.lake_marks import MarkReader
from lakesync.analysis.marks import report_in
from lakesync.config.backends import DeclaredDestination
from lakesync.model.delta import extract_delta
from lakesync.model.errors import IntegrityError
from lakesync.model.schema import parse_schema
from lakesync.model.types import SyncPush
from lakesync_dagster.definitions import day_partitions, make_definitions
from sensors.external_systems import destination_sensor
from sensors.lags import PipelineLags
from sensors.staging import flush_sensor
from tests.conformance.test_adapters import everything
from tests.dagster_instance import dagster_instance
from tests.integration.gateway_support import SERVICE, wall_ms

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine

TABLES = ("flights", "planes")
COPY = target_key("copy", "copy")
BOUND = 60.0
"""Seconds within which everything is up to date again."""


class Pipeline:
    """A gateway, a separate lake, a destination, and the sensors and jobs over them."""

    def __init__(self, served, spark_config, instance, folder):
        self.engine, self.instance = served.engine, instance
        config = spark_config.replace(
            lake={"system_namespace": "sys_heal", "namespace": "tab_heal", "checkpoints": str(folder / "frames")},
            gateway={"url": served.url},
            service_token=SecretStr(SERVICE),
        )
        self.config = config.model_copy(
            update={
                "adapters": {"copy": f"sqlite://{folder}/copy.db"},
                "destinations": {"copy": DeclaredDestination(to="copy")},
            }
        )
        self.folder = folder
        self.gateway = self.engine.gateway("heal")
        for table in TABLES:
            columns = [{"name": "number", "type": "number"}]
            self.gateway.register_schema(parse_schema({"table": table, "columns": columns}))
        self.snapshot = registered(self.engine.store)
        self.definitions = make_definitions(self.config, self.snapshot)
        self.pushed = 0
        self.load()

    def load(self):
        """Create the sensors again, as a code server does when it starts."""
        open_staging = partial(pipeline_store, self.config)
        lags = PipelineLags(self.config, self.snapshot, partial(follower_positions, self.config))
        days = day_partitions("2026-01-01")
        self.sensors = {
            "flush": flush_sensor(self.config, days, open_staging, lags),
            "destinations": destination_sensor({destination_mark("copy", "copy"): COPY}, days, open_staging, lags),
        }
        self.cursors = dict.fromkeys(self.sensors)

    def push(self):
        self.pushed += 1
        now = wall_ms() << 16
        for table in TABLES:
            row = extract_delta(
                None, {"number": self.pushed}, table=table, row_id=f"{self.pushed}", client_id="c", hlc=now
            )
            self.gateway.handle_push(SyncPush("c", (row,)))

    def tick(self, name):
        """Tick a sensor; return its requests and its cursor afterwards."""
        with dg.build_sensor_context(self.instance, cursor=self.cursors[name]) as context:
            found = self.sensors[name](context)
        if isinstance(found, dg.SkipReason):
            return []
        self.cursors[name] = found.cursor
        return found.run_requests

    def run(self, name, request, selection=None):
        return self.definitions.resolve_job_def(name).execute_in_process(
            instance=self.instance,
            tags=request.tags,
            asset_selection=selection or request.asset_selection,
            raise_on_error=False,
        )

    def requested(self):
        """The run that the flush sensor requests for the unflushed deltas."""
        self.gateway.request_flush()
        (request,) = self.tick("flush")
        return request

    def lags(self):
        """The current lags, read without the sensors."""
        with pipeline_store(self.config) as store:
            tables = [StateTable(table, "tab_heal") for table in TABLES]
            return MarkReader(self.config).lags(store.backlog(), tables, follower_positions(self.config, store))

    def behind(self):
        return {lag.part for lag in self.lags()}

    def heal(self):
        """Tick the sensors and run their requests until nothing is behind; return the seconds."""
        begun = time.monotonic()
        while self.lags():
            assert time.monotonic() - begun < BOUND, self.lags()
            for name in self.sensors:
                for request in self.tick(name):
                    self.run(name, request)
            time.sleep(0.2)
        return time.monotonic() - begun

    def rows(self):
        """The rows of the tables, the checkpoint and the destination."""
        with session(self.config) as spark:
            tables = {table: spark.table(f"lake.tab_heal.{table}").count() for table in TABLES}
        checkpoint = {table.table: table.rows for table in self.engine.store.newest_checkpoint("heal").tables}
        with closing(open_adapter(self.config.adapters["copy"])) as adapter:
            found = everything(adapter)
        taken = Counter(each.delta.table for each in found)
        return tables, checkpoint, taken


@pytest.fixture(scope="module")
def pipeline(serve, spark_server, tmp_path_factory):
    with dagster_instance() as instance:
        made = Pipeline(serve(), spark_server["config"], instance, tmp_path_factory.mktemp("healing"))
        made.push()
        made.heal()
        yield made


def cancelling(pipeline):
    """Return a function that cancels the run that calls it, as a user does in Dagster's pages."""

    def interrupted(*_, **__):
        (run,) = pipeline.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
        pipeline.instance.report_run_canceling(run)
        raise dg.DagsterExecutionInterruptedError

    return interrupted


def cancelled_after_deltas(pipeline, monkeypatch):
    """The run is cancelled when the first table is merged."""
    request = pipeline.requested()
    with monkeypatch.context() as patched:
        patched.setattr(lakehouse.tables.merging, "merge_table", cancelling(pipeline))
        run = pipeline.run("flush", request)
    assert pipeline.instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.CANCELED
    return {"table", "checkpoint", "destination"}


def killed_before_materialisation(pipeline, monkeypatch):
    """The batch is confirmed, but the run is killed before Dagster records the materialisation."""
    request = pipeline.requested()
    with monkeypatch.context() as patched:
        patched.setattr(assets.lake_tables, "size_metadata", cancelling(pipeline))
        run = pipeline.run("flush", request)
    assert not run.get_asset_materialization_events()
    return {"table", "checkpoint", "destination"}


def backfilled_deltas(pipeline, monkeypatch):
    """An operator materialises only `deltas`."""
    today = time.strftime("%Y-%m-%d", time.gmtime())
    request = dg.RunRequest(tags={f"dagster/asset_partition_range_{end}": today for end in ("start", "end")})
    assert pipeline.run("flush", request, [dg.AssetKey("deltas")]).success
    return {"table", "checkpoint", "destination"}


def table_failed_once(pipeline, monkeypatch):
    """The step of one table fails for good, so its downstream assets are not made."""
    request, merge = pipeline.requested(), lakehouse.tables.merging.merge_table

    def failing(spark, schema, *args, **options):
        if schema.table == "planes":
            raise IntegrityError("as it should")
        return merge(spark, schema, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(lakehouse.tables.merging, "merge_table", failing)
        patched.setattr(checkpoint, "merge_table", failing)
        assert not pipeline.run("flush", request).success
    return {"table", "checkpoint", "destination"}


def code_server_away(pipeline, monkeypatch):
    """The code server is down when the run fails, and another one starts."""
    behind = cancelled_after_deltas(pipeline, monkeypatch)
    pipeline.load()
    return behind


@pytest.mark.parametrize(
    "accident",
    [
        cancelled_after_deltas,
        killed_before_materialisation,
        pytest.param(backfilled_deltas, marks=pytest.mark.deep),
        pytest.param(table_failed_once, marks=pytest.mark.deep),
        pytest.param(code_server_away, marks=pytest.mark.deep),
    ],
)
def test_b10_every_part_catches_up_without_a_push(pipeline, accident, monkeypatch):
    monkeypatch.setattr(sensors.lags, "READ_SECONDS", 1.0)
    pipeline.push()
    expected = accident(pipeline, monkeypatch)
    assert all(each.oldest_ms is None for each in pipeline.engine.store.backlog()), "nothing is unflushed in staging"
    assert pipeline.behind() == expected
    seconds = pipeline.heal()
    print(f"{accident.__name__}: up to date again after {seconds:.1f} s")
    every = dict.fromkeys(TABLES, pipeline.pushed)
    assert pipeline.rows() == (every, every, every)
    assert report_in(pipeline.engine.store.marks()) is not None
