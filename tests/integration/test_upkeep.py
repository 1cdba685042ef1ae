"""B6: upkeep joins, expires and removes, and never what a flush, a merge, a cut or a reader still needs."""

import os
import time
from pathlib import Path
from urllib.parse import urlsplit

import dagster as dg
import msgspec
import pytest

from assets.maintenance import maintenance
from lakehouse.checkpoints.cutting import make_cut
from lakehouse.checks import duplicate_deltas, ledger_against_lake
from lakehouse.history import flush as deltas
from lakehouse.history.flush import flush_due
from lakehouse.maintenance import Upkeep, location_of, tidy
from lakehouse.sessions import session
from lakehouse.table_definitions import LakeNames, at
from lakehouse.tables import writes
from lakehouse.tables.increments import merge_table
from lakesync.delta import extract_delta
from lakesync.engine import Engine
from lakesync.schema import parse_schema
from lakesync.staging import open_store
from lakesync.types import SyncPush
from resources.snapshot import SchemaSnapshot
from tests.integration.gateway_support import wall_ms
from tests.lake_support import states
from tests.run_support import resources_of
from tests.spelling import spelled

SCHEMA = parse_schema({"table": "notes", "columns": [{"name": "size", "type": "number"}]})
NAMES = LakeNames("lake", "sys_upkeep", "tab_upkeep")
EAGER = Upkeep(min_files=2, max_manifests=1, snapshot_hours=2.0, orphan_hours=24.0)
FORGETFUL = msgspec.structs.replace(EAGER, snapshot_hours=0.0)
"""As two hours later."""

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute where the machine is busy


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
        return flush_due(self.spark, self.store, gateways=["kept"], names=NAMES)

    def merge(self):
        return merge_table(self.spark, SCHEMA, {"kept": self.store.hold("kept").arrival}, names=NAMES)

    def run_maintenance(self, config):
        """The assets as the job has them; what each tells."""
        lake = {"system_namespace": NAMES.system, "namespace": NAMES.tables}
        assets = maintenance(SchemaSnapshot((SCHEMA,)), config.maintenance)
        with dg.DagsterInstance.ephemeral() as instance:
            resources = resources_of(config.replace(lake=lake), self.store)
            done = dg.materialize(assets, resources=resources, instance=instance)
        made = done.get_asset_materialization_events()
        return {event.step_key: event.step_materialization_data.materialization.metadata for event in made}

    def rows(self):
        return {key: spelled(state) for key, state in states(self.spark.table(NAMES.state("notes"))).items()}

    def tidy(self, table=None, limits=FORGETFUL):
        return tidy(self.spark, NAMES, table, limits, self.store.backlog() if table is None else ())


@pytest.fixture(scope="module")
def world(spark_server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("upkeep")
    engine = Engine(open_store(f"sqlite://{folder / 'staging'}", wall_ms), wall_ms)
    engine.open()
    with session(spark_server["config"]) as spark:
        yield World(spark, engine, folder.as_uri())
    engine.close()


def test_b6_upkeep_in_the_middle_of_a_flush_loses_and_doubles_nothing(world, monkeypatch):
    for _ in range(3):
        world.push(1)
        world.flush()
    joined = []

    def tidied_at(name):
        if name in {"flush.planned", "flush.written"}:
            joined.append(world.tidy(limits=EAGER).joined)

    monkeypatch.setattr(deltas, "crash_point", tidied_at)
    world.push()
    (report,) = world.flush()
    assert report.deltas == 3
    assert joined[0] == 3
    assert ledger_against_lake(world.spark, world.store, NAMES) == []
    assert duplicate_deltas(world.spark, NAMES) == []
    monkeypatch.undo()
    done = world.tidy()
    assert (done.after.data_files, done.after.rows, done.after.snapshots) == (1, 6, 1)
    assert world.spark.table(NAMES.deltas).count() == 6


def test_a_table_is_joined_and_what_a_cut_tagged_stays_readable(world, spark_server, monkeypatch):
    world.merge()
    hold = world.store.hold("kept")
    cut = make_cut(world.spark, world.store, hold, [SCHEMA], directory_uri=world.uri, names=NAMES)
    (tagged,) = cut.tables
    then = world.rows()
    monkeypatch.setattr(writes, "_is_small", lambda *_: True)
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
    done = world.tidy("notes")
    assert done.before.delete_files > 0 == done.after.delete_files
    assert done.orphans == 1
    assert (stray.exists(), young.exists()) == (False, True)
    assert world.rows() == now != then
    version = at(world.spark, NAMES.state("notes"), tagged.snapshot_id)
    assert {key: spelled(state) for key, state in states(version).items()} == then
    told = world.run_maintenance(spark_server["config"])
    assert set(told) == {
        "maintenance__deltas",
        "maintenance__tables__notes",
        "maintenance__staging",
        "maintenance__runs",
    }
    notes = told["maintenance__tables__notes"]
    assert (notes["files"].value, notes["joined_files"].value) == (notes["files_before"].value, 0)
    assert "| data files |" in notes["figures"].value
    assert world.rows() == now
