"""The run host and its launcher: runs in forked processes, and the result of a run when one of the processes dies."""

import importlib
import os
import signal
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg
import pytest

from lakehouse.schema_snapshot import SchemaSnapshot, snapshot_file, write_snapshot
from lakesync.cli.up import dagster_home
from lakesync.cli.up.process import free_ports
from lakesync.config import load
from lakesync.model.schema import parse_schema
from lakesync_dagster.run_host import LOCATION
from lakesync_dagster.run_launcher import RunHostLauncher
from tests.integration.gateway_support import SERVICE

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[3]
QUICK, SLOW = "runs", "staging"
"""Parts of the maintenance. Both call the gateway; without one, they retry for half a minute."""
STATUS = dg.DagsterRunStatus


def maintenance():
    """The maintenance job of the code location that this process or the run host has loaded."""
    return importlib.import_module(LOCATION).defs.resolve_job_def("maintenance")


@dg.op
def drop_a_signal():
    """Wait for two signals. Python drops the exception of the first, which is raised in a weak reference's callback."""
    home = Path(os.environ["DAGSTER_HOME"])

    class Thing:
        pass

    def wait(_):
        (home / "waiting").touch()
        signal.pause()

    thing = Thing()
    reference = weakref.ref(thing, wait)
    del thing
    assert reference() is None
    (home / "dropped").touch()
    signal.pause()


@dg.job(executor_def=dg.in_process_executor)
def dropping():
    drop_a_signal()


class Host:
    """A Dagster instance with the launcher, and a run host."""

    def __init__(self, folder):
        (self.port,) = free_ports(1)
        gateway = {"url": f"http://127.0.0.1:{self.port}"}
        self.config = load({"data_dir": folder, "gateway": gateway, "service_token": SERVICE})
        dagster_home.write_files(self.config)
        self.instance = dg.DagsterInstance.from_config(str(self.config.dagster.home))
        self.process = None

    def start(self):
        socket = dagster_home.run_socket(self.config)
        socket.unlink(missing_ok=True)
        environment = {**os.environ, **self.config.environment(), "DAGSTER_HOME": str(self.config.dagster.home)}
        command = [sys.executable, "-m", "lakesync_dagster.run_host", str(socket)]
        self.process = subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True)
        self.until(socket.exists)

    def launch(self, part):
        importlib.reload(importlib.import_module(LOCATION))  # for this instance, with the current tables
        return self.launch_job(maintenance, maintenance(), {"dagster/partition": part})

    def launch_job(self, defined, job, tags=None):
        origin = dg.reconstructable(defined).get_python_origin()
        run = self.instance.create_run_for_job(job, job_code_origin=origin, tags=tags)
        self.instance.launch_run(run.run_id, workspace=None)
        return run.run_id

    def status(self, run_id):
        return self.instance.get_run_by_id(run_id).status

    def messages(self, run_id):
        return "\n".join(entry.message for entry in self.instance.all_logs(run_id))

    def pid(self, run_id):
        """The run's process, once it executes the run."""
        self.until(lambda: self.status(run_id) is STATUS.STARTED)
        return int(self.messages(run_id).partition("has forked process ")[2].partition(".")[0])

    def until(self, condition):
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def end(self):
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def is_there(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    monkeypatch.setattr("lakesync_dagster.run_launcher._TIMEOUT_SECONDS", 120.0)  # for a busy machine
    monkeypatch.setattr("lakesync_dagster.run_launcher._RESTART_SECONDS", 300.0)
    made = Host(tmp_path)
    for name, value in made.config.environment().items():
        monkeypatch.setenv(name, value)
    yield made
    made.end()
    made.instance.dispose()


def test_runs_succeed_are_cancelled_and_fail_with_their_process(host, spawn):
    host.start()
    cancelled, killed = host.launch(SLOW), host.launch(SLOW)
    pid = host.pid(cancelled)
    assert host.instance.run_launcher.terminate(cancelled)
    os.kill(host.pid(killed), signal.SIGKILL)
    begun = time.monotonic()
    host.until(lambda: host.status(killed) is STATUS.FAILURE)
    assert time.monotonic() - begun < 20, "the host notices it within a second"
    assert "The run's process ended with signal 9." in host.messages(killed)
    host.until(lambda: host.status(cancelled) is STATUS.CANCELED)
    spawn(LAKESYNC_GATEWAY_PORT=str(host.port))
    done = host.launch(QUICK)
    host.until(lambda: host.status(done) is STATUS.SUCCESS)
    host.until(lambda: not is_there(pid))
    assert not host.instance.run_launcher.terminate(done)


def test_a_cancelled_run_ends_though_a_signal_had_no_effect(host):
    host.start()
    run = host.launch_job(dropping, dropping)
    host.until((host.config.dagster.home / "waiting").exists)
    assert host.instance.run_launcher.terminate(run)
    host.until(lambda: host.status(run) is STATUS.CANCELED)
    assert (host.config.dagster.home / "dropped").exists()


def test_a_stopped_host_ends_a_run_though_a_signal_had_no_effect(host):
    host.start()
    run = host.launch_job(dropping, dropping)
    host.until((host.config.dagster.home / "waiting").exists)
    host.process.terminate()
    assert host.process.wait(120) == 0
    assert host.status(run) is STATUS.FAILURE
    assert (host.config.dagster.home / "dropped").exists()


def test_runs_of_a_killed_host_die_and_are_marked_as_failed_by_the_next(host):
    host.start()
    run = host.launch(SLOW)
    pid = host.pid(run)
    host.process.kill()
    host.process.wait()
    host.until(lambda: not is_there(pid))
    host.start()
    host.until(lambda: host.status(run) is STATUS.FAILURE)
    host.until(lambda: host.status(host.launch(QUICK)) in {STATUS.SUCCESS, STATUS.STARTED, STATUS.STARTING})


def test_a_stopped_host_ends_its_runs_first(host):
    host.start()
    run = host.launch(SLOW)
    host.pid(run)
    host.process.terminate()
    assert host.process.wait(120) == 0
    assert host.status(run) is STATUS.FAILURE


def test_a_run_knows_the_tables_that_were_registered_after_the_host_started(host):
    host.start()
    schema = parse_schema({"table": "late", "columns": [{"name": "n", "type": "number"}]})
    write_snapshot(snapshot_file(host.config), SchemaSnapshot((schema,)))
    run = host.launch("tables/late")
    host.until(lambda: host.status(run) is STATUS.FAILURE)
    events = host.instance.all_logs(run, of_type=dg.DagsterEventType.STEP_FAILURE)
    assert [event.step_key for event in events] == ["tidy"]
    assert "no Spark is configured" in str(events)


def test_a_run_waits_for_a_host_that_is_restarted(host):
    with ThreadPoolExecutor() as pool:
        launched = pool.submit(host.launch, SLOW)
        host.start()
        host.pid(launched.result())


def test_without_a_host_no_run_starts(host, monkeypatch):
    monkeypatch.setattr("lakesync_dagster.run_launcher._RESTART_SECONDS", 0.5)
    assert isinstance(host.instance.run_launcher, RunHostLauncher)
    with pytest.raises(dg.DagsterInvariantViolationError, match=r"does not answer at .*: \[Errno 2\]"):
        host.launch(QUICK)


def test_a_host_that_answers_too_late_starts_no_run(host, monkeypatch):
    monkeypatch.setattr("lakesync_dagster.run_launcher._TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr("lakesync_dagster.run_launcher._RESTART_SECONDS", 0.5)
    host.start()
    host.process.send_signal(signal.SIGSTOP)
    with pytest.raises(dg.DagsterInvariantViolationError, match="timed out"):
        host.launch(SLOW)
    (late,) = (run.run_id for run in host.instance.get_runs())
    host.process.send_signal(signal.SIGCONT)
    monkeypatch.setattr("lakesync_dagster.run_launcher._TIMEOUT_SECONDS", 120.0)
    host.pid(host.launch(SLOW))  # the host has read both requests
    assert not host.instance.run_launcher.terminate(late), "the host has a process for it"
    assert "Started process for run" not in host.messages(late)


def test_a_socket_has_a_short_path_wherever_the_data_is(tmp_path):
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    sockets = {str(socket(load({"data_dir": deep}))) for socket in (dagster_home.run_socket, dagster_home.code_socket)}
    assert len(sockets) == 2
    assert all(len(socket) < 100 for socket in sockets)
    assert dagster_home.run_socket(load({"data_dir": Path("/d")})) == Path("/d/dagster/runs.sock")
