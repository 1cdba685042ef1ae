"""B7: what is erased is gone from the lake's history, states, snapshots, files and checkpoints, crash or no crash."""

from pathlib import Path
from urllib.parse import urlsplit

import dagster as dg
import msgspec
import pyarrow.parquet as pq
import pytest

from assets.erasure import erasure as erasure_assets
from lakesync.delta import extract_delta
from lakesync.exceptions import NotFoundError
from lakesync.schema import parse_schema
from lakesync.types import SyncPush
from resources.lake import erasure, redaction, state_writes
from resources.lake.checks import ledger_against_lake
from resources.lake.cuts import make_cut
from resources.lake.deltas import flush_due
from resources.lake.erasure import conclude, open_requests, reached
from resources.lake.state import merge_table
from resources.lake.tables import LakeNames
from resources.lake.upkeep import location_of
from resources.pipeline import Pipeline
from resources.snapshot import SchemaSnapshot
from resources.spark import session
from tests.integration.gateway_support import wall_ms
from tests.lake_support import states

SECRET = "the-erased-text"
SCHEMA = parse_schema(
    {"table": "notes", "columns": [{"name": "title", "type": "string"}, {"name": "body", "type": "json"}]}
)
POINTS = ("history", "state", "expired", "restored", "confirmed")

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute where the machine is busy


class KilledError(BaseException):
    """Stands for `kill -9`: nothing catches it."""


@pytest.fixture(scope="module")
def spark(spark_server):
    with session(spark_server["config"]) as spark:
        yield spark


class World:
    """A gateway whose clients write secrets, and the lake behind it."""

    def __init__(self, spark, served, folder):
        self.spark, self.served, self.store = spark, served, served.engine.store
        self.names = LakeNames("lake", "sys_erasure", "tab_erasure")
        self.uri = folder.as_uri()
        self.gateway = served.engine.gateway("erasing")
        self.gateway.register_schema(SCHEMA)
        self._made = 0

    def write(self, client, row, **values):
        self._made += 1
        stamp = (wall_ms() << 16) + self._made
        made = extract_delta(None, values, table="notes", row_id=row, client_id=client, hlc=stamp)
        made = msgspec.structs.replace(made, op="UPDATE")
        self.gateway.handle_push(SyncPush(client, (made,)))

    def flush(self):
        flush_due(self.spark, self.store, gateways=["erasing"], names=self.names)

    def merge(self):
        merge_table(self.spark, SCHEMA, {"erasing": self.store.hold("erasing").arrival}, names=self.names)

    def cut(self):
        hold = self.store.hold("erasing")
        return make_cut(self.spark, self.store, hold, [SCHEMA], directory_uri=self.uri, names=self.names)

    def checkpoint(self):
        """As somebody asks for it whom the gateway never saw."""
        self._made += 1
        newcomer = f"newcomer-{self._made}"
        return self.gateway.submit_checkpoint(newcomer, {"sub": newcomer}).result()

    def conclude(self):
        self.flush()
        requests = open_requests(self.store).get("erasing", [])
        backlog = [each for each in self.store.backlog() if each.gateway == "erasing"]
        assert reached(requests, backlog) == requests
        return conclude(self.spark, self.store, requests, self.names, self.uri) if requests else None

    def run_erasure(self, config):
        """The assets as the job has them; what the last one tells."""
        lake = {"system_namespace": self.names.system, "namespace": self.names.tables, "checkpoints": self.uri}
        assets = erasure_assets(SchemaSnapshot((SCHEMA,)))
        with Pipeline(config.replace(lake=lake)) as pipeline, dg.DagsterInstance.ephemeral() as instance:
            pipeline.store = self.store
            done = dg.materialize(assets, resources={"pipeline": pipeline}, instance=instance)
        return done.asset_materializations_for_node("erasure__report")[0].metadata

    def files(self):
        """Every file of the two tables and of the checkpoints."""
        tables = [location_of(self.spark, name) for name in (self.names.deltas, self.names.state("notes"))]
        for place in (*tables, self.uri):
            yield from (path for path in Path(urlsplit(place).path).rglob("*") if path.is_file())

    def holding(self, text):
        return [path for path in self.files() if text in content(path)]


def content(path):
    return str(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else path.read_bytes().decode("latin-1")


def test_b7_what_is_erased_is_gone_after_a_crash_at_every_step(spark, spark_server, serve, tmp_path, monkeypatch):
    world = World(spark, serve(), tmp_path)
    world.write("bob", "shared", title="of bob", body=1)
    world.write("bob", "erased", title=SECRET + "-row")
    world.write("ann", "shared", title=SECRET)
    world.write("ann", "hers", title=SECRET, body={"deep": SECRET})
    world.flush()
    world.merge()
    first = world.cut()
    assert world.checkpoint() == first
    monkeypatch.setattr(state_writes, "_is_large", lambda *_: False)  # merged on read: old rows stay in their files
    world.write("bob", "hers", body="of bob")
    world.write("cy", "erased", body=SECRET)
    world.write("ann", "shared", body=SECRET)
    world.write("bob", "shared", body=2)
    world.flush()
    world.merge()
    assert len(world.holding(SECRET)) > 5

    world.store.erase_row("erasing", "notes", "erased")
    world.store.erase_client("erasing", "ann")
    for name in POINTS:

        def die(passed, name=name):
            if passed == f"erasure.{name}":
                raise KilledError

        for module in (redaction, erasure):
            monkeypatch.setattr(module, "crash_point", die)
        with pytest.raises(KilledError):
            world.conclude()
        if name != "confirmed":
            assert open_requests(world.store)["erasing"]
        with pytest.raises(NotFoundError, match="something was erased"):
            world.checkpoint()
    for module in (redaction, erasure):
        monkeypatch.setattr(module, "crash_point", lambda _: None)
    report = world.run_erasure(spark_server["config"])
    assert report["confirmed"].value == 1  # the row's was confirmed before the last kill
    (proof,) = report["report"].data
    assert (proof["client_id"], len(proof["searched"])) == ("ann", 2)
    assert world.conclude() is None
    assert world.holding(SECRET) == []
    assert all(each.lake_ms for each in world.store.erasures("erasing"))

    assert not ledger_against_lake(world.spark, world.store, world.names)
    world.merge()
    lake = {row: state for (_, row), state in states(spark.table(world.names.state("notes"))).items()}
    staged = world.store.read("erasing", lambda view: view.rows([("notes", row) for row in lake])).result()
    assert {row: state.values() for row, state in lake.items()} == {
        row: staged["notes", row].state.values() for row in lake
    }
    assert {
        row: {name: bytes(value).decode() for name, value in state.values().items()} for row, state in lake.items()
    } == {
        "shared": {"title": '"of bob"', "body": "2"},
        "hers": {"body": '"of bob"'},
        "erased": {},
    }
    assert world.checkpoint().tables[0].rows == 2
    assert world.holding(SECRET) == []
    assert world.holding("of bob")
