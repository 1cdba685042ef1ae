"""Gateways with one table name and separate namespaces are merged, checkpointed, queried and erased separately."""

import secrets
import time
from pathlib import Path
from urllib.parse import urlsplit

import dagster as dg
import pyarrow.parquet as pq
import pytest

from lakehouse.maintenance import maintain
from lakehouse.schema_snapshot import registered
from lakehouse.spark_query import query as on_spark
from lakesync.analysis.catalogue import LakeReader
from lakesync.analysis.query import query
from lakesync.analysis.trace import trace
from lakesync.config.pipeline_sections import MaintenanceSection
from lakesync.config.sections import DeclaredGateway
from lakesync.model.delta import extract_delta
from lakesync.model.errors import ConfigurationError
from lakesync.model.schema import parse_schema
from lakesync.model.types import SyncPull, SyncPush
from lakesync_dagster.definitions import make_definitions
from tests.integration.gateway_support import reached_at, wall_ms
from tests.run_support import a_run, resources_of

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine

COLUMNS = {
    "home": [{"name": "title", "type": "string"}],
    "eu": [{"name": "title", "type": "number"}],
}
"""Types that cannot be combined in one table."""


class House:
    """A store with two gateways, and Dagster's jobs over it. `eu` has a separate namespace."""

    def __init__(self, config, folder, serve, name):
        url = f"sqlite://{folder / 'staging'}"
        self.home, self.eu = f"tab_{name}", f"eu_{name}"
        lake = {"system_namespace": f"sys_{name}", "namespace": self.home, "checkpoints": str(folder / "frames")}
        served = serve(staging=url)
        self.engine = served.engine
        self.shared = reached_at(served, config).replace(lake=lake, staging={"url": url})
        self.config = self.shared.model_copy(update={"gateways": {"eu": DeclaredGateway(namespace=self.eu)}})
        self.push("eu", "ada", {"2": "x"})  # a table without a schema accepts values that its columns cannot hold
        self.push("eu", "bob", {"8": "y"})
        for gateway, columns in COLUMNS.items():
            self.engine.gateway(gateway).register_schema(parse_schema({"table": "orders", "columns": columns}))

    def push(self, gateway, client, rows):
        now = wall_ms() << 16
        deltas = [
            extract_delta(None, {"title": title}, table="orders", row_id=row, client_id=client, hlc=now + place)
            for place, (row, title) in enumerate(rows.items())
        ]
        self.engine.gateway(gateway).handle_push(SyncPush(client, tuple(deltas)))
        return deltas[0].delta_id

    def run(self, job, config=None):
        """Run a job; return the assets that it made, the checks that failed or warned, and its errors."""
        config = config or self.config
        definitions = make_definitions(config, registered(self.engine.store, config.namespaces.own))
        today = time.strftime("%Y-%m-%d", time.gmtime())
        tags = {f"dagster/asset_partition_range_{end}": today for end in ("start", "end")}
        tags["lakesync/requested_by"] = "flush_sensor"
        with dg.DagsterInstance.ephemeral() as instance:
            done = definitions.resolve_job_def(job).execute_in_process(
                instance=instance,
                tags=tags if job == "flush" else {},
                resources=resources_of(config, self.engine.store),
                raise_on_error=False,
            )
        made = {event.asset_key.to_user_string() for event in done.get_asset_materialization_events()}
        checked = [each for each in done.get_asset_check_evaluations() if each.severity is dg.AssetCheckSeverity.ERROR]
        unmet = [each.check_name for each in checked if not each.passed]
        failed = " ".join(str(each.event_specific_data) for each in done.all_events if each.is_step_failure)
        return made, unmet, failed

    def fill(self):
        """Push rows of both gateways and flush; return the id of one delta, and the run."""
        first = self.push("eu", "ada", {"1": 1})
        self.push("home", "ada", {"1": "one", "3": "three"})
        return first, self.run("flush")

    def titles(self, namespace, ask=query):
        answer = ask(self.config, f"SELECT _gateway, _row, title FROM {namespace}.orders").to_pylist()
        return {(row["_gateway"], row["_row"]): row["title"] for row in answer}

    def rejected(self):
        with LakeReader(self.config) as lake:
            found = lake.rejected.scan().to_arrow().to_pylist()
        return {(row["gateway"], row["table_name"], row["row_id"], row["value"]) for row in found}


@pytest.fixture
def house(spark_server, serve, tmp_path):
    """An empty house for one test."""
    return House(spark_server["config"], tmp_path, serve, secrets.token_hex(6))


@pytest.fixture(scope="module")
def filled(spark_server, serve, tmp_path_factory):
    """A filled house, the id of one of its deltas, and the run that flushed them.

    Tests share it, because filling takes seven seconds of processor time. Only the first test may expect all its rows.
    """
    house = House(spark_server["config"], tmp_path_factory.mktemp("house"), serve, secrets.token_hex(6))
    return house, *house.fill()


def test_neither_gateway_sees_the_others_tables(filled):
    house, first, run = filled
    assert run == (
        {"deltas", "tables/orders", f"tables_{house.eu}/orders", "checkpoint_snapshots", "checkpoint"},
        [],
        "",
    )
    house.push("eu", "bob", {"9": 9})
    eu = {("eu", "1"): 1.0, ("eu", "2"): None, ("eu", "8"): None, ("eu", "9"): 9.0}
    home = {("home", "1"): "one", ("home", "3"): "three"}
    for ask in (query, on_spark):
        assert house.titles(house.eu, ask) == eu
        assert house.titles(house.home, ask) == home
    both = query(house.config, f"SELECT e._row FROM {house.eu}.orders e JOIN orders h ON h._row = e._row")
    assert both.to_pylist() == [{"_row": "1"}]
    assert trace(house.config, first).state.contains_delta
    checkpoints = {gateway: house.engine.store.newest_checkpoint(gateway) for gateway in COLUMNS}
    assert {gateway: made.tables[0].rows for gateway, made in checkpoints.items()} == {"eu": 3, "home": 2}
    assert house.rejected() == {("eu", f"{house.eu}.orders", "2", '"x"'), ("eu", f"{house.eu}.orders", "8", '"y"')}


def test_an_erasure_in_one_leaves_the_other(house):
    house.push("eu", "bob", {"9": 9})
    house.fill()
    before = house.engine.store.newest_checkpoint("home")
    erased = house.engine.store.erase_client("eu", "ada")
    made, _, failed = house.run("erasure")
    assert failed == ""
    assert made == {"erasure"}
    assert house.engine.store.erasures("eu")[0].lake_ms is not None, erased
    assert house.titles(house.eu) == {("eu", "8"): None, ("eu", "9"): 9.0}
    assert house.titles(house.home) == {("home", "1"): "one", ("home", "3"): "three"}
    assert house.rejected() == {("eu", f"{house.eu}.orders", "8", '"y"')}
    with LakeReader(house.config) as lake:
        files = Path(urlsplit(lake.rejected.location()).path).rglob("*.parquet")
    assert {value for file in files for value in pq.read_table(file, partitioning=None)["value"].to_pylist()} == {'"y"'}
    assert house.engine.store.newest_checkpoint("home").tables == before.tables
    page = house.engine.gateway("eu").handle_pull(SyncPull("eve", 0, 100), {"sub": "eve"})
    assert sorted(each.row_id for each in page.deltas) == ["8", "9"]


def test_a_gateway_cannot_change_its_namespace(filled):
    """Otherwise its rows in the old one would not be merged any longer, and an erasure would miss them."""
    house, *_ = filled
    before = house.titles(house.eu)
    began = {gateway: house.engine.store.newest_checkpoint(gateway) for gateway in COLUMNS}
    house.push("eu", "bob", {"10": 10})
    house.push("home", "bob", {"11": "eleven"})
    both = {"eu": DeclaredGateway(namespace=house.eu), "home": DeclaredGateway(namespace="shop_us")}
    made, _, failed = house.run("flush", house.shared.model_copy(update={"gateways": both}))
    assert {"deltas", f"tables_{house.eu}/orders"} <= made
    assert f"gateway 'home' are in the lake's namespace '{house.home}', and it is configured for 'shop_us'" in failed
    assert "Put gateways.home.namespace back" in failed
    assert house.engine.store.newest_checkpoint("home") == began["home"]
    assert house.engine.store.newest_checkpoint("eu").arrival > began["eu"].arrival
    with a_run(house.shared, house.engine.store) as run:
        with pytest.raises(ConfigurationError, match=f"'{house.eu}', and it is configured for '{house.home}'"):
            run.run_state.names_of("eu")
        assert run.run_state.gateways_in("") == ["home"]
    assert house.run("flush")[1:] == ([], "")
    assert house.engine.store.newest_checkpoint("home").arrival > began["home"].arrival
    assert house.titles(house.eu) == {**before, ("eu", "10"): 10.0}


def test_maintenance_of_the_history_expires_snapshots_of_rejected_values(filled):
    house, *_ = filled
    house.push("eu", "bob", {"2": 2})  # a valid value replaces the rejected one
    house.run("flush")
    with LakeReader(house.config) as lake:
        assert len(lake.rejected.snapshots()) > 1
    with a_run(house.config) as run:
        maintain(
            run.pyspark.spark_session,
            run.lake.names,
            run.lake.names.deltas,
            MaintenanceSection.model_construct(snapshot_retention_hours=0),
            house.engine.store.backlog(),
        )
    with LakeReader(house.config) as lake:
        assert len(lake.rejected.snapshots()) == 1
    assert house.rejected() == {("eu", f"{house.eu}.orders", "8", '"y"')}
