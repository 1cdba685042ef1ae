"""B11: tenants, tables, destinations and connectors fail for good, together and each in turn; the others stay fresh."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import dagster as dg
import pytest
from pydantic import SecretStr

import lakesync_dagster.definitions
import sensors.lags
from lakehouse.backends.declared import follower_positions
from lakehouse.schema_snapshot import registered
from lakehouse.sessions import session
from lakehouse.table_access import open_table
from lakesync.adapters import open_adapter
from lakesync.analysis.marks import report_in
from lakesync.config.backends import DeclaredDestination
from lakesync.config.pipeline_sections import DeclaredTable
from lakesync.model.delta import extract_delta
from lakesync.model.schema import parse_schema
from lakesync.model.types import SyncPush
from lakesync_dagster.definitions import make_definitions
from sensors.lags import PipelineLags
from tests.conformance.test_adapters import everything
from tests.dagster_instance import dagster_instance
from tests.integration.connectors.jira_support import desk
from tests.integration.dagster.poll_support import KEY
from tests.integration.gateway_support import SERVICE, wall_ms

pytestmark = pytest.mark.timeout(1500)  # Spark's first queries take a minute on a busy machine

TENANTS = {"north": ("flights",), "south": ("flights",), "west": ("planes",)}
TABLES = ("flights", "planes")
DESTINATIONS = ("copy", "spare")
CONNECTORS = ("south", "west")
"""The tenants with a connector named `desk`, each to a separate site."""
SENSORS = {"poll": "poll_sensor", "flush": "flush_sensor", "destinations": "destination_sensor"}
"""Job → the sensor that requests its runs."""
NUMBER = {"number": "number"}
BOUND = 300.0
"""Seconds from a push until every good part has it, on a machine that is ten times slower than a usual one."""
ONE_OF_EACH = (("tenant", "north"), ("table", "planes"), ("destination", "spare"), ("connector", "west"))
"""One member of each kind; the tenant south, its table and connector, and the destination `copy` stay unpoisoned."""
EACH = [
    *(("tenant", name) for name in TENANTS),
    *(("table", name) for name in TABLES),
    *(("destination", name) for name in DESTINATIONS),
    *(("connector", name) for name in CONNECTORS),
]


class System:
    """Gateways with connectors, a lake, destinations, and the sensors and jobs over them."""

    def __init__(self, served, spark_config, instance, folder, stack):
        self.engine, self.instance, self.folder = served.engine, instance, folder
        config = spark_config.replace(
            lake={"system_namespace": "sys_matrix", "namespace": "tab_matrix", "checkpoints": str(folder / "frames")},
            gateway={"url": served.url},
            service_token=SecretStr(SERVICE),
            connectors={"allowed_hosts": ("127.0.0.1",)},
            flush={"max_age_seconds": 0.5},
            secret_key=SecretStr(KEY),
        )
        self.config = config.model_copy(
            update={
                "adapters": {name: f"sqlite://{folder}/{name}.db" for name in DESTINATIONS},
                "destinations": {name: DeclaredDestination(to=name) for name in DESTINATIONS},
                "tables": dict.fromkeys(TABLES, DeclaredTable(contract="freeze")),
            }
        )
        for tenant, tables in TENANTS.items():
            for table in tables:
                self.register(tenant, table, NUMBER)
        self.sites = {tenant: stack.enter_context(desk()) for tenant in CONNECTORS}
        for tenant, site in self.sites.items():
            site.site.add_project("SUP")
            connector = site.config(includeComments=False, includeProjects=False)
            body = {"name": "desk", "type": "jira", "jira": dict(connector.settings), "ingest": {"intervalMs": 5_000}}
            self.engine.gateway(tenant).register_connector(body)
        self.pushed, self.cursors, self.snapshot = set(), {}, None

    def register(self, tenant, table, columns):
        schema = {"table": table, "columns": [{"name": name, "type": kind} for name, kind in columns.items()]}
        self.engine.gateway(tenant).register_schema(parse_schema(schema))

    def write(self, extra=()):
        """Push a row to every table of every tenant, and add an issue to every site.

        Args:
            extra: the tenants whose rows have one more column.
        """
        for tenant, tables in TENANTS.items():
            for table in tables:
                row, now = f"row-{len(self.pushed)}", wall_ms() << 16
                values = {"number": 1, **({"added": "x"} if tenant in extra else {})}
                delta = extract_delta(None, values, table=table, row_id=row, client_id="writer", hlc=now)
                self.engine.gateway(tenant).handle_push(SyncPush("writer", (delta,)))
                self.pushed.add((tenant, table, row))
        for tenant, site in self.sites.items():
            issue = site.site.add_issue("SUP", "an issue")
            site.clock.advance(200_000)
            self.pushed.add((tenant, "jira_issues", issue.key))

    def load(self):
        """Load the code location, as the schema sensor requests it after a registration."""
        snapshot = registered(self.engine.store)
        if snapshot != self.snapshot:
            self.snapshot, self.definitions = snapshot, make_definitions(self.config, snapshot)
            repository = self.definitions.get_repository_def()
            self.sensors = {job: repository.get_sensor_def(name) for job, name in SENSORS.items()}
            self.lags = PipelineLags(self.config, snapshot, lambda store: follower_positions(self.config, store))

    def work(self, expected, lacking):
        """Run the sensors' requests until only these parts are behind and no row is missing; return the seconds."""
        begun = time.monotonic()
        self.load()
        while (found := (self.behind(), lacking())) != (expected, set()):
            assert time.monotonic() - begun < BOUND, f"{found} are behind and lacking, rather than {expected}"
            for job, sensor in self.sensors.items():
                self.run(job, sensor)
            self.load()
        return time.monotonic() - begun

    def run(self, job, sensor):
        """Tick a sensor, and run its requests."""
        with dg.build_sensor_context(self.instance, cursor=self.cursors.get(job)) as context:
            found = sensor(context)
        if isinstance(found, dg.SkipReason):
            return
        self.cursors[job] = found.cursor
        for request in found.run_requests:
            self.definitions.resolve_job_def(job).execute_in_process(
                instance=self.instance,
                tags=request.tags,
                partition_key=request.partition_key,
                asset_selection=request.asset_selection,
                raise_on_error=False,
            )

    def behind(self):
        """The parts that `lakesync status` would show as behind."""
        self.lags.read(self.engine.store, lambda: self.instance, read_again=True)
        return {lag.key for lag in report_in(self.engine.store.marks()).lags}

    def lacking(self, destinations, without=()):
        """The rows that destinations lack.

        Args:
            destinations: their names.
            without: the tenants whose issues are not expected.
        """
        expected = {each for each in self.pushed if each[1] != "jira_issues" or each[0] not in without}
        return {each for name in destinations for each in expected - self.held(name)}

    def held(self, destination):
        """The rows whose deltas a destination has."""
        with closing(open_adapter(self.config.adapters[destination])) as adapter:
            return {(each.gateway, each.delta.table, each.delta.row_id) for each in everything(adapter)}

    def checkpoints(self):
        """The arrival of each tenant's newest checkpoint."""
        return {tenant: self.engine.store.newest_checkpoint(tenant).arrival for tenant in TENANTS}

    def rows(self, table):
        """The rows of a state table."""
        with session(self.config) as spark:
            found = spark.table(f"lake.tab_matrix.{table}").select("_gateway", "_row").collect()
        return {(row["_gateway"], table, row["_row"]) for row in found}


@pytest.fixture(scope="module")
def system(serve, spark_server, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched, dagster_instance() as instance, ExitStack() as stack:
        patched.setattr(lakesync_dagster.definitions, "WATCH_SECONDS", 0.0)
        patched.setattr(sensors.lags, "READ_SECONDS", 1.0)
        made = System(serve(), spark_server["config"], instance, tmp_path_factory.mktemp("matrix"), stack)
        made.write()
        made.work(set(), lambda: made.lacking(DESTINATIONS))
        yield made


def poison_tenant(system, name):
    """The tenant's schema conflicts with a frozen table."""
    (table,) = TENANTS[name]
    system.register(name, table, {**NUMBER, "added": "string"})

    def repair():
        system.engine.gateway(name).retire_schema(table)
        system.register(name, table, NUMBER)

    return {f"table/{table}/{name}", f"checkpoint/{name}"}, repair


def poison_table(system, name):
    """The table's data files are deleted."""
    tenants = [tenant for tenant, tables in TENANTS.items() if name in tables]
    with session(system.config) as spark, open_table(spark, f"lake.tab_matrix.{name}") as table:
        for file in table.inspect.files()["file_path"].to_pylist():
            Path(urlsplit(file).path).unlink()

    def repair():
        with session(system.config) as spark:
            spark.sql(f"DROP TABLE lake.tab_matrix.{name}")

    return {f"{part}/{tenant}" for tenant in tenants for part in (f"table/{name}", "checkpoint")}, repair


def poison_destination(system, name):
    """The destination is no longer a database."""
    path, aside = system.folder / f"{name}.db", system.folder / f"{name}.aside"
    path.rename(aside)
    path.write_text("no database")

    def repair():
        path.unlink()
        aside.rename(path)

    return {f"destination/destinations/{name}/{name}/{tenant}" for tenant in TENANTS}, repair


def poison_connector(system, name):
    """The connector's site rejects its token."""
    api = system.sites[name].api
    token, api.token = api.token, "another"

    def repair():
        api.token = token

    return {f"poll/desk/{name}"}, repair


POISONS = {
    "tenant": poison_tenant,
    "table": poison_table,
    "destination": poison_destination,
    "connector": poison_connector,
}


@pytest.mark.parametrize(
    "members",
    [
        pytest.param(ONE_OF_EACH, id="one-of-each"),
        *(pytest.param((member,), id="-".join(member), marks=pytest.mark.deep) for member in EACH),
    ],
)
def test_b11_only_failing_parts_are_behind_and_they_catch_up_after_the_repair(system, members):
    poisoned = {kind: {name for each, name in members if each == kind} for kind in POISONS}
    before, expected = system.checkpoints(), set()
    with ExitStack() as repairs:
        for kind, name in members:
            parts, repair = POISONS[kind](system, name)
            expected |= parts
            repairs.callback(repair)
        system.write(extra=poisoned["tenant"])
        good = [name for name in DESTINATIONS if name not in poisoned["destination"]]
        seconds = system.work(expected, lambda: system.lacking(good, poisoned["connector"]))
        print(f"every other part was up to date after {seconds:.0f} s")
        after = system.checkpoints()
        held = {tenant for tenant in TENANTS if f"checkpoint/{tenant}" in expected}
        assert {tenant for tenant in TENANTS if after[tenant] == before[tenant]} == held
    system.cursors.clear()  # instead of after the pauses
    system.write()
    system.work(set(), lambda: system.lacking(DESTINATIONS))
    for table in TABLES:
        assert system.rows(table) == {each for each in system.pushed if each[1] == table}
