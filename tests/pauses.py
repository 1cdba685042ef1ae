"""A pytest plugin that pauses tests at each line, to find tests that fail on a slow machine.

A test must not assert that something has not happened yet while a thread, a process or a timer may make it happen.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from types import FrameType
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pause", type=float, default=1.5, help="seconds to wait before each line of a test's file")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Run a test with a pause before each line of its file that its own thread reaches; in loops, only once."""
    file, seconds = str(pyfuncitem.path), pyfuncitem.config.getoption("--pause")
    paused: set[int] = set()

    def called(frame: FrameType, _event: str, _value: Any) -> Any:
        return reached if frame.f_code.co_filename == file else None

    def reached(frame: FrameType, event: str, _value: Any) -> Any:
        if event == "line" and frame.f_lineno not in paused:
            paused.add(frame.f_lineno)
            time.sleep(seconds)
        return reached

    before = sys.gettrace()
    sys.settrace(called)
    try:
        return (yield)
    finally:
        sys.settrace(before)
