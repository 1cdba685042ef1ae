"""Crash points kill like `kill -9`, only at the requested passage."""

import os
import signal
import subprocess
import sys

import pytest

CODE = """
from lakesync.model.crash_points import crash_point
for number in range(3):
    crash_point("other")
    crash_point("here")
    print(number, flush=True)
"""


@pytest.mark.parametrize(
    ("asked", "code", "passed"),
    [("", 0, 3), ("nowhere", 0, 3), ("here", -signal.SIGKILL, 0), ("here:3", -signal.SIGKILL, 2), ("here:4", 0, 3)],
)
def test_a_crash_point_kills_at_the_requested_passage(asked, code, passed):
    environment = {**os.environ, "LAKESYNC_CRASH_AT": asked}
    run = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, len(run.stdout.split())) == (code, passed)
