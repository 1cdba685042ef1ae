"""Connectors polled by Dagster's job from local servers, through the lake's landing, into a real gateway."""

import random
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lakehouse.landing import delivery, lake_landing
from lakehouse.landing.polls import replay_connector
from lakesync.engine import EngineLimits
from lakesync.engine.gateway import SyncGateway
from lakesync.model.types import SyncPull
from lakesync.testing.servers import Response
from lakesync.testing.servers.jira.site import error_body
from sensors import backoff, lags
from tests.dagster_instance import dagster_instance
from tests.integration.connectors.jira_support import Moving, desk, document
from tests.integration.connectors.salesforce_support import ACCOUNTS_ALONE, company
from tests.integration.dagster.poll_support import NUMBERS, House, connection, metadata_of, reason
from tests.lake_support import fill

pytestmark = pytest.mark.timeout(900)  # Spark's first queries take a minute on a busy machine


@contextmanager
def flushing(store, gateway):
    """Flush for a gateway that rejects pushes by backpressure, until the `with` block ends."""
    stop = threading.Event()
    thread = threading.Thread(target=clear, args=(store, gateway, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def clear(store, gateway, stop):
    """Trims the log on request."""
    while not stop.wait(0.05):
        asked = [each for each in store.backlog() if each.gateway == gateway and each.flush_requested_ms is not None]
        batch = store.plan(gateway, "main", 1_000_000) if asked else None
        if batch is not None:
            waiting = [
                (day.count - day.flushed_count, day.id_sum - day.flushed_id_sum) for day in store.ledger(gateway)
            ]
            store.confirm(batch.batch_id, batch.deltas, sum(total for _, total in waiting) % 2**64)
            store.trim(gateway, "main")


@pytest.fixture
def house(serve, spark_server, request):
    limits = EngineLimits(max_backpressure_bytes=getattr(request, "param", 1 << 30), retry_after=0.1)
    with (
        dagster_instance() as instance,
        closing(House(serve(limits), spark_server["config"], instance, f"polls_{next(NUMBERS)}")) as house,
    ):
        yield house


@pytest.mark.parametrize("house", [4_000], indirect=True)
def test_a_load_of_ten_times_the_backlog_limit_completes_and_its_repeat_changes_nothing(house):
    with desk() as made, flushing(house.engine.store, house.gateway.gateway_id):
        made.site.add_project("SUP")
        issues = [made.site.add_issue("SUP", f"title {number} {number * 7919 % 1009}") for number in range(300)]
        made.clock.advance(200_000)
        house.register(made.config(includeComments=False, includeProjects=False), chunkSize=20)
        first = house.run("desk")
        assert first.success
        (of_first,) = metadata_of(first).values()
        assert of_first["waited_s"] > 0
        assert (of_first["inserted"], of_first["rows"]) == (300, 300)
        assert abs(of_first["cursor"] * 1000 - made.clock()) < 400_000
        assert of_first["calls"] == len(made.served.calls)
        assert house.rows("jira_issues")["SUP-4"]["summary"] == issues[3].fields["summary"]
        assert "jira_issues" in house.gateway.config().schemas

        taken = house.logged()
        made.site.edit(issues[7], summary="another")
        (again,) = metadata_of(house.run("desk")).values()
        assert (again["inserted"], again["updated"], again["deleted"]) == (0, 1, 0)
        assert again["unchanged"] == again["rows"] - 1
        assert house.logged() == taken + 1
        assert house.rows("jira_issues")["SUP-8"]["summary"] == "another"

        calls = len(made.served.calls)
        replayed = house.run("desk", by_sensor=False)
        assert replayed.success
        (of_replay,) = metadata_of(replayed).values()
        assert (of_replay["inserted"], of_replay["updated"]) == (300, 1)
        assert len(made.served.calls) == calls, "a replay does not call the source"
        assert house.logged() == taken + 1


def test_a_poll_of_120_issues_is_read_landed_and_compared_by_tasks_of_spark(house):
    with desk() as made:
        made.site.add_project("SUP")
        for number in range(120):
            made.site.add_issue("SUP", f"title {number}")
        made.clock.advance(200_000)
        house.register(made.config(includeComments=False, includeProjects=False))
        house.poll("desk")  # makes the tables
        made.site.add_project("OPS")
        for number in range(120):
            made.site.add_issue("OPS", f"title {number}")
        made.clock.advance(200_000)
        spark, names = house.given.pyspark.spark_session, house.given.lake.names
        house.given.pyspark.start_measuring()
        before = len(made.served.calls)
        done = house.poll("desk")
        assert done.report.usage.calls == len(made.served.calls) - before, "tasks read each page once"
        work = house.given.pyspark.job_figures()
        assert [table.delivered.inserted for table in done.tables] == [120]
        assert (work.failed_tasks, work.is_complete) == (0, True)
        assert work.rows_written > 120, "one landing, with the position for the next poll"
        assert work.rows_read >= work.rows_written, "the tasks land the rows that they fetched"
        assert 3 <= len(work.jobs) <= 4, "one task that reads, one that lands, one that compares"
        snapshots = spark.table(f"{names.landing}.snapshots").collect()
        assert len(snapshots) == 2
        assert {each["summary"]["engine-name"] for each in snapshots} == {"spark"}
        assert all('"landing"' in each["summary"]["lakesync.batch"] for each in snapshots)


def test_a_long_poll_lands_in_parts_within_its_budget_of_requests(house):
    with desk() as made:
        made.site.add_project("SUP")
        for number in range(450):
            made.site.add_issue("SUP", f"title {number}")
            made.clock.advance(1_000)
        made.clock.advance(200_000)
        config = made.config(includeComments=False, includeProjects=False)
        house.register(config, memoryBudgetBytes=10_000)
        (whole,) = house.poll("desk").tables
        assert (whole.error, whole.delivered.inserted) == (None, 450)
        assert whole.read.landings > 1

        house.register(replace(config, name="slow"), maxCalls=2)
        first, second = house.poll("slow"), house.poll("slow")
        assert [poll.errors for poll in (first, second)] == [[], []]
        assert [poll.report.usage.calls for poll in (first, second)] == [2, 2]
        inserted = [poll.tables[0].delivered.inserted for poll in (first, second)]
        assert 0 < inserted[0] < sum(inserted) < 450


def test_b1_rows_that_were_not_flushed_when_the_store_was_lost_are_pushed_to_the_rebuilt_one(
    house, serve, spark_server
):
    with desk() as made:
        made.site.add_project("SUP")
        first = made.site.add_issue("SUP", "first")
        made.site.add_issue("SUP", "second")
        made.clock.advance(200_000)
        house.register(made.config(includeComments=False, includeProjects=False))
        house.poll("desk")
        flushed = house.gateway.handle_pull(SyncPull("reader", 0, 100))
        context = connection(house.config, house.given)
        fill(context.spark, context.names, [(flushed.server_hlc, flushed.deltas)], house.gateway.gateway_id)
        made.site.edit(first, summary="edited")
        made.site.add_issue("SUP", "third")
        made.clock.advance(200_000)
        house.poll("desk")
        summaries = {"SUP-1": "edited", "SUP-2": "second", "SUP-3": "third"}
        assert {row: cells["summary"] for row, cells in house.rows("jira_issues").items()} == summaries

        name = house.gateway.gateway_id
        with closing(House(serve(), spark_server["config"], house.instance, name)) as rebuilt:
            rebuilt.register(made.config(includeComments=False, includeProjects=False))
            rebuilt.poll("desk")
            assert {row: cells["summary"] for row, cells in rebuilt.rows("jira_issues").items()} == {
                "SUP-1": "edited",
                "SUP-3": "third",
            }, "the rebuild restores what was flushed"
            (again,) = rebuilt.poll("desk").tables
            assert again.delivered.pushes == 0


def test_a_failing_poll_shows_its_error_and_does_not_stop_the_others(house):
    with desk() as made, company() as firm:
        made.site.add_project("SUP")
        made.site.add_issue("SUP", "one")
        made.clock.advance(200_000)
        firm.org.add("Account", Name="Acme")
        house.register(made.config(apiToken="wrong"))
        house.register(firm.config(**ACCOUNTS_ALONE))
        refused = house.run("desk")
        assert not refused.success
        assert "AUTH_ERROR: Jira rejects this account" in reason(refused)
        fine = house.run("crm")
        assert fine.success
        assert metadata_of(fine)["sf_accounts"]["inserted"] == 1
        (account,) = house.rows("sf_accounts")
        house.edit("sf_accounts", account, phone="2")
        house.run("crm")
        assert house.rows("sf_accounts")[account]["phone"] == "2", (
            "a row that did not change at the source can be edited by clients"
        )

        house.gateway.unregister_connector("desk")
        house.register(made.config())
        still = made.api.respond
        made.api.respond = lambda request: (
            still(request) if "comment" not in request.path else Response(403, error_body("no comments for you"))
        )
        half = house.run("desk")
        assert not half.success
        assert set(metadata_of(half)) == {"jira_issues", "jira_projects"}
        assert "FORBIDDEN" in reason(half)
        assert set(house.rows("jira_issues")) == {"SUP-1"}


def test_a_table_with_other_types_than_its_schema_is_polled_after_the_schema_is_retired(house):
    with desk() as made:
        made.site.add_project("SUP")
        made.site.add_issue("SUP", "title")
        made.clock.advance(200_000)
        house.register(made.config(includeComments=False, includeProjects=False))
        house.gateway.register_schema({"table": "jira_issues", "columns": [{"name": "summary", "type": "number"}]})
        (failed,) = house.poll("desk").errors
        assert failed.code == "SCHEMA_ERROR"
        assert "run `lakesync schema retire jira_issues`" in str(failed)
        house.gateway.retire_schema("jira_issues")
        assert house.poll("desk").errors == []
        assert house.rows("jira_issues")["SUP-1"]["summary"] == "title"


def test_b11_a_failing_connector_does_not_stop_the_others(house):
    with desk() as made, company() as firm:
        made.site.add_project("SUP")
        made.clock.advance(200_000)
        good = {
            "desk": lambda **settings: made.config(includeComments=False, **settings),
            "crm": lambda **settings: firm.config(**ACCOUNTS_ALONE, **settings),
        }
        wrong = {"desk": {"apiToken": "wrong"}, "crm": {"clientSecret": "wrong"}}
        for number, poisoned in enumerate(good):
            made.site.add_issue("SUP", f"issue {number}")
            made.clock.advance(200_000)
            firm.org.add("Account", Name=f"Acme {number}")
            for name, config in good.items():
                house.register(config(**(wrong[name] if name == poisoned else {})))
            runs = {name: house.run(name) for name in good}
            assert {name: run.success for name, run in runs.items()} == {name: name != poisoned for name in good}
            for name in good:
                house.gateway.unregister_connector(name)
        assert len(house.rows("jira_issues")) == 2
        assert len(house.rows("sf_accounts")) == 1


def test_b11_a_failing_table_of_a_connector_is_reported_and_paused_while_the_others_are_polled(house, monkeypatch):
    good, comments = {"jira_issues": True, "jira_projects": True}, "jira_comments"
    named = f"poll/desk/{comments}/{house.gateway.gateway_id}"
    monkeypatch.setattr(lags, "QUEUED_SECONDS", 3_600)  # a connector with a longer poll is reported as late
    with desk() as made:

        def add_issue():
            made.site.add_comment(made.site.add_issue("SUP", "an issue"), document("a comment"))
            made.clock.advance(200_000)

        made.site.add_project("SUP")
        add_issue()
        house.register(made.config(), intervalMs=1)
        made.api.forbidden = {"/rest/api/3/issue/[^/]+/comment"}
        with monkeypatch.context() as patched:  # a pause that is long enough on any machine
            patched.setattr(backoff, "FIRST_PAUSE_SECONDS", 3_600)
            patched.setattr(backoff, "LONGEST_EARLY_PAUSE_SECONDS", 3_600)
            assert house.tick() == {**good, comments: False}
            assert house.behind() == {named}
            add_issue()
            assert house.tick() == good
            assert house.rows("jira_issues").keys() == {"SUP-1", "SUP-2"}
            assert house.behind() == {named}
        made.api.forbidden.clear()
        ends = time.monotonic() + 300
        while comments not in (polled := house.tick()):
            assert time.monotonic() < ends, "the table is polled again after its pause"
        assert polled[comments]
        assert len(house.rows(comments)) == 2
        assert house.behind() == set()


class Killed(BaseException):
    """Simulates the end of the process."""


def dying(chance):
    """Kills the process at random."""

    def maybe(*_):
        if chance() < 0.15:
            raise Killed

    return maybe


def folded(deltas):
    """The rows that result from deltas, by table; each delta must change something, and of an existing row."""
    rows = {}
    for delta in sorted(deltas, key=lambda each: each.hlc):
        of_table, cells = rows.setdefault(delta.table, {}), {cell.column: cell.decoded() for cell in delta.columns}
        if delta.op == "DELETE":
            del of_table[delta.row_id]
        elif delta.op == "INSERT":
            assert delta.row_id not in of_table
            of_table[delta.row_id] = cells
        else:
            before = of_table[delta.row_id]
            assert all(before[column] != value for column, value in cells.items()), "an unchanged row makes no delta"
            of_table[delta.row_id] = before | cells
    return rows


DEEP = [pytest.param(seed, 6, marks=pytest.mark.deep) for seed in range(8)]


@pytest.mark.parametrize(("seed", "polls"), [(3, 3), *DEEP])
def test_a8_a_client_equals_a_site_that_changed_during_failing_and_killed_polls(house, monkeypatch, seed, polls):
    chance, pushed = random.Random(seed), {}
    submit = SyncGateway.submit_push

    def noted(self, receive):
        def receive_and_note():
            received = receive()
            pushed.update({delta.delta_id: delta for delta in received.push.deltas})
            return received

        return submit(self, receive_and_note)

    monkeypatch.setattr(SyncGateway, "submit_push", noted)
    with desk() as made:
        moving = Moving(made, chance, changes=25)
        little = {"chunkSize": 5, "memoryBudgetBytes": 20_000, "deletedShare": 1}
        config = made.config(includeProjects=False)
        house.register(config, **little)
        with monkeypatch.context() as patch:
            ends = dying(chance.random)
            patch.setattr(delivery, "crash_point", ends)
            patch.setattr(lake_landing, "crash_point", ends)
            died = done = 0
            while done < polls or not died:
                done += 1
                try:
                    house.poll("desk")
                except Killed:
                    died += 1
        moving.rest()
        house.gateway.unregister_connector("desk")
        house.register(config, **little, censusIntervalMs=1)
        changed, left = True, 3  # a census has just read everything, so the next one finds nothing new
        while changed and left:
            settled, left = house.poll("desk"), left - 1
            assert settled.errors == []
            changed = any(table.delivered.deltas for table in settled.tables)
        assert not changed, "a poll without changes makes no delta"

        issues, comments = made.expected()
        assert {row: cells["summary"] for row, cells in house.rows("jira_issues").items()} == issues
        assert {row: cells["body"] for row, cells in house.rows("jira_comments").items()} == comments
        assert house.logged() == len(pushed), "no delta is sent twice"
        ended = folded(pushed.values())
        assert {table: rows.keys() for table, rows in ended.items()} == {
            "jira_issues": issues.keys(),
            "jira_comments": comments.keys(),
        }
        deleted = {(delta.table, delta.row_id) for delta in pushed.values() if delta.op == "DELETE"}
        assert deleted.isdisjoint((table, row) for table, rows in ended.items() for row in rows), (
            "keys and comment ids are never reused: an existing one was never absent"
        )
        if polls > 3:
            days = [datetime.now(UTC).date() - timedelta(days=back) for back in (1, 0)]
            again = replay_connector(connection(house.config, house.given), house.gateway.gateway_id, "desk", days)
            delivered = sum(table.delivered.deltas for table in again.tables)
            assert (delivered, house.logged()) == (len(pushed), len(pushed)), "the lake has the same deltas"
