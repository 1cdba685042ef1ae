"""A command does as much as it can with whatever streams it is started with."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys

import pytest

from lakesync.cli.exit_codes import ExitCode

WHERE = "-g shop --url http://127.0.0.1:1"


@pytest.fixture
def sh(tmp_path):
    """Runs a command by a shell, which redirects its streams."""

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
def test_a_stream_that_is_closed_is_an_empty_one(sh, words, code):
    told = sh(words)
    assert told.returncode == code
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("words", ["config show --json", "config show remote.gateway --json", "doctor --json"])
def test_a_disk_that_is_full_is_told_in_words(sh, words):
    told = sh(f"{words} >/dev/full")
    assert (told.returncode, json.loads(told.stderr)["code"]) == (ExitCode.FAILED, "OS_ERROR")
    assert "No space left on device" in told.stderr


@pytest.mark.parametrize("words", ["config show --json", "config show remote.gateway --json"])
def test_a_reader_that_went_away_ends_a_command_without_a_word(sh, words):
    told = sh(f"{words} | true")
    assert (told.returncode, told.stderr) == (0, "")


def test_a_letter_that_the_output_lacks_is_escaped(sh):
    told = sh("config show remote.gateway --json", PYTHONIOENCODING="latin1", LAKESYNC_REMOTE_GATEWAY="日本")
    assert (told.returncode, json.loads(told.stdout)["value"]) == (0, "日本")


def test_a_port_that_is_taken_is_told_in_words(run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        told = run("fake", "jira", "--port", taken.getsockname()[1])
    assert told.exit_code == ExitCode.FAILED
    assert "Address already in use. Choose another with --port" in told.stderr


@pytest.mark.parametrize("file", ["absent/frames.bin", ".", "/"])
def test_a_checkpoint_is_not_asked_for_where_it_cannot_be_kept(run, file):
    """A gateway has one for a client once."""
    told = run("checkpoint", "fetch", file, *WHERE.split(), "--client", "ann")
    assert told.exit_code == ExitCode.USAGE
    assert "cannot be written" in told.stderr or "is a folder" in told.stderr


def test_of_a_checkpoint_that_does_not_come_nothing_is_left(run, tmp_path):
    told = run("checkpoint", "fetch", "frames.bin", *WHERE.split(), "--client", "ann")
    assert told.exit_code == ExitCode.UNREACHABLE
    assert list((tmp_path / "project").iterdir()) == []
