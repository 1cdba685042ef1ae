"""Attacks by another user of the machine, who must not read or enter anything in the data folder."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from lakesync.cli.up import dagster_home
from lakesync.config import load
from lakesync.engine import open_gateway
from lakesync.model.errors import ConfigurationError
from tests.integration.gateway_support import DEADLINE, delta


@pytest.fixture
def open_umask():
    """Set the default umask of most systems, by which other users may read new files."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> dict[str, str]:
    """Return every path in a folder, including the folder, to which other users have any permission."""
    found = [folder, *folder.rglob("*")]
    return {str(path): oct(path.stat().st_mode) for path in found if path.stat().st_mode & 0o077}


@pytest.mark.usefixtures("open_umask")
def test_files_of_a_gateway_are_readable_by_its_user_only(spawn, tmp_path):
    server = spawn(LAKESYNC_FLUSH_TO_URI=f"sqlite://{tmp_path}/data/out/destination.db")
    assert server.client("alice").push(delta("r", {"title": "mine"}, client="alice")).ok
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(DEADLINE) == 0
    assert (tmp_path / "data" / "out" / "destination.db").exists()
    assert open_to_others(tmp_path / "data") == {}


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("planted", ["a folder of another user", "a link", "an open folder"])
def test_sockets_are_not_created_in_another_users_folder(tmp_path, monkeypatch, planted):
    """If the path of the data folder is too long for a socket, sockets are in the shared temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    settings = load({"data_dir": tmp_path / ("d" * 120)})
    own = dagster_home.run_socket(settings).parent
    if planted == "a link":
        (tmp_path / "elsewhere").mkdir(0o700)
        own.symlink_to(tmp_path / "elsewhere")
    else:
        uid = os.getuid() + (planted == "a folder of another user")
        monkeypatch.setattr(os, "getuid", lambda: uid)
        dagster_home.run_socket(settings).parent.mkdir(0o700 if uid != os.geteuid() else 0o770)
    with pytest.raises(ConfigurationError, match="is not private to this user"):
        dagster_home.write_files(settings)


def test_opening_a_store_removes_the_permissions_of_others(tmp_path):
    staging = tmp_path / "staging"
    with open_gateway("g", staging=staging):
        pass
    staging.chmod(0o755)
    for file in staging.iterdir():
        file.chmod(0o644)
    with open_gateway("g", staging=staging):
        assert open_to_others(staging) == {}
