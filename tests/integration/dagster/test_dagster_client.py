"""The client of Dagster's GraphQL API against a webserver of the installed Dagster."""

from __future__ import annotations

import sys
from pathlib import Path

import dagster as dg
import pytest
import requests

from lakesync.cli.dagster_client import DagsterClient
from lakesync.cli.up.process import Process, free_ports
from lakesync.client.errors import UnreachableError
from lakesync.model.errors import AdapterError, NotFoundError
from lakesync.testing.servers import Response, serve

CODE = """
import dagster as dg

@dg.asset(partitions_def=dg.DailyPartitionsDefinition("2100-01-01"))
def later(): ...

@dg.asset
def plain(): ...

@dg.asset(partitions_def=dg.StaticPartitionsDefinition(["a", "b"]))
def large(): ...

job = dg.define_asset_job("all", [later])
runs = dg.DefaultSensorStatus.RUNNING
sensors = [
    dg.SensorDefinition(name=name, job=job, evaluation_fn=lambda _: None, default_status=status)
    for name, status in (("running", runs), ("stopped", dg.DefaultSensorStatus.STOPPED))
]
schedules = [dg.ScheduleDefinition(name="nightly", job=job, cron_schedule="0 0 * * *")]  # stopped by default

defs = dg.Definitions(assets=[later, plain, large], jobs=[job], sensors=sensors, schedules=schedules)
"""


@pytest.fixture(scope="module")
def dagster(tmp_path_factory):
    """A client of a webserver, and the instance that the webserver shows."""
    folder = tmp_path_factory.mktemp("dagster")
    code = folder / "code.py"
    code.write_text(CODE)
    (folder / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    (port,) = free_ports(1)
    webserver = Path(sys.executable).with_name("dagster-webserver")
    words = [webserver, "--python-file", code, "--host", "127.0.0.1", "--port", str(port)]
    process = Process("webserver", list(map(str, words)), {"DAGSTER_HOME": str(folder)}, folder / "log")
    try:
        url = f"http://127.0.0.1:{port}"
        with dg.DagsterInstance.from_config(str(folder)) as instance:
            process.wait_ready(lambda: answers(url), timeout=240)
            yield DagsterClient(url), instance
    finally:
        process.stop(grace=60)


def answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/server_info", timeout=5).ok
    except requests.RequestException:
        return False


def test_integers_of_any_size_are_reported(dagster):
    client, instance = dagster
    metadata = {"bytes": 5_000_000_000, "rows": 3, "seconds": 1.5, "empty": False, "note": "done"}
    instance.report_runless_asset_event(dg.AssetMaterialization("large", partition="a", metadata=metadata))
    assert client.materialisations("large", ["a", "b"], {""}) == {"a": {"run": "", **metadata}}


def test_the_error_of_a_failed_run_is_the_first_cause_in_its_log(dagster):
    client, instance = dagster

    @dg.asset(name="failing")
    def fail():
        raise OSError("no java\n\nJVM stacktrace: …")

    failed = dg.materialize([fail], instance=instance, raise_on_error=False)
    assert client.error_of(failed.run_id) == "OSError: no java"

    @dg.asset
    def full():
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise AdapterError("the database /copy.db cannot be used") from error

    failed = dg.materialize([full], instance=instance, raise_on_error=False)
    assert client.error_of(failed.run_id).endswith("AdapterError: the database /copy.db cannot be used")

    @dg.asset(name="succeeding")
    def succeed(): ...

    assert client.error_of(dg.materialize([succeed], instance=instance).run_id) == ""


def test_a_failed_run_is_named_until_a_later_one_has_ended(dagster):
    client, instance = dagster
    tags = {".dagster/repository": "__repository__@code.py"}

    def last(run_id, status):
        instance.add_run(dg.DagsterRun(job_name="all", run_id=run_id, status=status, tags=tags))
        (run,) = (each for each in client.last_runs() if each["jobName"] == "all")
        return run["runId"], run["failedRunId"]

    assert last("1", dg.DagsterRunStatus.STARTED) == ("1", None)
    assert last("2", dg.DagsterRunStatus.FAILURE) == ("2", "2")
    assert last("3", dg.DagsterRunStatus.STARTED) == ("3", "2")
    assert last("4", dg.DagsterRunStatus.SUCCESS) == ("4", None)


def test_sensors_and_schedules_that_are_switched_off_are_named(dagster):
    client, _ = dagster
    assert client.switched_off() == ["nightly", "stopped"]


def test_an_asset_without_partitions_has_none(dagster):
    client, _ = dagster
    assert [each.key for each in client.partitions("large")] == ["a", "b"]
    assert client.partitions("plain") == client.partitions("later") == []
    with pytest.raises(NotFoundError, match="'later' has no partition yet"):
        client.materialise("later", "all", "a test")


@pytest.mark.parametrize("body", [{"detail": "log in"}, ["data"], {"data": None}, "text"])
def test_a_server_that_is_not_dagster_is_reported(body):
    class Proxy:
        def respond(self, _request):
            return Response(401, body)

        def now(self):
            return 0

    with (
        serve(Proxy()) as served,
        pytest.raises(UnreachableError, match=r"check that it is Dagster's URL|JSONDecodeError"),
    ):
        DagsterClient(served.url).runs()
