"""A gateway, a lake and Dagster's jobs with destinations, flows, tiers and a migration, for test_destinations.py."""

from datetime import UTC, datetime

import dagster as dg
import psycopg
from pydantic import SecretStr

from assets.names import DESTINATION_SENSOR, REQUESTED_BY, TRANSFER_SENSOR
from lakehouse.backends.comparison import compare
from lakehouse.backends.day_rebuild import rebuild_days
from lakehouse.backends.declared import destination_targets, follower_of
from lakehouse.history.flush import flush_backlog
from lakehouse.schema_snapshot import SchemaSnapshot, registered
from lakesync.adapters import DeltaBatch, SqliteAdapter, StoredDelta
from lakesync.config.backends import (
    DeclaredDestination,
    DeclaredFanOut,
    DeclaredFlow,
    DeclaredMigration,
    DeclaredRoutes,
    DeclaredTiers,
)
from lakesync.model.delta import extract_delta
from lakesync.model.schema import parse_schema
from lakesync.model.types import SyncPush
from lakesync_dagster.definitions import make_definitions
from tests.integration.gateway_support import SERVICE, wall_ms
from tests.run_support import a_run

DAY = 86_400_000
COLUMNS = [{"name": "number", "type": "number"}, {"name": "name", "type": "string"}]
LEAVES = {name: dg.AssetKey(["destinations", "warehouse", name]) for name in ("pg", "copy", "objects")}


class Warehouse:
    """A gateway, a separate lake, and Dagster's jobs over both with a destination of three leaves."""

    def __init__(self, served, spark_config, instance, folder, postgres, flushes):
        self.flushes = flushes
        self.instance, self.folder, self.postgres, self.engine = instance, folder, postgres, served.engine
        self.gateway = served.engine.gateway("dest")
        for table in ("flights", "planes", "events"):
            self.gateway.register_schema(parse_schema({"table": table, "columns": COLUMNS}))
        config = spark_config.replace(
            lake={"system_namespace": f"sys_dest_{flushes}", "namespace": f"tab_dest_{flushes}"},
            gateway={"url": served.url},
            service_token=SecretStr(SERVICE),
        )
        self.config = config.model_copy(
            update={
                "adapters": {
                    "pg": postgres.uri,
                    "copy": f"sqlite://{folder}/copy.db",
                    "objects": f"file://{folder}/objects",
                },
                "routes": {"main": DeclaredRoutes(tables={"events": "objects"}, default="both")},
                "fan_out": {"both": DeclaredFanOut(primary="pg", secondaries=("copy",))},
                "destinations": {"warehouse": DeclaredDestination(to="main")},
            }
        )
        self.definitions = make_definitions(self.config, registered(served.engine.store))
        self.pushed = 0
        self.cursor = None

    def push(self, table, rows, **values):
        now = (wall_ms() << 16) + self.pushed
        deltas = [
            extract_delta(None, values, table=table, row_id=f"r{row}", client_id="c", hlc=now + n)
            for n, row in enumerate(rows)
        ]
        self.pushed += len(deltas)
        self.gateway.handle_push(SyncPush("c", tuple(deltas)))

    def flush(self, pushes):
        """Flush after each push; return the lake's snapshots that this created."""
        made = []
        with a_run(self.config) as run:
            for push in pushes:
                self.push(*push[:2], **push[2])
                reports = flush_backlog(run.pyspark.spark_session, run.staging.store, names=run.lake.names)
                made += [each.snapshot_id for each in reports]
        return made

    def follow(self):
        """Run what the sensor requests; return each leaf's run."""
        job = self.definitions.resolve_job_def("destinations")
        return {
            request.asset_selection[0].path[-1]: job.execute_in_process(
                instance=self.instance,
                asset_selection=request.asset_selection,
                tags=request.tags,
                raise_on_error=False,
            )
            for request in self.requested()
        }

    def requested(self):
        """The runs that the sensor requests."""
        sensor = self.definitions.get_repository_def().get_sensor_def(DESTINATION_SENSOR)
        with dg.build_sensor_context(self.instance, cursor=self.cursor) as context:
            found = sensor(context)
        if isinstance(found, dg.SkipReason):
            return []
        self.cursor = found.cursor
        return found.run_requests

    def run(self, name):
        """Run one leaf, whether or not it is due."""
        key = LEAVES[name]
        today = self.definitions.resolve_asset_graph().get(key).partitions_def.get_last_partition_key()
        return self.definitions.resolve_job_def("destinations").execute_in_process(
            instance=self.instance, asset_selection=[key], partition_key=today, raise_on_error=False
        )

    def compare(self, name):
        """Compare a leaf with the lake."""
        target = next(each for each in destination_targets(self.config) if each.target.name == name)
        with a_run(self.config) as run:
            return compare(run.pyspark.spark_session, follower_of(self.engine.store, target), run.lake.names)

    def check(self):
        """Compare every leaf with the lake; return whether each passed, and the days that it names."""
        keys = [dg.AssetCheckKey(key, "equals_lake") for key in LEAVES.values()]
        job = dg.define_asset_job("check", selection=dg.AssetSelection.checks(*keys))
        definitions = dg.Definitions.merge(self.definitions, dg.Definitions(jobs=[job]))
        run = definitions.resolve_job_def("check").execute_in_process(instance=self.instance)
        found = run.get_asset_check_evaluations()
        return {one.asset_key.path[-1]: (one.passed, one.metadata["days"].value) for one in found}

    def rebuild(self, name, day):
        """Rewrite a day of a leaf."""
        target = next(each for each in destination_targets(self.config) if each.target.name == name)
        with a_run(self.config) as run:
            one = follower_of(self.engine.store, target)
            return rebuild_days(run.pyspark.spark_session, one, [day], run.lake.names)

    def rows(self):
        with psycopg.connect(self.postgres.uri) as sql:
            found = sql.execute("SELECT row_id, number, name, props FROM flights WHERE deleted_at IS NULL").fetchall()
        return {row: (int(number), name, props) for row, number, name, props in found}


class Moves:
    """Flows, tiers and a migration over deltas of the last days, and Dagster's jobs over them."""

    def __init__(self, warehouse, folder):
        self.instance, self.folder = warehouse.instance, folder
        self.today = wall_ms() // DAY * DAY
        places = {name: f"sqlite://{folder}/{name}.db" for name in ("old", "hot", "slice")}
        places |= {name: f"file://{folder}/{name}" for name in ("cold", "new")}
        flow = {"to": "slice", "tables": ("flights",), "where": ({"column": "carrier", "op": "eq", "value": "AA"},)}
        self.config = warehouse.config.model_copy(
            update={
                "data_dir": folder,
                "adapters": places,
                "routes": {},
                "fan_out": {},
                "destinations": {},
                "tiers": {"aged": DeclaredTiers(hot="hot", cold="cold", max_age_days=2)},
                "flows": {
                    "american": DeclaredFlow(source="old", **flow),
                    "home": DeclaredFlow(source="old", to="lake", into="home"),
                },
                "migrations": {
                    "away": DeclaredMigration(
                        source="old", to="new", tables=("flights",), since=self.day(-4), page_size=20
                    )
                },
            }
        )
        self.config = self.config.replace(dagster={"partitions_start": f"{self.day(-4)}"})
        self.definitions = make_definitions(self.config, SchemaSnapshot())
        self.old = SqliteAdapter(folder / "old.db")

    def day(self, number):
        return datetime.fromtimestamp((self.today + number * DAY) / 1000, UTC).date()

    def fill(self, adapter, rows, day, **values):
        """Push on that day."""
        at = self.today + day * DAY
        deltas = [
            extract_delta(None, values, table="flights", row_id=f"r{row}", client_id="c", hlc=(at << 16) + row)
            for row in rows
        ]
        stored = tuple(StoredDelta("elsewhere", (at << 16) + 256, delta) for delta in deltas)
        adapter.insert_deltas(DeltaBatch(f"elsewhere.main.1.{at}-{at}", "elsewhere", stored))

    def run(self, job, **options):
        done = self.definitions.resolve_job_def(job).execute_in_process(instance=self.instance, **options)
        return metadata_of(done)

    def carry(self, job):
        """Run as the sensor requests it."""
        return self.run(job, tags={**span(self.day(0), self.day(0)), REQUESTED_BY: TRANSFER_SENSOR})

    def replay(self, job, first, last):
        """Run as a backfill of these days requests it; return the numbers of new and repeated deltas by day."""
        job = self.definitions.resolve_job_def(job)
        run = job.execute_in_process(instance=self.instance, tags=span(self.day(first), self.day(last)))
        made = [event.step_materialization_data.materialization for event in run.get_asset_materialization_events()]
        return {
            each.partition: tuple(each.metadata[name].value for name in ("deltas_in", "deltas_replayed"))
            for each in made
        }


def span(first, last):
    """The run tags of a range of days."""
    return {"dagster/asset_partition_range_start": f"{first}", "dagster/asset_partition_range_end": f"{last}"}


def metadata_of(run):
    (event,) = run.get_asset_materialization_events()
    metadata = event.step_materialization_data.materialization.metadata
    return {name: value.value for name, value in metadata.items()}
