"""A periodic task keeps its times, wakes, stops, and continues after failures."""

from __future__ import annotations

import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from lakesync.engine.housekeeping import PeriodicTask, _next_call

LONG = 3600.0


@given(st.floats(0, 1e6), st.floats(0.001, 100), st.floats(0, 1e4))
def test_call_times_are_counted_from_the_start(start, seconds, late):
    due = _next_call(start, seconds, start + late)
    assert due > start + late - 1e-6
    waits = (due - start) / seconds
    assert abs(waits - round(waits)) < 1e-3
    assert due <= start + late + seconds + 1e-6


def test_a_call_after_a_wake_moves_no_later_call():
    assert _next_call(100.0, 30.0, 71.0) == 100.0


def until(condition):
    """Wait, with a deadline."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_periodic_task_runs_until_it_is_stopped():
    calls = []
    loop = PeriodicTask("test", lambda: calls.append(1), interval_seconds=0.01)
    loop.start()
    until(lambda: len(calls) >= 3)
    loop.stop()
    ended = len(calls)
    assert "test" not in [thread.name for thread in threading.enumerate()]
    loop.wake()
    assert len(calls) == ended


def test_wake_runs_the_task_immediately():
    called = threading.Event()
    loop = PeriodicTask("test", called.set, interval_seconds=LONG)
    loop.start()
    loop.wake()
    assert called.wait(30)
    loop.stop()


def test_a_stop_while_the_task_is_woken_ends_it():
    for _ in range(200):
        task = PeriodicTask("test", lambda: None, interval_seconds=LONG)
        task.start()
        task.wake()
        task.stop()  # it would wait for an hour if the stop was lost


def test_a_failing_task_is_retried():
    calls = []

    def work():
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError("not yet")

    loop = PeriodicTask("test", work, interval_seconds=0.01, max_wait_seconds=0.02)
    loop.start()
    until(lambda: len(calls) >= 4)
    loop.stop()


def test_a_wake_does_not_shorten_the_wait_after_a_failure():
    first, second = threading.Event(), threading.Event()

    def work():
        (second if first.is_set() else first).set()
        loop.wake()
        raise RuntimeError("never")

    loop = PeriodicTask("test", work, interval_seconds=LONG)
    loop.start()
    loop.wake()
    assert first.wait(30)
    assert not second.wait(0.2)
    loop.stop()


def test_failures_delay_the_next_call_up_to_a_limit():
    def work():
        raise RuntimeError("never")

    loop = PeriodicTask("test", work, interval_seconds=1.0, max_wait_seconds=30.0)
    assert [loop._call() for _ in range(6)] == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert {loop._call() for _ in range(1100)} == {30.0}, "2.0**1024 is too large for a float"


def test_a_task_that_was_never_started_can_be_stopped():
    PeriodicTask("test", lambda: None).stop()
