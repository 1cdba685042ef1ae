"""Commands whose standard streams are closed, full or not in UTF-8."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys

import pytest
import structlog

from lakesync.cli.exit_codes import ExitCode
from lakesync.model.errors import NotFoundError

WHERE = "-g shop --url http://127.0.0.1:1"


@pytest.fixture
def sh(tmp_path):
    """Runs a command in a shell, which redirects its streams."""

    def started(words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LAKESYNC_")}
        kept.pop("PYTHONUNBUFFERED", None)
        code = shlex.join([sys.executable, "-c", "from lakesync.cli import main; main()"])
        return subprocess.run(
            ["/bin/sh", "-c", f"{code} {words}"],
            check=False,
            cwd=tmp_path,
            env={**kept, **variables},
            capture_output=True,
            text=True,
        )

    return started


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (f"push - -t todos {WHERE} <&-", ExitCode.OK),
        ("rules validate - <&-", ExitCode.INVALID),
        ("token show <&-", ExitCode.INVALID),
        ("connectors unregister jira -g shop <&-", ExitCode.USAGE),
        ("config show >&-", ExitCode.OK),
        (f"status {WHERE} 2>&-", ExitCode.UNREACHABLE),
        ("config show <&- >&- 2>&-", ExitCode.OK),
    ],
)
def test_a_closed_stream_is_treated_as_empty(sh, words, code):
    result = sh(words)
    assert result.returncode == code
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("words", ["config show --json", "config show remote.gateway --json", "doctor --json"])
def test_a_full_disk_is_reported_without_a_traceback(sh, words):
    result = sh(f"{words} >/dev/full")
    assert (result.returncode, json.loads(result.stderr)["code"]) == (ExitCode.FAILED, "OS_ERROR")
    assert "No space left on device" in result.stderr


@pytest.mark.parametrize("words", ["config show --json", "config show remote.gateway --json"])
def test_a_closed_pipe_ends_a_command_silently(sh, words):
    result = sh(f"{words} | true")
    assert (result.returncode, result.stderr) == (0, "")


def test_characters_that_the_output_cannot_encode_are_escaped(sh):
    result = sh("config show remote.gateway --json", PYTHONIOENCODING="latin1", LAKESYNC_REMOTE_GATEWAY="日本")
    assert (result.returncode, json.loads(result.stdout)["value"]) == (0, "日本")


def test_a_port_in_use_is_reported_without_a_traceback(run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = run("fake", "jira", "--port", taken.getsockname()[1])
    assert result.exit_code == ExitCode.FAILED
    assert "Address already in use. Choose another with --port" in result.stderr


@pytest.mark.parametrize("file", ["absent/frames.bin", ".", "/"])
def test_a_checkpoint_is_not_requested_if_its_file_cannot_be_written(run, file):
    """A gateway gives a client only one checkpoint."""
    result = run("checkpoint", "fetch", file, *WHERE.split(), "--client", "ann")
    assert result.exit_code == ExitCode.USAGE
    assert "cannot be written" in result.stderr or "is a folder" in result.stderr


def test_a_failed_checkpoint_leaves_no_file(run, tmp_path):
    result = run("checkpoint", "fetch", "frames.bin", *WHERE.split(), "--client", "ann")
    assert result.exit_code == ExitCode.UNREACHABLE
    assert list((tmp_path / "project").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "called"),
    [
        (("dlq", "retry", "away/sqlite!todos"), "lakesync.cli.remote.dead_letters.retry_destination"),
        (("connectors", "test", "jira", "--gateway", "shop"), "lakesync.cli.local.staging.open_store"),
    ],
)
def test_log_lines_of_a_command_are_no_part_of_its_output(run, monkeypatch, words, called):
    def log_and_fail(*_):
        structlog.get_logger().warning("a line of the log")
        raise NotFoundError("nothing is there")

    structlog.reset_defaults()
    monkeypatch.setattr(called, log_and_fail)
    try:
        result = run(*words)
    finally:
        structlog.reset_defaults()
    assert (result.exit_code, result.stdout) == (ExitCode.FAILED, "")
    assert "a line of the log" in result.stderr
