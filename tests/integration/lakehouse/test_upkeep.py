"""B6: maintenance compacts and deletes, but never files that a flush, a merge, a checkpoint or a reader still needs."""

import os
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import dagster as dg
import msgspec
import pytest

from assets.maintenance import maintenance
from lakehouse.checkpoints.checkpoint import make_checkpoint
from lakehouse.checks import duplicate_deltas, duplicate_keys, history_faults
from lakehouse.history import flush as deltas
from lakehouse.history.flush import flush_backlog
from lakehouse.maintenance import location_of, maintain
from lakehouse.schema_snapshot import SchemaSnapshot
from lakehouse.sessions import session
from lakehouse.table_access import at_snapshot
from lakehouse.table_creation import ensure_deltas
from lakehouse.table_definitions import LakeNames
from lakehouse.tables import writes
from lakehouse.tables.audit import days_unlike_history
from lakehouse.tables.merging import merge_table
from lakesync.config.pipeline_sections import MaintenanceSection
from lakesync.engine import Engine
from lakesync.model.delta import extract_delta
from lakesync.model.schema import parse_schema
from lakesync.model.types import SyncPush
from lakesync.staging import open_store
from lakesync.staging.records import Backlog
from lakesync_dagster.jobs import maintenance_job
from tests.dagster_instance import dagster_instance
from tests.integration.gateway_support import wall_ms
from tests.lake_support import states
from tests.run_support import resources_of
from tests.spelling import spelled

SCHEMA = parse_schema({"table": "notes", "columns": [{"name": "size", "type": "number"}]})
NAMES = LakeNames("lake", "sys_upkeep", "tab_upkeep")
EAGER = MaintenanceSection(
    min_input_files=2, max_manifests=1, snapshot_retention_hours=2.0, orphan_retention_hours=24.0
)
FORGETFUL = EAGER.model_copy(update={"snapshot_retention_hours": 0.0})
"""Settings under which data expires as if two hours had passed."""

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine


class World:
    def __init__(self, spark, engine, uri):
        self.spark, self.store, self.uri = spark, engine.store, uri
        self.gateway = engine.gateway("kept")
        self._made = 0

    def push(self, rows=3):
        for _ in range(rows):
            self._made += 1
            stamp, row = (wall_ms() << 16) + self._made, f"r{self._made % 5}"
            made = extract_delta(None, {"size": self._made}, table="notes", row_id=row, client_id="ann", hlc=stamp)
            self.gateway.handle_push(SyncPush("ann", (msgspec.structs.replace(made, op="UPDATE"),)))

    def flush(self):
        return flush_backlog(self.spark, self.store, gateways=["kept"], names=NAMES)

    def merge(self):
        return merge_table(self.spark, SCHEMA, {"kept": self.store.cut_point("kept").arrival}, names=NAMES)

    def run_maintenance(self, config, instance):
        """Run the schedule's requests; return each part with the report of its run."""
        lake = {"system_namespace": NAMES.system, "namespace": NAMES.tables}
        config, snapshot = config.replace(lake=lake), SchemaSnapshot((SCHEMA,))
        assets = [maintenance(snapshot, config.maintenance)]
        own = dg.Definitions(assets, resources=resources_of(config, self.store))
        job = maintenance_job(config, snapshot, lambda: nullcontext(self.store))
        repository = dg.Definitions.merge(own, job).get_repository_def()
        with dg.build_schedule_context(instance, datetime.now(UTC), repository_def=repository) as context:
            asked = repository.get_schedule_def("maintenance").evaluate_tick(context)
        metadata = {}
        for request in asked.run_requests:
            done = repository.get_job("maintenance").execute_in_process(
                instance=instance, partition_key=request.partition_key
            )
            (made,) = done.get_asset_materialization_events()
            metadata[request.partition_key] = made.materialization.metadata
        return metadata or asked.skip_message

    def rows(self):
        return {key: spelled(state) for key, state in states(self.spark.table(NAMES.state("notes"))).items()}

    def tidy(self, name=NAMES.deltas, limits=FORGETFUL):
        return maintain(self.spark, NAMES, name, limits, self.store.backlog())


@pytest.fixture(scope="module")
def world(spark_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("upkeep")
    engine = Engine(open_store(f"sqlite://{folder / 'staging'}", wall_ms), wall_ms)
    engine.open()
    with session(spark_server["config"]) as spark:
        yield World(spark, engine, folder.as_uri())
    engine.close()


def test_b6_maintenance_during_a_flush_loses_and_duplicates_nothing(world, monkeypatch):
    for _ in range(3):
        world.push(1)
        world.flush()
    joined = []

    def tidied_at(name):
        if name in {"flush.planned", "flush.written"}:
            joined.append(world.tidy(limits=EAGER).compacted)

    monkeypatch.setattr(deltas, "crash_point", tidied_at)
    world.push()
    (report,) = world.flush()
    assert report.deltas == 3
    assert joined[0] == 3
    assert history_faults(world.spark, world.store, NAMES).differences == []
    assert duplicate_deltas(world.spark, NAMES) == []
    monkeypatch.undo()
    done = world.tidy()
    assert (done.after.data_files, done.after.rows, done.after.snapshots) == (1, 6, 1)
    assert world.spark.table(NAMES.deltas).count() == 6


def test_maintenance_compacts_the_history_of_a_shard_with_a_long_name(world):
    names = LakeNames("lake", "sys_shards", "tab_shards")
    shard = "accounting-and-invoices-of-europe"
    ensure_deltas(world.spark, names)
    for seq in range(2):
        world.spark.sql(
            f"INSERT INTO {names.deltas} (gateway, shard, epoch, batch_id, seq, arrival, day) "
            f"VALUES ('kept', '{shard}', 1, 'b{seq}', {seq}, {256 * seq}, DATE '2026-01-01')"
        )
    backlog = [
        Backlog("kept", shard, 1, 2, 2, last_arrival=256, deltas=0, bytes=0, oldest_ms=None, flush_requested_ms=None)
    ]
    done = maintain(world.spark, names, names.deltas, EAGER, backlog)
    assert (done.compacted, done.after.data_files, done.after.rows) == (2, 1, 2)


def test_maintenance_compacts_a_table_and_keeps_snapshots_of_checkpoints(world, spark_server, monkeypatch):
    world.merge()
    hold = world.store.cut_point("kept")
    checkpoint = make_checkpoint(world.spark, world.store, hold, [SCHEMA], directory_uri=world.uri, names=NAMES)
    (tagged,) = checkpoint.tables
    then = world.rows()
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: True)
    world.push()
    world.flush()
    world.merge()
    now = world.rows()
    folder = Path(urlsplit(location_of(world.spark, NAMES.state("notes"))).path) / "data"
    stray = folder / "of-a-killed-run.parquet"
    stray.write_bytes(b"anything")
    young = folder / "of-a-run.parquet"
    young.write_bytes(b"anything")
    old = time.time() - 2 * 86_400
    os.utime(stray, (old, old))
    done = world.tidy(NAMES.state("notes"))
    assert done.before.delete_files > 0 == done.after.delete_files
    assert done.orphans == 1
    assert (stray.exists(), young.exists()) == (False, True)
    assert world.rows() == now != then
    version = at_snapshot(world.spark, NAMES.state("notes"), tagged.snapshot_id)
    assert {key: spelled(state) for key, state in states(version).items()} == then
    with dagster_instance() as instance:
        metadata = world.run_maintenance(spark_server["config"], instance)
        assert list(metadata) == ["deltas", "tables/notes", "staging", "runs"]
        idle = world.run_maintenance(spark_server["config"], instance)
        assert idle == "the maintenance of every part is less than a day old, and none has changed since"
        world.push()
        world.flush()
        assert list(world.run_maintenance(spark_server["config"], instance)) == ["deltas", "staging"]
    notes = metadata["tables/notes"]
    assert (notes["files"].value, notes["joined_files"].value) == (notes["files_before"].value, 0)
    assert "| data files |" in notes["figures"].value
    assert world.rows() == now


def test_b6_maintenance_during_a_merge_loses_and_duplicates_nothing(world, monkeypatch):
    """A backfill of a table does not wait for the table's maintenance, so one of the two retries its commit."""
    world.push()
    world.flush()
    world.merge()
    # merged on read, so there are files to compact
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: True)
    for _ in range(2):
        world.push()
        world.flush()
        world.merge()
    joined = []

    def tidied_at(name):
        if name == "tables.planned":
            joined.append(world.tidy(NAMES.state("notes"), EAGER).compacted if not joined else 0)

    monkeypatch.setattr(writes, "crash_point", tidied_at)
    world.push()
    world.flush()
    world.merge()
    assert joined[0] > 0
    assert len(joined) == 2, "the merge's first commit was rejected, because the files that it read were gone"
    assert days_unlike_history(world.spark, "notes", NAMES) == []
    assert duplicate_keys(world.spark, "notes", NAMES) == []
