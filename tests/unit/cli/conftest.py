"""Runs commands in an empty folder, without any settings of this machine; and a configuration for `lakesync up`."""

from __future__ import annotations

import os

import pytest
from typer.testing import CliRunner

from lakesync import config
from lakesync.cli.app import app


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a command in this process, in an empty folder."""
    for name in [name for name in os.environ if name.startswith("LAKESYNC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return lambda *words, stdin=None: CliRunner().invoke(app, [str(word) for word in words], input=stdin)


@pytest.fixture
def conf(tmp_path, monkeypatch):
    """A configuration in which nothing runs: the servers have free ports and unreachable addresses."""
    monkeypatch.setenv("LAKESYNC_CONFIG", "")
    return config.load(
        {
            "data_dir": tmp_path,
            "gateway": {"port": 0, "url": "http://127.0.0.1:1"},
            "dagster": {"port": 0, "url": "http://127.0.0.1:2"},
        }
    )
