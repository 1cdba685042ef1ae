"""B7: erased data is removed from the lake's history, states, snapshots, files and checkpoints, also after crashes."""

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from urllib.parse import urlsplit

import dagster as dg
import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from assets.erasure import erasure as erasure_asset
from lakehouse.backends.comparison import compare
from lakehouse.backends.declared import destination_targets, flow_tasks, follower_of
from lakehouse.backends.destinations import follow
from lakehouse.backends.flows import flow
from lakehouse.backends.transfers import Migration, migrate
from lakehouse.checkpoints.checkpoint import make_checkpoint
from lakehouse.checks import history_faults
from lakehouse.erasure import redaction
from lakehouse.erasure import requests as erasure
from lakehouse.erasure.requests import complete_erasures, due_requests, open_requests
from lakehouse.gateway_connections import pipeline_store
from lakehouse.history.flush import flush_backlog
from lakehouse.maintenance import location_of
from lakehouse.schema_snapshot import PolledConnector, SchemaSnapshot
from lakehouse.table_access import overwrite
from lakehouse.table_definitions import LakeNames
from lakehouse.tables import writes
from lakehouse.tables.merging import merge_table
from lakesync.adapters.backend_config import resolve_backend
from lakesync.adapters.transfer.migration import MigrationScope
from lakesync.config.backends import DeclaredDestination, DeclaredFanOut, DeclaredFlow, DeclaredMigration
from lakesync.engine import Engine
from lakesync.model.delta import extract_delta
from lakesync.model.errors import NotFoundError
from lakesync.model.schema import parse_schema
from lakesync.model.types import SyncPull, SyncPush
from lakesync.staging import open_store
from tests.integration.gateway_support import reached_at, wall_ms
from tests.lake_support import states
from tests.run_support import a_run, resources_of

SECRET = "the-erased-text"
ERASED = "r'1 ${env:HOME} \\ :p0"
"""The id of the erased row: no part of it may reach a statement's text."""
SCHEMA = parse_schema(
    {"table": "notes", "columns": [{"name": "title", "type": "string"}, {"name": "body", "type": "json"}]}
)
POINTS = ("history", "state", "expired", "restored", "confirmed")

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine


class KilledError(BaseException):
    """Simulates `kill -9`: nothing catches it."""


class World:
    """A gateway whose clients write secrets, and its lake."""

    declared: ClassVar[dict[str, object]] = {}

    def __init__(self, spark, served, folder, config, name="erasing"):
        self.config = config
        self.spark, self.served, self.store = spark, served, served.engine.store
        self.names = LakeNames("lake", f"sys_{name}", f"tab_{name}")
        self.folder, self.uri, self.name = folder, folder.as_uri(), name
        self.gateway = served.engine.gateway(name)
        self.gateway.register_schema(SCHEMA)
        self._made = 0

    def write(self, client, row, **values):
        self._made += 1
        stamp = (wall_ms() << 16) + self._made
        made = extract_delta(None, values, table="notes", row_id=row, client_id=client, hlc=stamp)
        made = msgspec.structs.replace(made, op="UPDATE")
        self.gateway.handle_push(SyncPush(client, (made,)))

    def insert(self, client, row):
        """An INSERT without columns."""
        self._made += 1
        made = extract_delta(None, {}, table="notes", row_id=row, client_id=client, hlc=(wall_ms() << 16) + self._made)
        self.gateway.handle_push(SyncPush(client, (msgspec.structs.replace(made, op="INSERT"),)))

    def flush(self):
        flush_backlog(self.spark, self.store, gateways=[self.name], names=self.names)

    def merge(self):
        merge_table(self.spark, SCHEMA, {self.name: self.store.cut_point(self.name).arrival}, names=self.names)

    def make_checkpoint(self):
        hold = self.store.cut_point(self.name)
        return make_checkpoint(self.spark, self.store, hold, [SCHEMA], directory_uri=self.uri, names=self.names)

    def checkpoint(self):
        """Request a checkpoint like a new client."""
        self._made += 1
        newcomer = f"newcomer-{self._made}"
        return self.gateway.submit_checkpoint(newcomer, {"sub": newcomer}).result()

    def complete_erasures(self):
        self.flush()
        requests = open_requests(self.store).get(self.name, [])
        assert due_requests(self.store).get(self.name, []) == requests
        if not requests:
            return None
        return complete_erasures(
            self.spark, self.store, requests, self.names, self.uri, partial(pipeline_store, self.config)
        )

    def run_erasure(self, config):
        """Run the asset as the job does; return its report, and the failed steps with their errors."""
        config = self.placed(config)
        polled = PolledConnector(self.name, "desk", "jira", ("issues",), 1000)  # which never landed anything
        asset = erasure_asset(SchemaSnapshot((SCHEMA,), connectors=(polled,)), config)
        given = None if config.staging.url.startswith("postgresql:") else self.store  # the run opens a Postgres itself
        with dg.DagsterInstance.ephemeral() as instance:
            resources = resources_of(config, given)
            done = dg.materialize([asset], resources=resources, instance=instance, raise_on_error=False)
        metadata = [event.materialization.metadata for event in done.get_asset_materialization_events()]
        failed = {each.step_key: str(each.event_specific_data) for each in done.all_events if each.is_step_failure}
        return (metadata[0] if metadata else None), failed

    def follow(self, config):
        """Let every leaf apply the lake's deltas."""
        config = self.placed(config)
        with a_run(config) as run:
            spark = run.pyspark.spark_session
            for each in destination_targets(config):
                follow(spark, follower_of(self.store, each), self.names)
            for name, declared in config.flows.items():
                flow(spark, flow_tasks(config, self.store, name, declared))
            for name, declared in config.migrations.items():
                ends = (resolve_backend(config, place) for place in (declared.source, declared.to))
                migrate(spark, [Migration(name, *ends, MigrationScope(tables=declared.tables), 100, str(self.folder))])  # type: ignore[call-arg]

    def differing(self, config):
        """The days on which each leaf differs from the lake."""
        config = self.placed(config)
        with a_run(config) as run:
            spark = run.pyspark.spark_session
            return {
                each.target.name: compare(spark, follower_of(self.store, each), self.names).differences
                for each in destination_targets(config)
            }

    def placed(self, config):
        """The settings over this lake, with the declared destinations."""
        lake = {"system_namespace": self.names.system, "namespace": self.names.tables, "checkpoints": self.uri}
        return config.replace(lake=lake).model_copy(update=self.declared)

    def files(self):
        """Every file of the two tables, of the checkpoints and of the rest of the folder."""
        names = [
            name for name in (self.names.deltas, self.names.state("notes")) if self.spark.catalog.tableExists(name)
        ]
        tables = [location_of(self.spark, name) for name in names]
        for place in (*tables, self.uri):
            yield from (path for path in Path(urlsplit(place).path).rglob("*") if path.is_file())

    def holding(self, text):
        return [path for path in self.files() if text in content(path)]


def content(path):
    return str(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else path.read_bytes().decode("latin-1")


def test_b7_an_erasure_that_crashes_at_every_step_removes_everything(spark, spark_server, serve, tmp_path, monkeypatch):
    served = serve()
    world = World(spark, served, tmp_path, reached_at(served, spark_server["config"]))
    world.write("bob", "shared", title="of bob", body=1)
    world.write("bob", ERASED, title=SECRET + "-row")
    world.write("ann", "shared", title=SECRET)
    world.write("ann", "hers", title=SECRET, body={"deep": SECRET})
    world.flush()
    world.merge()
    first = world.make_checkpoint()
    assert world.checkpoint() == first
    # merged on read: old rows remain in their files
    monkeypatch.setattr(writes, "_suits_merge_on_read", lambda *_: True)
    world.write("bob", "hers", body="of bob")
    world.write("cy", ERASED, body=SECRET)
    world.write("ann", "shared", body=SECRET)
    world.insert("ann", "shared")
    world.write("bob", "shared", body=2)
    world.flush()
    world.merge()
    assert len(world.holding(SECRET)) > 5

    world.store.erase_row("erasing", "notes", ERASED)
    world.store.erase_client("erasing", "ann")
    for name in POINTS:

        def die(passed, name=name):
            if passed == f"erasure.{name}":
                raise KilledError

        for module in (redaction, erasure):
            monkeypatch.setattr(module, "crash_point", die)
        with pytest.raises(KilledError):
            world.complete_erasures()
        if name != "confirmed":
            assert open_requests(world.store)["erasing"]
        with pytest.raises(NotFoundError, match="something was erased"):
            world.checkpoint()
    for module in (redaction, erasure):
        monkeypatch.setattr(module, "crash_point", lambda _: None)
    report, failed = world.run_erasure(world.config)
    assert not failed
    assert report["confirmed"].value == 1  # the erasure of the row was confirmed before the last kill
    (proof,) = report["report"].data
    assert (proof["client_id"], len(proof["searched"])) == ("ann", 2)
    assert world.complete_erasures() is None
    assert world.holding(SECRET) == []
    assert all(each.lake_ms for each in world.store.erasures("erasing"))

    assert not history_faults(world.spark, world.store, world.names).differences
    world.merge()
    lake = {row: state for (_, row), state in states(spark.table(world.names.state("notes"))).items()}
    staged = world.store.read("erasing", lambda view: view.rows([("notes", row) for row in lake])).result()
    assert {row: (state.values(), state.inserted) for row, state in lake.items()} == {
        row: (staged["notes", row].state.values(), staged["notes", row].state.inserted) for row in lake
    }
    assert {
        row: {name: bytes(value).decode() for name, value in state.values().items()} for row, state in lake.items()
    } == {
        "shared": {"title": '"of bob"', "body": "2"},
        "hers": {"body": '"of bob"'},
        ERASED: {},
    }
    assert world.checkpoint().tables[0].rows == 2
    assert world.holding(SECRET) == []
    assert world.holding("of bob")


def test_b7_a_merge_that_has_read_deltas_before_an_erasure_cannot_be_committed_after_it(
    spark, spark_server, serve, tmp_path, monkeypatch
):
    """As the merge of a killed run, which goes on. The table has no erased value, so nothing of it is rewritten."""
    served = serve()
    world = World(spark, served, tmp_path, reached_at(served, spark_server["config"]), "erasing_late")
    world.write("bob", "kept", title="of bob")
    world.flush()
    world.merge()
    world.write("bob", ERASED, title=SECRET)
    world.flush()
    world.store.erase_row(world.name, "notes", ERASED)

    def commit_after_the_erasure(rows, *arguments, **options):
        merged = rows.toArrow()
        assert SECRET in str(merged.to_pylist())
        world.complete_erasures()
        overwrite(spark.createDataFrame(merged, rows.schema), *arguments, **options)

    monkeypatch.setattr(writes, "overwrite", commit_after_the_erasure)
    monkeypatch.setattr(writes, "ATTEMPTS", 1)  # a killed run does not try again
    with pytest.raises(PySparkException, match="Cannot determine history"):
        world.merge()
    monkeypatch.undo()
    assert open_requests(world.store) == {}
    assert world.holding(SECRET) == []
    world.merge()
    assert world.holding(SECRET) == []


def test_b7_a_run_with_staging_on_postgres_completes_an_erasure(spark, spark_server, own_database, tmp_path):
    engine = Engine(open_store(own_database, wall_ms), wall_ms)
    engine.open()
    try:
        config = spark_server["config"].replace(staging={"url": own_database})
        world = World(spark, SimpleNamespace(engine=engine), tmp_path, config, "erasing_postgres")
        world.write("bob", "shared", title="of bob", body=1)
        world.write("ann", "shared", title=SECRET)
        world.write("bob", ERASED, title=SECRET)
        world.flush()
        world.merge()
        world.write("ann", "hers", body=SECRET)  # that no flush has taken yet
        world.store.erase_client(world.name, "ann")
        erased = world.store.erase_row(world.name, "notes", ERASED)
        assert world.holding(SECRET)

        report, failed = world.run_erasure(config)
        assert not failed
        assert report["confirmed"].value == 2
        assert open_requests(world.store) == {}
        assert world.holding(SECRET) == []
        assert world.checkpoint().arrival > erased.arrival
        page = world.gateway.handle_pull(SyncPull("cy", 0, 10))
        rows = {each.row_id: {cell.column: cell.decoded() for cell in each.columns} for each in page.deltas}
        assert rows == {"shared": {"title": "of bob", "body": 1}}
        lake = {row: state.values() for (_, row), state in states(spark.table(world.names.state("notes"))).items()}
        assert lake.pop("shared").keys() == {"title", "body"}
        assert not any(lake.values())
    finally:
        engine.close()


def test_b7_an_erasure_stays_open_until_every_destination_has_applied_it(spark, spark_server, serve, tmp_path):
    served = serve()
    config = reached_at(served, spark_server["config"])
    world = World(spark, served, tmp_path, config, "erasing_away")
    away = tmp_path / "away"
    world.declared = {
        "adapters": {
            **{name: f"sqlite://{away}/{name}.db" for name in ("copy", "slice")},
            **{name: f"file://{away}/{name}" for name in ("objects", "moved")},
        },
        "fan_out": {"both": DeclaredFanOut(primary="copy", secondaries=("objects",))},
        "destinations": {"warehouse": DeclaredDestination(to="both")},
        "flows": {
            "of_one": DeclaredFlow(
                source="lake", to="slice", where=({"column": "body", "op": "eq", "value": "1"},), gateways=(world.name,)
            )
        },
        "migrations": {
            "away": DeclaredMigration(source="copy", to="moved", tables=("notes",), since=datetime.now(UTC).date())
        },
    }
    world.write("bob", ERASED, title=SECRET, body=1)
    world.write("bob", "shared", title="of bob", body=1)
    world.write("ann", "shared", title=SECRET)
    world.flush()
    world.follow(config)
    places = {path.relative_to(tmp_path).parts[1] for path in world.holding(SECRET) if away in path.parents}
    assert places >= {"copy.db", "slice.db", "objects", "moved"}
    world.write("ann", "hers", title=SECRET)  # that no leaf has applied yet
    world.store.erase_row(world.name, "notes", ERASED)
    world.store.erase_client(world.name, "ann")

    (away / "objects").rename(away / "aside")
    (away / "objects").write_text("no folder")
    report, failed = world.run_erasure(config)
    assert report is None
    (error,) = failed.values()
    assert failed.keys() == {"erase.erase__destinations__warehouse__objects"}
    assert "ADAPTER_ERROR" in error
    assert len(open_requests(world.store)[world.name]) == 2

    (away / "objects").unlink()
    (away / "aside").rename(away / "objects")
    report, failed = world.run_erasure(config)
    assert not failed
    assert report["confirmed"].value == 2
    leaves = report["beyond_the_lake"].data
    assert leaves["destinations/warehouse/objects"] == {"deltas": 2, "rows": 0}
    assert leaves["destinations/warehouse/copy"] == {"deltas": 0, "rows": 2}  # it was completed before, and is repeated
    assert leaves["flows/of_one"] == {"deltas": 0, "rows": 2}
    assert "migrations/away" in leaves
    assert world.holding(SECRET) == []
    world.flush()
    world.follow(config)
    assert world.holding(SECRET) == []
    assert world.differing(config) == {"copy": [], "objects": []}
    for place in ("copy", "slice"):
        with closing(sqlite3.connect(away / f"{place}.db")) as sql, sql:
            shown = sql.execute("SELECT row_id, title FROM notes WHERE deleted_at IS NULL").fetchall()
        assert shown == [("shared", "of bob")]
