"""The plugin that pauses tests finds tests that fail on a slow machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
RACE = """
import threading


def begin():
    done = threading.Event()
    threading.Timer(0.1, done.set).start()
    return done


def test_it_is_not_done_yet():
    done = begin()
    assert not done.is_set()


def test_it_is_done_at_last():
    done = begin()
    assert done.wait(60)
"""


def test_a_pause_finds_the_test_that_asserts_what_a_timer_changes(tmp_path: Path) -> None:
    file = tmp_path / "test_race.py"
    file.write_text(RACE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.pauses", "--pause", "1", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment).stdout
    assert "FAILED test_race.py::test_it_is_not_done_yet" in found, found
    assert "1 failed, 1 passed" in found, found
