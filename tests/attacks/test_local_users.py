"""Another user of the machine: nothing in the data folder can be read or entered by others."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from lakesync.engine import open_gateway
from tests.integration.gateway_support import DEADLINE, delta


@pytest.fixture
def open_umask():
    """What most systems give their users: others may read what one makes."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> dict[str, str]:
    """Everything in a folder, itself included, that others have any right to."""
    found = [folder, *folder.rglob("*")]
    return {str(path): oct(path.stat().st_mode) for path in found if path.stat().st_mode & 0o077}


@pytest.mark.usefixtures("open_umask")
def test_what_a_gateway_keeps_is_its_users_alone(spawn, tmp_path):
    server = spawn(LAKESYNC_FLUSH_TO_URI=f"sqlite://{tmp_path}/data/out/destination.db")
    assert server.client("alice").push(delta("r", {"title": "mine"}, client="alice")).ok
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(DEADLINE) == 0
    assert (tmp_path / "data" / "out" / "destination.db").exists()
    assert open_to_others(tmp_path / "data") == {}


@pytest.mark.usefixtures("open_umask")
def test_a_store_that_was_open_to_others_is_closed_when_it_is_opened(tmp_path):
    staging = tmp_path / "staging"
    with open_gateway("g", staging=staging):
        pass
    staging.chmod(0o755)
    for file in staging.iterdir():
        file.chmod(0o644)
    with open_gateway("g", staging=staging):
        assert open_to_others(staging) == {}
