"""Connectors in the code location: an asset for each table; a step, a pool and an interval for each connector."""

from contextlib import nullcontext
from types import SimpleNamespace

import dagster as dg
import pytest

from assets.ingest import table_metadata
from lakehouse.landing.delivery import DeliveryReport
from lakehouse.landing.polls import ConnectorPoll, TablePoll
from lakehouse.marks import record_poll
from lakehouse.schema_snapshot import PolledConnector, SchemaSnapshot, registered
from lakesync.analysis.lags import Lag, compare_marks
from lakesync.analysis.marks import report_in
from lakesync.config import load
from lakesync.connectors import Connectors, Secrets
from lakesync.connectors.base import Usage
from lakesync.connectors.polling import PollReport, TableReport
from lakesync.engine import Engine
from lakesync.model import hlc
from lakesync.model.hlc import wall_clock
from lakesync.staging import open_store
from lakesync_dagster.definitions import day_partitions, make_definitions
from sensors import backoff as attempts
from sensors.due_times import timed_parts
from sensors.external_systems import poll_sensor
from sensors.lags import PipelineLags
from tests.dagster_instance import dagster_instance

DESK = PolledConnector("shop", "support-desk", "jira", ("jira_issues", "jira_projects"), 30_000)
CRM = PolledConnector("shop", "support.desk", "salesforce", ("sf_accounts",), 3_600_000)


@pytest.fixture
def definitions(tmp_path):
    return make_definitions(load({"data_dir": tmp_path}), SchemaSnapshot(connectors=(DESK, CRM)))


def test_every_table_is_an_asset_before_the_log_and_a_connector_is_a_step(definitions):
    graph = definitions.resolve_asset_graph()
    keys = {f"ingest/shop/{each.name}/{table}" for each in (DESK, CRM) for table in each.tables}
    parents = {key.to_user_string() for key in graph.get(dg.AssetKey(["staging", "log"])).parent_keys}
    assert keys <= parents
    for key in keys:
        node = graph.get(dg.AssetKey(key.split("/")))
        assert isinstance(node.partitions_def, dg.DailyPartitionsDefinition)
        assert node.backfill_policy == dg.BackfillPolicy.single_run()
        assert node.freshness_policy is not None
        assert node.description.endswith(".")
        assert node.owners
    steps = definitions.resolve_job_def("poll").nodes
    assert len({step.name for step in steps}) == len({step.definition.pool for step in steps}) == 2


def test_an_erasure_excludes_polls_and_removes_landed_rows(definitions):
    erasure = definitions.resolve_asset_graph().get(dg.AssetKey("erasure"))
    polls = {node.definition.pool for node in definitions.resolve_job_def("poll").nodes}
    assert {*polls, "lakesync_landing", "lakesync_known"} <= erasure.pools
    after = {
        step.name: {each.node for given in inputs.values() for each in given.get_node_dependencies()}
        for step, inputs in erasure.assets_def.node_def.dependencies.items()
    }
    polled = {f"erase__ingest__{pool}" for pool in polls}
    past = {"erase__ingest__landing", "erase__ingest__known"}
    assert {name for name in after if name.startswith("erase__ingest__")} == polled | past
    assert [after[name] for name in past] == [polled, polled]
    assert polled | past < after["erase__report"]


def test_a_connector_is_due_when_its_interval_has_passed_since_its_last_poll():
    now = 1_772_366_400_000
    config, snapshot = load(), SchemaSnapshot(connectors=(DESK,))

    def due(marks, now_ms):
        return compare_marks((), (), (), timed_parts(config, snapshot, marks, now_ms), now_ms)

    assert due({}, now) == [Lag("poll", "support-desk", "shop", 0, 0, now)]
    marks = {"ingest/shop/support-desk": str(now)}
    assert due(marks, now + 29_999) == []
    assert due(marks, now + 30_000) == [Lag("poll", "support-desk", "shop", now, 0, now + 30_000)]
    assert due({"ingest/shop/another": str(now)}, now)
    assert due(marks, now - 3_600_000), "the clock was set back"


def test_an_interrupted_poll_is_requested_again_and_never_concurrently(tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "FIRST_PAUSE_SECONDS", 3600)
    config = load({"data_dir": tmp_path})
    engine = Engine(open_store("memory://", wall_clock), wall_clock)
    engine.open()
    snapshot = SchemaSnapshot(connectors=(DESK,))
    days, shared = day_partitions("2026-01-01"), PipelineLags(config, snapshot)
    sensor = poll_sensor(config, snapshot, days, lambda: nullcontext(engine.store), shared)
    with dagster_instance() as instance:

        def tick(cursor):
            with dg.build_sensor_context(instance, cursor=cursor) as context:
                return sensor(context)

        first = tick(None)
        (request,) = first.run_requests
        assert "was requested once" in tick(first.cursor).skip_message
        monkeypatch.setattr(attempts, "FIRST_PAUSE_SECONDS", 0)
        run = instance.create_run_for_job(_job(), tags=request.tags, status=dg.DagsterRunStatus.STARTED)
        assert isinstance(tick(first.cursor), dg.SkipReason)
        instance.report_run_canceled(run)
        assert tick(first.cursor).run_requests
        engine.store.put_mark("ingest/shop/support-desk", str(wall_clock()))
        assert isinstance(tick(first.cursor), dg.SkipReason)
    engine.close()


def test_a_table_that_fails_is_reported_until_it_succeeds_and_a_connector_of_failing_tables_as_one(tmp_path):
    config, snapshot = load({"data_dir": tmp_path}), SchemaSnapshot(connectors=(DESK, CRM))
    engine = Engine(open_store("memory://", wall_clock), wall_clock)
    engine.open()
    now = wall_clock()

    def reported():
        with dagster_instance() as instance:
            PipelineLags(config, snapshot).read(engine.store, lambda: instance)
        report = report_in(engine.store.marks())
        return [(lag.key, lag.since_ms, report.requests.get(lag.key)) for lag in report.lags]

    issues, projects = DESK.tables
    record_poll(engine.store, CRM, dict.fromkeys(CRM.tables, True), now, now)
    record_poll(engine.store, DESK, {issues: True, projects: False}, now, now)
    assert reported() == [(f"poll/support-desk/{projects}/shop", now, 1)]
    for number in (2, 3):
        record_poll(engine.store, DESK, {projects: False}, now + number, now + number)
        assert reported() == [(f"poll/support-desk/{projects}/shop", now, number)]
    record_poll(engine.store, DESK, {issues: False}, now + 4, now + 4)
    assert reported() == [("poll/support-desk/shop", now, 3)]
    record_poll(engine.store, DESK, {issues: True, projects: True}, now + 5, now + 5)
    assert reported() == []
    engine.close()


class Polls:
    """The poll sensor with a manual clock; each poll that it requests ends immediately."""

    def __init__(self, folder, instance, monkeypatch):
        self.config, snapshot = load({"data_dir": folder}), SchemaSnapshot(connectors=(DESK, CRM))
        self.engine, self.instance = Engine(open_store("memory://", wall_clock), wall_clock), instance
        self.engine.open()
        self.lags = PipelineLags(self.config, snapshot)
        days = day_partitions("2026-01-01")
        self.sensor = poll_sensor(self.config, snapshot, days, lambda: nullcontext(self.engine.store), self.lags)
        self.begun, self.seconds, self.cursor = wall_clock() // 1000, 0, None
        own = SimpleNamespace(time=self.now, time_ns=lambda: self.now() * 1_000_000_000)
        monkeypatch.setattr(attempts, "time", own)
        monkeypatch.setattr(hlc, "time", own)

    def now(self):
        return self.begun + self.seconds

    def until(self, seconds, failing=(), takes=0):
        """The times at which each table is polled, with a tick every five seconds.

        Args:
            seconds: the end of the ticks.
            failing: the tables that fail.
            takes: the seconds that a poll of these takes.
        """
        found = {table: [] for table in (*DESK.tables, *CRM.tables)}
        while self.seconds < seconds:
            with dg.build_sensor_context(self.instance, cursor=self.cursor) as context:
                result = self.sensor(context)
            if isinstance(result, dg.SensorResult):
                self.cursor = result.cursor
                for request in result.run_requests:
                    each = DESK if request.tags["lakesync/connector"] == "shop/support-desk" else CRM
                    succeeded = {key.path[-1]: key.path[-1] not in failing for key in request.asset_selection}
                    for table in succeeded:
                        found[table].append(self.seconds)
                    begun_ms, bad = self.now() * 1000, not all(succeeded.values())
                    self.seconds += takes if bad else 0
                    record_poll(self.engine.store, each, succeeded, begun_ms, self.now() * 1000)
            self.seconds += 5
        return found

    def reported(self):
        """For each failing part, its consecutive failed polls and the time of the next one, in seconds."""
        self.lags.read(self.engine.store, lambda: self.instance, read_again=True)
        report = report_in(self.engine.store.marks())
        return {key: (count, report.retries[key] / 1000 - self.begun) for key, count in report.requests.items()}


@pytest.fixture
def polls(tmp_path, monkeypatch):
    with dagster_instance() as instance:
        made = Polls(tmp_path, instance, monkeypatch)
        yield made
        made.engine.close()


def test_a_connector_all_of_whose_tables_fail_is_retried_after_growing_pauses(polls):
    issues, projects = DESK.tables
    found = polls.until(200, failing=DESK.tables)
    assert found[issues] == found[projects] == [0, 5, 15, 35, 75, 115, 155, 195]
    assert found[CRM.tables[0]] == [0]
    assert polls.reported() == {"poll/support-desk/shop": (8, 235)}
    assert polls.until(300)[issues] == [235, 265, 295]
    assert polls.reported() == {}


def test_a_failing_table_has_its_own_backoff_and_the_others_are_polled_at_their_interval(polls):
    issues, projects = DESK.tables
    found = polls.until(120, failing=[projects])
    assert found == {issues: [0, 30, 60, 90], projects: [0, 5, 15, 35, 75, 115], CRM.tables[0]: [0]}
    assert polls.reported() == {f"poll/support-desk/{projects}/shop": (6, 155)}
    found = polls.until(250)
    assert found[issues] == [120, 150, 180, 210, 240]
    assert found[projects] == [155, 180, 210, 240], "from then on together with the others"
    assert polls.reported() == {}


def test_a_table_with_hanging_polls_leaves_half_of_the_time_to_the_others(polls):
    issues, projects = DESK.tables
    found = polls.until(480, failing=[projects], takes=120)
    assert found[projects] == [0, 240]
    assert found[issues] == [0, 125, 155, 185, 215, 365, 395, 425, 455]


@pytest.mark.parametrize(
    ("cursor", "moment"),
    [
        ({"updated": 1_767_261_600_000}, 1_767_261_600.0),
        ({"modified": 1_767_261_600_000, "job": "j"}, 1_767_261_600.0),
        ({"at": "2026-01-01T10:00:00Z", "settled": None}, 1_767_261_600.0),
        ({"at": "2026-01-01T10:00:00"}, 1_767_261_600.0),
        ({"at": 41}, None),
        ({"at": "abc"}, None),
        (None, None),
    ],
)
def test_the_metadata_of_a_poll_has_all_figures_of_a_table(cursor, moment):
    given = DeliveryReport(inserted=3, updated=2, deleted=1, pushes=2, waited_s=1.234)
    read = TableReport("t", pages=4, rows=9, cursor=cursor, census_taken=True)
    report = PollReport([read], Usage(7, 93, 100), 2.5)
    table = TablePoll("t", read, given)
    found = table_metadata(table, ConnectorPoll([table], report))
    plain = {name: value for name, value in found.items() if not name.startswith("cursor")}
    assert plain == {
        "inserted": 3,
        "updated": 2,
        "deleted": 1,
        "pushes": 2,
        "waited_s": 1.23,
        "pages": 4,
        "rows": 9,
        "unchanged": 4,
        "counted": True,
        "calls": 7,
        "seconds": 2.5,
        "budget_left": 93,
    }
    assert (found["cursor"].value if "cursor" in found else None) == moment
    assert ("cursor_json" in found) == (cursor is not None)


def _job():
    @dg.job
    def nothing():
        pass

    return nothing


def test_a_registered_connector_is_identified_by_its_settings():
    types = Connectors(Secrets(references=["env:CONNECTOR_*"]))
    engine = Engine(open_store("memory://", wall_clock), wall_clock, connectors=types)
    engine.open()
    jira = {"domain": "acme", "email": "a@acme.example", "apiToken": "env:CONNECTOR_UNSET", "includeComments": False}
    tables = [{"table": "orders", "query": "SELECT 1", "strategy": {"type": "diff"}}]
    bodies = [
        {"name": "desk", "type": "jira", "jira": jira, "ingest": {}},
        {"name": "idle", "type": "jira", "jira": jira},
        {
            "name": "db",
            "type": "postgres",
            "postgres": {"connectionString": "env:CONNECTOR_UNSET"},
            "ingest": {"tables": tables, "intervalMs": 60_000},
        },
    ]
    for body in bodies:
        engine.gateway("shop").register_connector(body)
    assert registered(engine.store).connectors == (
        PolledConnector("shop", "db", "postgres", ("orders",), 60_000),
        PolledConnector("shop", "desk", "jira", ("jira_issues", "jira_projects"), 10_000),
    )
    engine.close()
