"""Runs commands in an empty folder, without any settings of this machine."""

from __future__ import annotations

import os

import pytest
from typer.testing import CliRunner

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
