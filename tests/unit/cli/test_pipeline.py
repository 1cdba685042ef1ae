"""The queries that commands send to Dagster are valid for the installed Dagster."""

from __future__ import annotations

import re
from unittest.mock import Mock

import dagster as dg
import pytest
from dagster_graphql.schema import create_schema
from graphql import parse, validate

from lakesync import config
from lakesync.cli import dagster_client, output, pipeline_health
from lakesync.cli.commands import ConnectionOptions
from lakesync.cli.remote import status


@pytest.fixture(scope="module")
def schema():
    return create_schema().graphql_schema


def test_the_queries_fit_the_installed_dagster(schema):
    assert validate(schema, parse(dagster_client.REQUESTS)) == []


def test_the_final_states_of_a_backfill_exist_in_dagster(schema):
    known = set(schema.type_map["BulkActionStatus"].values)
    assert known >= dagster_client.FINISHED >= dagster_client.SUCCEEDED


def test_a_backfill_without_dagster_explains_how_to_configure_it(run):
    result = run("backfill", "tables/todos", "--from", "2026-11-01")
    assert result.exit_code == 2
    assert "--dagster-url" in result.stderr
    gone = run("backfill", "--dagster-url", "http://127.0.0.1:1")
    assert gone.exit_code == 3
    assert "start Dagster with" in gone.stderr


def test_a_number_has_its_noun_in_singular_or_plural():
    assert [output.count(number, "row") for number in (0, 1, 2_000)] == ["0 rows", "1 row", "2,000 rows"]
    assert [output.count(number, "push", "pushes") for number in (1, 2)] == ["1 push", "2 pushes"]


def test_a_flush_pauses_between_requests_that_are_answered_immediately(run, monkeypatch):
    remote = Mock()
    remote.post.return_value = {"flushed": False}
    shard = {"shard": "main", "lastSeq": 2, "flushedSeq": 1, "lastArrivalHlc": "9"}
    remote.get.return_value = {"shards": [shard], "checkpoint": None, "pipeline": None}
    monkeypatch.setattr(ConnectionOptions, "connect", lambda _: remote)
    assert run("flush", "--wait", "0.6").exit_code == 1
    assert remote.post.call_count == 1
    assert 1 <= remote.get.call_count <= 4


@pytest.fixture
def daily(monkeypatch):
    """A Dagster with two daily assets of different days; the first backfill is running, the others have ended."""
    launched = []

    def backfill(_, assets, *__, **___):
        launched.append(assets)
        return str(len(launched))

    def backfill_status(_, backfill_id):
        return {"status": "REQUESTED" if backfill_id == "1" else "COMPLETED_SUCCESS", "runs": []}

    def partitions(_, asset):
        return [dagster_client.Partition(f"2026-11-0{asset[-1]}", f"2026-11-0{asset[-1]}", ())]

    client = dagster_client.DagsterClient
    monkeypatch.setattr(client, "assets", lambda _: {name: {"isPartitioned": True} for name in ("a1", "a2")})
    monkeypatch.setattr(client, "partitions", partitions)
    monkeypatch.setattr(client, "backfill", backfill)
    monkeypatch.setattr(client, "backfill_status", backfill_status)
    monkeypatch.setattr(client, "materialisations", lambda *_: {})
    return launched


def test_the_status_of_a_backfill_is_queried_even_if_an_earlier_one_used_up_the_time(run, daily):
    result = run("backfill", "--dagster-url", "http://dagster", "a1", "a2", "--from", "2026-11-01", "--wait", "0.01")
    assert result.exit_code == 1
    assert result.stderr.count("has not ended") == 1
    assert "COMPLETED_SUCCESS" in result.stdout


def test_an_asset_that_is_named_twice_runs_once(run, daily):
    run("backfill", "--dagster-url", "http://dagster", "a1", "a1", "--from", "2026-11-01")
    assert daily == [["a1"]]


RESTART = "start `lakesync up`, or restart it if it has been running for a minute"
BEHIND = "several were requested, and these parts are still behind"
RUNS = "the page Runs of Dagster has their errors"


def part(requests=0, kind="table", name="planes"):
    return {"part": kind, "name": name, "deltas": 3, "sinceMs": 0, "requests": requests}


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (None, []),
        ({"reportedMs": 99_000, "behind": [part(2)], "queued": []}, []),
        (
            {"reportedMs": 99_000, "behind": [part(3), part(4, "checkpoint", "")], "queued": []},
            [f"runs fail: {BEHIND}: table planes (3 runs), checkpoint (4 runs); {RUNS}"],
        ),
        (
            {"reportedMs": 99_000, "behind": [part(3, "poll", "desk")], "queued": []},
            [f"runs fail: {BEHIND}: poll desk (3 runs); see `lakesync connectors test desk`"],
        ),
        (
            {"reportedMs": 99_000, "behind": [], "queued": [{"runId": "r1", "job": "flush", "sinceMs": 60_000}]},
            ["a run of flush was requested 40.0 s ago and has not started (r1)"],
        ),
        (
            {"reportedMs": 99_000, "behind": [], "queued": [{"runId": "r1", "job": "__ASSET_JOB", "sinceMs": 60_000}]},
            ["a run of assets was requested 40.0 s ago and has not started (r1)"],
        ),
        (
            {"reportedMs": 0, "behind": [], "queued": []},
            [f"the pipeline last reported 100.0 s ago: {RESTART}"],
        ),
    ],
)
def test_problems_of_the_pipeline_are_described(report, words):
    assert pipeline_health.problems(report, 100_000) == words


@pytest.mark.parametrize(
    ("lag", "words"),
    [
        (part(), "table planes by 3 deltas, for 100.0 s"),
        ({**part(1), "retryMs": 105_000}, "table planes by 3 deltas, for 100.0 s"),
        (
            {**part(4, "poll", "desk"), "deltas": 0, "retryMs": 140_000},
            "poll desk, for 100.0 s, 4 runs, the next in 40.0 s",
        ),
        ({**part(4), "retryMs": None}, "table planes by 3 deltas, for 100.0 s"),
        ({**part(4), "retryMs": 99_000}, "table planes by 3 deltas, for 100.0 s"),
    ],
)
def test_a_part_that_is_behind_is_described_with_its_next_run(lag, words):
    assert pipeline_health.lag_text(lag, 100_000) == words


def test_parts_that_are_equally_far_behind_are_one_text():
    behind = [part(name=f"t{number}") for number in range(5)] + [part(kind="checkpoint", name=""), part(2, name="late")]
    assert pipeline_health.lag_texts(behind, 100_000) == [
        "table t0, t1, t2 and 2 more by 3 deltas, for 100.0 s",
        "checkpoint by 3 deltas, for 100.0 s",
        "table late by 3 deltas, for 100.0 s",
    ]


@pytest.mark.parametrize(
    ("first", "last", "wanted", "chosen"),
    [
        ("2026-01-31", "2026-01-31", (), {"2026-01-31|orders", "2026-01-31|users"}),
        ("2026-01-30", None, ("orders",), {"2026-01-30|orders", "2026-01-31|orders"}),
        (None, None, ("2026-01-30|users",), {"2026-01-30|users"}),
        ("2026-02-01", None, (), set()),
    ],
)
def test_partitions_of_a_day_and_a_table_are_chosen_by_both(first, last, wanted, chosen):
    days = dg.DailyPartitionsDefinition("2026-01-30", end_date="2026-02-01")
    tables = dg.StaticPartitionsDefinition(["orders", "users"])
    keys = dg.MultiPartitionsDefinition({"table": tables, "day": days}).get_partition_keys()
    dimensions = [{"name": "table", "type": "STATIC"}, {"name": "day", "type": "TIME_WINDOW"}]
    found = dagster_client.partitions_of(map(str, keys), dimensions)
    assert {each.key for each in found if each.matches(first, last, wanted)} == chosen


def test_status_names_the_error_of_the_last_run_that_has_ended(monkeypatch, capsys):
    times = {"creationTime": 1.0, "startTime": 2.0, "endTime": 3.0}
    runs = [{"runId": "1", "jobName": "flush", "status": "STARTED", "failedRunId": "0", **times}]
    runs += [{"runId": "2", "jobName": "__ASSET_JOB", "status": "SUCCESS", "failedRunId": None, **times}]
    monkeypatch.setattr(dagster_client.DagsterClient, "last_runs", lambda _client: runs)
    monkeypatch.setattr(dagster_client.DagsterClient, "error_of", lambda _client, run_id: f"no java in run {run_id}")
    monkeypatch.setattr(dagster_client.DagsterClient, "switched_off", lambda _client: ["flush_sensor"])
    monkeypatch.setattr(status, "_fields", lambda _summary: ())
    state = status._dagster_state(config.load().replace(dagster={"url": "http://localhost:1"}))
    found = state["runs"]
    assert state["switchedOff"] == ["flush_sensor"]
    assert [each["error"] for each in found] == ["no java in run 0", None]
    status._print_summary({"runs": found, "tables": [], "clients": []})
    printed = capsys.readouterr().out
    assert re.search(r"^flush:? +no java in run 0$", printed, re.MULTILINE)
    assert re.search(r"^assets +success ", printed, re.MULTILINE)
