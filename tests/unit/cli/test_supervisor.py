"""The supervisor over small real processes."""

import sys
import threading
import time

import pytest

from lakesync.cli.up import supervisor
from lakesync.cli.up.services import Service
from lakesync.cli.up.supervisor import State, Supervisor
from lakesync.model.errors import StartupError


def python(code):
    return (sys.executable, "-c", code)


FOR_EVER = python("import signal; signal.pause()")


class Watch:
    """Runs a supervisor in a thread and keeps what it reports."""

    def __init__(self, services, logs):
        self.changes = []
        self.stop = threading.Event()
        self.error = None
        self.supervisor = Supervisor(services, logs, self.changes.append)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            self.supervisor.run(self.stop)
        except StartupError as error:
            self.error = error

    def until(self, condition):
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, self.changes
            time.sleep(0.01)

    def states(self, name):
        return [change.state for change in self.changes if change.service.name == name]

    def pid(self, name):
        return next(change.pid for change in reversed(self.changes) if change.service.name == name)


@pytest.fixture
def watch(tmp_path):
    watched = []

    def start(*services):
        watched.append(Watch(services, tmp_path))
        return watched[-1]

    yield start
    for each in watched:
        each.stop.set()
        each.thread.join()
        each.supervisor.stop_all()


def test_a_service_starts_after_those_it_needs(watch):
    gate = threading.Event()
    seen = watch(
        Service("b", FOR_EVER, lambda: True, after=("a",)),
        Service("a", FOR_EVER, gate.is_set),
    )
    seen.until(lambda: seen.states("a") == [State.STARTING])
    assert seen.states("b") == []
    gate.set()
    seen.until(lambda: seen.supervisor.all_ready)
    assert seen.states("b") == [State.STARTING, State.READY]


def test_a_service_that_waits_by_the_clock_is_restarted_if_the_clock_is_set_back(watch, monkeypatch):
    seen = watch(
        Service("a", FOR_EVER, lambda: True, waits_by_clock=True),
        Service("b", FOR_EVER, lambda: True),
    )
    seen.until(lambda: seen.supervisor.all_ready)
    started, offset = [State.STARTING, State.READY], supervisor._clock_offset()
    for seconds in (3600, 3597):  # forward, and a little back
        looks = []
        monkeypatch.setattr(
            supervisor, "_clock_offset", lambda looks=looks, seconds=seconds: looks.append(0) or offset + seconds
        )
        seen.until(lambda looks=looks: len(looks) > 2)
        assert seen.states("a") == started
    monkeypatch.setattr(supervisor, "_clock_offset", lambda: offset)
    seen.until(lambda: seen.states("a") == [*started, State.WAITING, *started])
    assert seen.states("b") == started


def test_every_service_is_stopped_regardless_of_its_name(watch):
    seen = watch(Service("a", FOR_EVER, lambda: True), Service("gateway", FOR_EVER, lambda: True))
    seen.until(lambda: seen.supervisor.all_ready)
    processes = [seen.supervisor._services[name].process for name in ("a", "gateway")]
    seen.stop.set()
    seen.thread.join()
    seen.supervisor.stop_all()
    assert [process.exit_code is not None for process in processes] == [True, True]


def test_a_service_that_ends_is_restarted(watch):
    seen = watch(Service("a", FOR_EVER, lambda: True))
    seen.until(lambda: seen.supervisor.all_ready)
    first = seen.pid("a")
    seen.supervisor._services["a"].process._child.kill()
    seen.until(lambda: seen.states("a").count(State.READY) == 2)
    assert seen.pid("a") != first
    assert seen.changes[2].reason == "was terminated by signal 9"


def test_a_service_that_needs_a_child_process_is_restarted_without_it(watch):
    parent = "import signal, subprocess, sys; subprocess.Popen([sys.executable, *sys.argv[1:]]); signal.pause()"
    seen = watch(Service("a", (*python(parent), *FOR_EVER[1:]), lambda: True, needs_child=True))
    supervised = seen.supervisor._services["a"]
    seen.until(lambda: supervised.child is not None)
    first = seen.pid("a")
    supervised.child.kill()
    seen.until(lambda: seen.states("a").count(State.READY) == 2)
    assert seen.pid("a") != first
    assert seen.changes[2].reason == "lost its child process"


def test_a_service_whose_child_process_never_started_is_not_restarted(watch):
    seen = watch(Service("a", FOR_EVER, lambda: True, needs_child=True), Service("b", FOR_EVER, lambda: True))
    seen.until(lambda: seen.supervisor.all_ready)
    seen.supervisor._services["b"].process._child.kill()
    seen.until(lambda: seen.states("b").count(State.READY) == 2)  # so that a was checked too
    assert seen.states("a") == [State.STARTING, State.READY]


def test_a_service_that_never_becomes_ready_is_reported_with_its_log(watch):
    seen = watch(Service("a", python("print('no such thing'); raise SystemExit(3)"), lambda: False, hint="Look there."))
    seen.until(lambda: seen.error)
    assert "a exited with code 3" in str(seen.error)
    assert "no such thing\nLook there." in str(seen.error)


def test_a_service_that_keeps_failing_is_not_restarted_for_ever(watch, tmp_path, monkeypatch):
    monkeypatch.setattr("lakesync.cli.up.supervisor._STABLE_SECONDS", 3600.0)
    monkeypatch.setattr("lakesync.cli.up.supervisor._FIRST_WAIT_SECONDS", 0.001)
    flag = tmp_path / "first"
    code = f"""
import pathlib, signal
flag = pathlib.Path({str(flag)!r})
if flag.exists():
    raise SystemExit("broken since")
flag.touch()
signal.pause()
"""
    seen = watch(Service("a", python(code), flag.exists))
    seen.until(lambda: seen.supervisor.all_ready)
    # From now on it is never ready, and ends by itself.
    object.__setattr__(seen.supervisor._services["a"].service, "ready", lambda: False)
    seen.supervisor._services["a"].process._child.kill()
    seen.until(lambda: seen.error)
    assert "broken since" in str(seen.error)
    assert seen.states("a").count(State.STARTING) == 6


def test_a_service_that_ends_soon_after_it_is_ready_is_not_restarted_for_ever(watch, tmp_path, monkeypatch):
    monkeypatch.setattr("lakesync.cli.up.supervisor._STABLE_SECONDS", 3600.0)
    monkeypatch.setattr("lakesync.cli.up.supervisor._FIRST_WAIT_SECONDS", 0.001)
    flag = tmp_path / "running"
    code = f"""
import pathlib, signal
print("crashed", flush=True)
pathlib.Path({str(flag)!r}).touch()
signal.pause()
"""
    seen = watch(Service("a", python(code), flag.exists))
    for times in range(1, 7):
        seen.until(lambda times=times: seen.states("a").count(State.READY) == times)
        flag.unlink()
        seen.supervisor._services["a"].process._child.kill()
    seen.until(lambda: seen.error)
    assert "crashed" in str(seen.error)
    assert seen.states("a").count(State.READY) == 6


def test_restarts_are_forgotten_after_a_service_was_ready_for_a_while(watch, monkeypatch):
    monkeypatch.setattr("lakesync.cli.up.supervisor._STABLE_SECONDS", 0.0)
    monkeypatch.setattr("lakesync.cli.up.supervisor._MAX_RESTARTS", 1)
    seen = watch(Service("a", FOR_EVER, lambda: True))
    for times in (1, 2, 3):
        seen.until(lambda times=times: seen.states("a").count(State.READY) == times)
        seen.supervisor._services["a"].process._child.kill()
    seen.until(lambda: seen.states("a").count(State.READY) == 4)
    assert seen.error is None


def test_a_service_that_is_not_ready_in_time_fails(watch):
    seen = watch(Service("a", FOR_EVER, lambda: False, timeout=0.2))
    seen.until(lambda: seen.error)
    assert "was not ready after 0 s" in str(seen.error)


def test_a_service_that_runs_once_is_ready_after_exit_code_0(watch):
    seen = watch(
        Service("a", python("pass"), lambda: True, once=True), Service("b", FOR_EVER, lambda: True, after=("a",))
    )
    seen.until(lambda: seen.supervisor.all_ready)
    assert seen.states("a") == [State.STARTING, State.READY]


def test_a_missing_program_is_reported(watch):
    seen = watch(Service("a", ("/no/such/program",), lambda: True))
    seen.until(lambda: seen.error)
    assert "/no/such/program" in str(seen.error)
