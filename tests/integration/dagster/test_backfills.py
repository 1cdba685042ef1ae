"""Backfills as Dagster runs them, over a real Spark and gateway: each run processes only its own partitions."""

from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from pydantic import SecretStr

from lakehouse.schema_snapshot import registered
from lakehouse.sessions import session
from lakesync.adapters import DeltaQuery, open_adapter
from lakesync.config.backends import DeclaredDestination
from lakesync.model.delta import extract_delta
from lakesync.model.schema import parse_schema
from lakesync.model.types import SyncPush
from lakesync_dagster.definitions import make_definitions
from tests.dagster_instance import dagster_instance
from tests.integration.gateway_support import SERVICE

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine

FIRST = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=20)
MONDAY, TUESDAY, WEDNESDAY, THURSDAY, FRIDAY, SATURDAY = (f"{FIRST + timedelta(days=n):%Y-%m-%d}" for n in range(6))
"""Six consecutive days; the names are for the reader."""
DELTAS = "lake.sys_backfill.deltas"
COMPARED = ("acknowledged", "unflushed", "dagster/partition_row_count", "ledger_equals_lake")


class Calendar:
    """The gateway's clock, from noon of a given day."""

    def __init__(self):
        self.set(MONDAY)

    def set(self, day):
        noon = datetime.fromisoformat(f"{day}T12:00:00").replace(tzinfo=UTC)
        self.now_ms = max(getattr(self, "now_ms", 0), int(noon.timestamp() * 1000))

    def __call__(self):
        self.now_ms += 1
        return self.now_ms


class House:
    """A gateway with a manual clock, a lake, and Dagster's jobs over both."""

    def __init__(self, serve, spark_config, instance, folder):
        self.clock, self.instance = Calendar(), instance
        served = serve(wall=self.clock)
        self.store = served.engine.store
        self.gateway = served.engine.gateway("shop")
        self.gateway.register_schema(parse_schema({"table": "todos", "columns": [{"name": "n", "type": "number"}]}))
        config = spark_config.replace(
            lake={"system_namespace": "sys_backfill", "namespace": "tab_backfill", "checkpoints": str(folder)},
            gateway={"url": served.url},
            service_token=SecretStr(SERVICE),
            dagster={"partitions_start": MONDAY},
        )
        self.copy = f"sqlite://{folder}/copy.db"
        destinations = {"shop": DeclaredDestination(to="copy")}
        self.config = config.model_copy(update={"adapters": {"copy": self.copy}, "destinations": destinations})
        self.definitions = make_definitions(self.config, registered(self.store))
        self.pushed = 0

    def push(self, day, count):
        self.clock.set(day)
        self.pushed += count
        deltas = [
            extract_delta(
                None,
                {"n": number},
                table="todos",
                row_id=f"t{number}",
                client_id="c",
                hlc=(self.clock.now_ms << 16) + number,
            )
            for number in range(self.pushed - count, self.pushed)
        ]
        self.gateway.handle_push(SyncPush("c", tuple(deltas)))

    def backfill(self, asset, first, last, **config):
        """The run that a backfill of a range of days launches."""
        job = dg.define_asset_job("backfill", selection=dg.AssetSelection.assets(asset.split("/")))
        definitions = dg.Definitions.merge(self.definitions, dg.Definitions(jobs=[job]))
        tags = {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        return definitions.resolve_job_def("backfill").execute_in_process(
            instance=self.instance, tags=tags, run_config=config, raise_on_error=False
        )

    def unflushed(self):
        days = self.store.ledger("shop")
        return {day.day: day.count - day.flushed_count for day in days if day.flushed_count < day.count}


def metadata_of(run):
    """Each partition's metadata, as plain values."""
    made = [event.step_materialization_data.materialization for event in run.get_asset_materialization_events()]
    return {each.partition: {name: value.value for name, value in each.metadata.items()} for each in made}


def counted(run, *names):
    return {day: tuple(found[name] for name in names) for day, found in metadata_of(run).items()}


@pytest.fixture(scope="module")
def house(serve, spark_server, tmp_path_factory):
    with dagster_instance() as instance:
        yield House(serve, spark_server["config"], instance, tmp_path_factory.mktemp("frames"))


def test_a_backfill_flushes_only_the_deltas_of_its_days(house, spark_server):
    for day, count in ((MONDAY, 3), (WEDNESDAY, 2), (THURSDAY, 1)):
        house.push(day, count)
    run = house.backfill("deltas", MONDAY, WEDNESDAY)
    assert run.success
    assert counted(run, "deltas_in", *COMPARED) == {
        MONDAY: (3, 3, 0, 3, True),
        TUESDAY: (0, 0, 0, 0, True),
        WEDNESDAY: (2, 2, 0, 2, True),
    }
    assert house.unflushed() == {THURSDAY: 1}

    again = house.backfill("deltas", WEDNESDAY, WEDNESDAY)
    assert again.success
    assert counted(again, "deltas_in", *COMPARED) == {WEDNESDAY: (0, 2, 0, 2, True)}

    with session(spark_server["config"]) as spark:
        monday = spark.table(DELTAS).where("row_id = 't1'").toArrow()
        spark.sql(f"DELETE FROM {DELTAS} WHERE row_id = 't1'")
        damaged = house.backfill("deltas", MONDAY, WEDNESDAY)
        spark.createDataFrame(monday).writeTo(DELTAS).append()
    assert not damaged.success
    assert counted(damaged, *COMPARED) == {
        MONDAY: (3, 0, 2, False),
        TUESDAY: (0, 0, 0, True),
        WEDNESDAY: (2, 0, 2, True),
    }
    assert metadata_of(damaged)[MONDAY]["gateways_that_differ"] == "shop"
    failed = {each.check_name for each in damaged.get_asset_check_evaluations() if not each.passed}
    assert "ledger_equals_lake" in failed


def test_a_backfill_without_an_earlier_unflushed_day_is_rejected(house):
    house.backfill("deltas", MONDAY, THURSDAY)
    house.push(FRIDAY, 1)
    house.push(SATURDAY, 1)
    run = house.backfill("deltas", SATURDAY, SATURDAY)
    assert not run.success
    assert metadata_of(run) == {}
    assert house.unflushed() == {FRIDAY: 1, SATURDAY: 1}
    (failure,) = [event for event in run.all_events if event.is_step_failure]
    assert f"Include {FRIDAY} in the backfill" in failure.event_specific_data.error_display_string
    both = house.backfill("deltas", FRIDAY, SATURDAY)
    assert both.success
    assert counted(both, "deltas_in") == {FRIDAY: (1,), SATURDAY: (1,)}


def test_a_backfill_of_a_table_reports_each_day(house):
    if not house.pushed:  # merged by the earlier tests
        house.push(MONDAY, 3)
        house.push(SATURDAY, 2)
    house.backfill("deltas", MONDAY, SATURDAY)
    acknowledged = {day.day: day.count for day in house.store.ledger("shop")}
    run = house.backfill("tables/todos", MONDAY, SATURDAY)
    assert run.success
    days = (MONDAY, TUESDAY, WEDNESDAY, THURSDAY, FRIDAY, SATURDAY)
    each = {day: (acknowledged.get(day, 0),) * 2 for day in days}
    assert counted(run, "deltas_in", "rows_merged") == each
    assert metadata_of(run)[MONDAY]["of_run"]["deltas_in"] == house.pushed
    again = house.backfill("tables/todos", MONDAY, MONDAY)
    assert counted(again, "deltas_in", "rows_merged") == {MONDAY: (3, 3)}


def test_a_backfill_of_a_destination_writes_missing_deltas_up_to_its_days(house):
    if not house.pushed:  # written by the earlier tests
        house.push(MONDAY, 3)
        house.push(SATURDAY, 2)
    house.backfill("deltas", MONDAY, SATURDAY)
    leaf = "destinations/shop/copy"
    run = house.backfill(leaf, MONDAY, TUESDAY)
    assert run.success
    assert counted(run, "deltas_in") == {MONDAY: (3,), TUESDAY: (0,)}
    adapter = open_adapter(house.copy)
    held = {each.delta.row_id for each in adapter.query_deltas_since(DeltaQuery()).deltas}
    adapter.close()
    assert held == {"t0", "t1", "t2"}
    rest = house.backfill(leaf, MONDAY, SATURDAY)
    assert rest.success
    assert sum(deltas for (deltas,) in counted(rest, "deltas_in").values()) == house.pushed - 3
    assert counted(house.backfill(leaf, MONDAY, MONDAY), "deltas_in") == {MONDAY: (0,)}

    adapter = open_adapter(house.copy)
    adapter.delete_deltas(adapter.query_arrow(DeltaQuery(limit=2)).deltas)
    adapter.close()
    rebuilt = house.backfill(leaf, MONDAY, MONDAY, ops={"destinations__shop__copy": {"config": {"rebuild": True}}})
    assert counted(rebuilt, "deltas_in", "deltas_rewritten") == {MONDAY: (0, 3)}
    assert all(each.passed for each in rebuilt.get_asset_check_evaluations() if each.check_name == "equals_lake")
