"""Spark does the pipeline's work at every size, as its REST API and the snapshots of the lake's tables show."""

import time
from contextlib import closing
from datetime import UTC, datetime

import dagster as dg
import pytest
import requests
from pydantic import SecretStr

from lakehouse.schema_snapshot import registered
from lakehouse.sessions import session
from lakesync.adapters import DeltaBatch, SqliteAdapter, StoredDelta
from lakesync.config.backends import DeclaredDestination, DeclaredMigration, DeclaredTiers
from lakesync.model.delta import extract_delta
from lakesync.model.schema import parse_schema
from lakesync.model.types import SyncPush
from lakesync_dagster.definitions import make_definitions
from resources.stores import LakeResource
from tests.dagster_instance import dagster_instance
from tests.integration.gateway_support import SERVICE, wall_ms

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine

DAY = 86_400_000
ORDERS = parse_schema({"table": "orders", "columns": [{"name": "item", "type": "string"}]})


class Pipeline:
    """A gateway with three rows, a separate lake, target adapters, and Dagster's jobs over all of them."""

    def __init__(self, served, spark_config, instance, folder):
        self.instance, self.engine, self.folder = instance, served.engine, folder
        self.gateway = served.engine.gateway("worked")
        self.gateway.register_schema(ORDERS)
        self.since = datetime.fromtimestamp(wall_ms() / 1000 - 4 * 86_400, UTC).date()
        lake = {"system_namespace": "sys_work", "namespace": "tab_work", "checkpoints": str(folder / "frames")}
        config = spark_config.replace(lake=lake, gateway={"url": served.url}, service_token=SecretStr(SERVICE))
        places = {name: f"sqlite://{folder}/{name}.db" for name in ("hot", "copy")}
        places |= {name: f"file://{folder}/{name}" for name in ("cold", "new")}
        migration = DeclaredMigration(source="hot", to="new", tables=("orders",), since=self.since, page_size=20)
        self.config = config.model_copy(
            update={
                "adapters": places,
                "destinations": {"shop": DeclaredDestination(to="copy")},
                "tiers": {"aged": DeclaredTiers(hot="hot", cold="cold", max_age_days=2)},
                "migrations": {"away": migration},
                "data_dir": folder,
            }
        )
        self.definitions = make_definitions(self.config, registered(served.engine.store))
        self.names = LakeResource.configured_by(self.config).names

    def push(self, rows):
        now = wall_ms() << 16
        deltas = [
            extract_delta(None, {"item": "tea"}, table="orders", row_id=row, client_id="c", hlc=now + place)
            for place, row in enumerate(rows)
        ]
        self.gateway.handle_push(SyncPush("c", tuple(deltas)))

    def fill_hot(self, count):
        """Fill the hot tier with deltas that are three days old."""
        at = (wall_ms() - 3 * DAY) << 16
        deltas = [
            extract_delta(None, {"item": "tea"}, table="orders", row_id=f"{row}", client_id="c", hlc=at + row)
            for row in range(count)
        ]
        with closing(SqliteAdapter(self.folder / "hot.db")) as hot:
            stored = tuple(StoredDelta("elsewhere", at + 256, delta) for delta in deltas)
            hot.insert_deltas(DeltaBatch("elsewhere.main.1.1-1", "elsewhere", stored))

    def run(self, job, **options):
        """Run a job; return each materialised asset with its metadata as plain values."""
        return metadata_of(self.definitions.resolve_job_def(job).execute_in_process(instance=self.instance, **options))

    def flush(self):
        today = time.strftime("%Y-%m-%d", time.gmtime())
        days = {f"dagster/asset_partition_range_{end}": today for end in ("start", "end")}
        return self.run("flush", tags={**days, "lakesync/requested_by": "flush_sensor"})

    def tasks(self, metadata):
        """The number of successful tasks in the jobs that a materialisation links to, by Spark's REST API."""
        assert metadata["engine"] == "spark"
        jobs = f"{self.config.spark.ui_url}/api/v1/applications/{metadata['spark/application']}/jobs"
        links = metadata["spark/ui"].split("id=")[1:]
        found = [requests.get(f"{jobs}/{int(link.partition(')')[0])}", timeout=30).json() for link in links]
        assert len(found) == metadata["spark/jobs"]
        done = sum(job["numCompletedTasks"] for job in found)
        assert done >= metadata["spark/tasks"] > 0  # jobs that share a stage each count its tasks
        return done

    def engines(self, *tables):
        """The engine that created each snapshot of these tables."""
        with session(self.config) as spark:
            summaries = {table: spark.sql(f"SELECT summary FROM {table}.snapshots").collect() for table in tables}
        return {table: {row["summary"].get("engine-name") for row in rows} for table, rows in summaries.items()}


def metadata_of(run):
    assert run.success
    return {
        event.asset_key.to_user_string(): {
            name: value.value for name, value in event.step_materialization_data.materialization.metadata.items()
        }
        for event in run.get_asset_materialization_events()
    }


@pytest.fixture(scope="module")
def pipeline(serve, spark_server, tmp_path_factory):
    with dagster_instance() as instance:
        yield Pipeline(serve(), spark_server["config"], instance, tmp_path_factory.mktemp("work"))


def test_b9_a_flush_of_three_rows_runs_and_commits_on_spark(pipeline):
    pipeline.push(["1", "2", "3"])
    made = pipeline.flush()
    for asset in ("deltas", "tables/orders", "checkpoint"):
        assert pipeline.tasks(made[asset]) > 0, asset
    assert made["deltas"]["spark/rows_written"] == 3
    assert made["tables/orders"]["spark/rows_written"] == 3
    assert pipeline.engines(pipeline.names.deltas, pipeline.names.state("orders")) == {
        pipeline.names.deltas: {"spark"},
        pipeline.names.state("orders"): {"spark"},
    }
    today = time.strftime("%Y-%m-%d", time.gmtime())
    followed = pipeline.run("destinations", partition_key=today)["destinations/shop/copy"]
    assert followed["deltas_in"] == 3
    assert pipeline.tasks(followed) > 0


def test_b9_tiers_and_migrations_move_rows_in_tasks(pipeline):
    pipeline.fill_hot(30)
    day = datetime.fromtimestamp(wall_ms() / 1000 - 3 * 86_400, UTC).strftime("%Y-%m-%d")
    asset = pipeline.definitions.resolve_asset_graph().get(dg.AssetKey(["migrations", "away"])).assets_def
    done = metadata_of(dg.materialize([asset], instance=pipeline.instance, partition_key=f"{day}|orders"))
    assert done["migrations/away"]["copied"] == 30
    assert pipeline.tasks(done["migrations/away"]) > 0
    tiered = pipeline.run("tiers_aged", partition_key=day)["tiers/aged"]
    assert tiered["deltas_moved"] == 30
    assert pipeline.tasks(tiered) > 0


def test_b9_an_erasure_and_maintenance_run_and_commit_on_spark(pipeline):
    pipeline.engine.store.erase_client("worked", "c")
    erasure = pipeline.definitions.resolve_job_def("erasure").execute_in_process(instance=pipeline.instance)
    assert metadata_of(erasure)["erasure"]["confirmed"] == 1
    steps = {
        event.step_key: {name: value.value for name, value in event.step_output_data.metadata.items()}
        for event in erasure.all_events
        if event.is_successful_output
    }
    for step in ("history", "tables__orders", "destinations__shop__copy", "report"):
        assert pipeline.tasks(steps[f"erase.erase__{step}"]) > 0, step
    for part in ("deltas", "tables/orders"):
        assert pipeline.run("maintenance", partition_key=part)["maintenance"]["engine"] == "spark", part
    assert set().union(*pipeline.engines(pipeline.names.deltas, pipeline.names.state("orders")).values()) == {"spark"}
