"""Failed runs and changed asset checks are sent as signed alerts, and again until the receiver accepts them."""

import hashlib
import hmac
import http.server
import json
import threading
import traceback
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
import sqlalchemy
from pydantic import SecretStr
from structlog.testing import CapturingLogger

from assets.names import CONNECTOR
from lakesync.connectors.webhook import SIGNATURE, TIMESTAMP
from sensors.alerts import AlertError, Alerts, RunRecovered, check_failure_sensor, run_failure_sensor
from tests.dagster_instance import dagster_instance

SECRET = "a secret that receiver and sender share"
RECOVERED = RunRecovered("r", "flush", [])


DRY = {"lake"}
"""Names for which an op fails."""


@dg.op
def breaks():
    if DRY:
        raise ValueError(f"the {' and the '.join(sorted(DRY))} is dry")


@dg.job(tags={"team": "lakes"})
def broken():
    breaks()


class Receiver(http.server.BaseHTTPRequestHandler):
    server: Any

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        stamped = f"{self.headers[TIMESTAMP]}.".encode() + body
        digest = hmac.new(SECRET.encode(), stamped, hashlib.sha256).hexdigest()
        self.server.requests += 1
        if self.server.takes:
            assert self.headers[SIGNATURE] == f"sha256={digest}"
            self.server.alerts.append(json.loads(body))
        self.send_response(204 if self.server.takes else self.server.status)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def do_GET(self):
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def receiver():
    server: Any = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    server.alerts, server.takes, server.status, server.requests = [], True, 500, 0
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def alerts(receiver):
    webhook = SecretStr(f"http://127.0.0.1:{receiver.server_port}/hook")
    return Alerts(webhook, SecretStr(SECRET), "http://dagster.test/")


@pytest.fixture
def instance():
    with dagster_instance() as instance:
        yield instance


def tick(sensor, instance, cursor=None, **more):
    """Run one tick; return the cursor afterwards."""
    with dg.build_sensor_context(instance, cursor=cursor, **more) as context:
        sensor(context)
        return context.cursor


def test_a_failed_run_is_reported_once_and_delivery_is_retried(receiver, alerts, instance):
    sensor = run_failure_sensor(alerts)
    start = tick(sensor, instance)
    run = broken.execute_in_process(instance=instance, raise_on_error=False)
    receiver.takes = False
    with pytest.raises(AlertError, match=r"did not accept an alert \(500\)"):
        tick(sensor, instance, start)
    receiver.takes = True
    cursor = tick(sensor, instance, start)
    (alert,) = receiver.alerts
    assert (alert["kind"], alert["run_id"], alert["job"]) == ("run_failed", run.run_id, "broken")
    assert alert["tags"]["team"] == "lakes"
    assert "the lake is dry" in alert["steps"]["breaks"]
    assert alert["url"] == f"http://dagster.test/runs/{run.run_id}"
    assert tick(sensor, instance, cursor) == cursor
    assert len(receiver.alerts) == 1


def test_b5_a_run_that_fails_after_the_clock_was_set_back_is_reported(receiver, alerts, instance):
    sensor = run_failure_sensor(alerts)
    broken.execute_in_process(instance=instance, raise_on_error=False, tags={"of": "the future"})
    (early,) = instance.get_run_records()
    ahead = datetime.now(UTC) + timedelta(hours=3)
    with instance.run_storage.connect() as sql:
        runs = sqlalchemy.table("runs", sqlalchemy.column("update_timestamp", sqlalchemy.DateTime))
        sql.execute(runs.update().values(update_timestamp=ahead.replace(tzinfo=None)))
    cursor = tick(sensor, instance, json.dumps({"until": ahead.isoformat()}))
    run = broken.execute_in_process(instance=instance, raise_on_error=False)
    cursor = tick(sensor, instance, cursor)
    assert [alert["run_id"] for alert in receiver.alerts] == [run.run_id] != [early.dagster_run.run_id]
    assert tick(sensor, instance, cursor) == cursor


def test_a_part_that_keeps_failing_is_reported_once_until_it_recovers(receiver, alerts, instance, monkeypatch):
    sensor = run_failure_sensor(alerts)
    cursor = tick(sensor, instance)

    def alerts_after(*left_out):
        """End a run; return the alerts after it."""
        nonlocal cursor
        tags = {"lakesync/left_out": json.dumps(left_out)} if left_out else {}
        broken.execute_in_process(instance=instance, tags=tags, raise_on_error=False)
        receiver.alerts.clear()
        cursor = tick(sensor, instance, cursor)
        return [(one["kind"], one["faults"]) for one in receiver.alerts]

    orders, planes = "table orders was not merged", "table planes was not merged"
    assert alerts_after(orders) == [("run_failed", [orders])]
    assert alerts_after(orders) == []
    assert alerts_after(orders, planes) == [("run_failed", [orders, planes])], "another part also fails"
    assert alerts_after(planes) == []
    monkeypatch.setattr("tests.integration.dagster.test_alerts.DRY", set())
    assert alerts_after() == [("run_recovered", [planes])]
    assert alerts_after() == []
    monkeypatch.setattr("tests.integration.dagster.test_alerts.DRY", {"sea"})
    assert alerts_after() == [("run_failed", ["breaks"])]


def test_a_table_of_a_connector_that_keeps_failing_is_reported_once(receiver, alerts, instance, monkeypatch):
    @dg.asset
    def issues():
        breaks_if_dry()

    @dg.asset
    def projects():
        pass

    def breaks_if_dry():
        if DRY:
            raise ValueError("dry")

    poll = dg.Definitions([issues, projects], jobs=[dg.define_asset_job("poll")]).resolve_job_def("poll")
    sensor = run_failure_sensor(alerts)
    cursor = tick(sensor, instance)

    def alerts_after(*tables):
        """End a poll of these tables; return the alerts after it."""
        nonlocal cursor
        keys = [dg.AssetKey(table) for table in tables]
        tags = {CONNECTOR: "shop/jira"}
        poll.execute_in_process(instance=instance, asset_selection=keys, tags=tags, raise_on_error=False)
        receiver.alerts.clear()
        cursor = tick(sensor, instance, cursor)
        return [(one["kind"], one["faults"]) for one in receiver.alerts]

    assert alerts_after("issues", "projects") == [("run_failed", ["issues"])]
    assert alerts_after("issues") == [], "only the failed table is due again"
    monkeypatch.setattr("tests.integration.dagster.test_alerts.DRY", set())
    assert alerts_after("issues") == [("run_recovered", ["issues"])]
    assert alerts_after("issues", "projects") == []


def test_a_check_is_reported_when_it_begins_to_fail_and_when_it_passes_again(receiver, alerts, instance):
    passing = [True, False, False, True]

    @dg.asset
    def table():
        pass

    @dg.asset_check(asset=table)
    def key_unique():
        passed = passing.pop(0)
        return dg.AssetCheckResult(passed=passed, description="see the docs", metadata={"count": 3})

    sensor = check_failure_sensor(alerts)
    definitions = dg.Definitions([table], asset_checks=[key_unique])
    cursor = tick(sensor, instance, definitions=definitions)
    while passing:
        dg.materialize([table, key_unique], instance=instance)
        cursor = tick(sensor, instance, cursor, definitions=definitions)
    assert [(one["kind"], one["asset"], one["check"], one["passed"]) for one in receiver.alerts] == [
        ("check_changed", "table", "key_unique", False),
        ("check_changed", "table", "key_unique", True),
    ]
    assert receiver.alerts[0]["metadata"] == {"count": "3"}
    assert receiver.alerts[0]["description"] == "see the docs"


def test_without_a_webhook_alerts_are_only_logged(instance, capsys):
    sensor = run_failure_sensor(Alerts(None, None, None))
    start = tick(sensor, instance)
    broken.execute_in_process(instance=instance, raise_on_error=False)
    tick(sensor, instance, start)


@pytest.mark.parametrize(("status", "requests"), [(500, 3), (429, 3), (404, 1), (302, 1)])
def test_an_alert_is_repeated_immediately_only_if_that_may_succeed(receiver, alerts, status, requests):
    receiver.takes, receiver.status = False, status
    with pytest.raises(AlertError, match=rf"did not accept an alert \({status}\)"):
        alerts.send(RECOVERED)
    assert receiver.requests == requests


def test_an_undelivered_alert_is_logged_once(receiver, alerts, monkeypatch):
    log = CapturingLogger()
    monkeypatch.setattr("sensors.alerts._log", log)
    receiver.takes, receiver.status = False, 404
    for _ in range(3):
        with pytest.raises(AlertError):
            alerts.send(RECOVERED)
    receiver.takes = True
    alerts.send(RECOVERED)
    assert receiver.alerts == [{"kind": "run_recovered", "run_id": "r", "job": "flush", "faults": []}]
    assert [call.method_name for call in log.calls] == ["error"]
    alerts.send(RECOVERED)
    assert len(log.calls) == 2, "after its delivery, the next failure is logged again"


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:1/hook-secret", "http://127.0.0.1:{port}/hook-secret", "ftp://hook-secret"]
)
def test_the_webhooks_address_is_in_no_log_and_no_error(receiver, capfd, caplog, address):
    receiver.takes = False
    alerts = Alerts(SecretStr(address.format(port=receiver.server_port)), SecretStr(SECRET), None)
    with pytest.raises(AlertError) as failed:
        alerts.send(RECOVERED)
    traces = "".join(traceback.format_exception(failed.value)) + repr(failed.value.__context__)
    output = capfd.readouterr()
    assert "hook-secret" not in traces + output.out + output.err + caplog.text + repr(
        [vars(each) for each in caplog.records]
    )
