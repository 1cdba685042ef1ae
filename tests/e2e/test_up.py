"""A real `lakesync up`: start, restarts, a second start that is rejected, shutdown, and recovery after a kill."""

import subprocess
from urllib.parse import urlsplit

import pytest
import requests

from lakesync.cli.up.process import accepts
from tests.e2e.up_support import COMMAND, READY_SECONDS


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_lakesync_up_starts_serves_and_stops_a_whole_system(up):
    report = up.start().report()
    assert requests.get(f"{report['gateway']['url']}/health", timeout=60).ok
    assert requests.get(f"{report['dagster']['url']}/server_info", timeout=60).ok
    assert (up.folder / "up.json").stat().st_mode & 0o077 == 0

    second = subprocess.run([*COMMAND, "up", "--data", str(up.folder)], capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"process {up.process.pid}" in second.stderr

    up.restarted("gateway")
    up.restarted("spark")
    assert requests.get(f"{report['gateway']['url']}/ready", timeout=60).ok
    assert accepts(urlsplit(report["spark"]["remote"]).port)

    up.wait(lambda: all(up.ticks().values()), READY_SECONDS)
    before = {name: found[0]["timestamp"] for name, found in up.ticks().items()}

    # After a kill, the other processes continue, and the next start stops them first.
    orphans = up.family()
    assert len(orphans) >= 5
    up.process.kill()
    up.process.wait()
    assert all(process.is_running() for process in orphans)
    again = up.start().report()
    assert not any(process.is_running() for process in orphans)
    assert again["jwt_secret"] == report["jwt_secret"]
    # the ticks of each sensor from before the kill are still listed
    after = {name: {each["timestamp"] for each in found} for name, found in up.ticks().items()}
    assert [name for name, timestamp in before.items() if timestamp not in after[name]] == []

    up.process.terminate()
    assert up.process.wait(240) == 0, up.log()
    assert up.family() == []
    assert up.report() == {}
