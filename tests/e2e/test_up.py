"""`lakesync up` for real: ready, repaired, refused twice, stopped without a trace, clean after its own violent end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import requests

from lakesync.cli.process import accepts
from lakesync.cli.services import MARKER

READY_SECONDS = 240
COMMAND = [sys.executable, "-c", "from lakesync.cli import main; main()"]


class Up:
    """A running `lakesync up`."""

    def __init__(self, folder):
        self.folder = folder
        self.process = None

    def start(self):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LAKESYNC_")}
        with (self.folder.parent / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                # As a shell does to what it starts in the background.
                [
                    "sh",
                    "-c",
                    'trap "" INT; exec "$@"',
                    "sh",
                    *COMMAND,
                    "up",
                    "--data",
                    str(self.folder),
                    "--port",
                    "0",
                    "--dagster-port",
                    "0",
                    "--json-events",
                ],
                env={**clean, "LAKESYNC_CONFIG": ""},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.wait(lambda: self.told().get("ready") and self.told()["pid"] == self.process.pid, READY_SECONDS)
        return self

    def told(self):
        try:
            return json.loads((self.folder / "up.json").read_text())
        except FileNotFoundError:
            return {}

    def wait(self, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)

    def log(self):
        return (self.folder.parent / "up.log").read_text()[-4000:]

    def restarted(self, name):
        """Kill a process and wait until another has taken its place and all are ready again."""
        before = self.told()[name]["pid"]
        os.kill(before, signal.SIGKILL)
        self.wait(lambda: self.told()[name]["pid"] not in (None, before) and self.told()["ready"], READY_SECONDS)

    def family(self):
        """Every process that works on the folder."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARKER) == str(self.folder):
                    found.append(process)
        return found


@pytest.fixture
def up(tmp_path):
    running = Up(tmp_path / "data")
    yield running
    if running.process is not None and running.process.poll() is None:
        running.process.kill()
        running.process.wait()
    for process in running.family():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_a_life_of_lakesync_up(up):
    told = up.start().told()
    assert requests.get(f"{told['gateway']['url']}/health", timeout=60).ok
    assert requests.get(f"{told['dagster']['url']}/server_info", timeout=60).ok
    assert (up.folder / "up.json").stat().st_mode & 0o077 == 0

    second = subprocess.run([*COMMAND, "up", "--data", str(up.folder)], capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"process {up.process.pid}" in second.stderr

    up.restarted("gateway")
    up.restarted("spark")
    assert requests.get(f"{told['gateway']['url']}/ready", timeout=60).ok
    assert accepts(int(told["spark"]["remote"].rpartition(":")[2]))

    # Its own violent end: everything else goes on, and the next start ends that first.
    orphans = up.family()
    assert len(orphans) >= 5
    up.process.kill()
    up.process.wait()
    assert all(process.is_running() for process in orphans)
    again = up.start().told()
    assert not any(process.is_running() for process in orphans)
    assert again["jwt_secret"] == told["jwt_secret"]

    up.process.terminate()
    assert up.process.wait(240) == 0, up.log()
    assert up.family() == []
    assert up.told() == {}
